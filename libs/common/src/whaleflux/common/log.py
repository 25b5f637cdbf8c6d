"""The append-only record that every decision ends in, and the inbox that feeds it.

These protocols are all that a service knows of the bus. Two worlds implement them: JetStream
(`nats_log`, `nats_inbox`, `nats_table`) and memory (`testing.memory`); one test class each holds
both to the same behaviour.
"""

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from whaleflux.common.errors import Unavailable

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)


class Conflict(Unavailable):
    """Someone else wrote first; catch up and decide again."""


class Recorded(NamedTuple, Generic[E]):
    """An event and the sequence it has in its log."""

    seq: int
    event: E


class Log(Protocol, Generic[E]):
    """One stream, one writer at a time, guarded by the stream's last sequence."""

    async def append(
        self, events: Sequence[E], *, expected_seq: int, trace: Mapping[str, str] | None = None
    ) -> int:
        """Write all of *events* or none, and return the new last sequence.

        Sequences are contiguous: event i of n has `result - n + 1 + i`. *trace* holds headers
        (`traceparent`, `Wf-Causation`) that go on each message.

        Raises:
            Conflict: The log's last sequence is not *expected_seq*.
            Unavailable: No answer came; the events may or may not be there.

        """
        ...

    async def read(self, *, after_seq: int) -> Sequence[Recorded[E]]:
        """Return everything written after *after_seq*, events of unknown types left out."""
        ...

    async def last_seq(self) -> int:
        """Return the sequence of the newest message; 0 for an empty log."""
        ...


class Delivery(Protocol):
    """One message handed to a service, to be settled exactly once."""

    @property
    def subject(self) -> str:
        """Where it was sent."""
        ...

    @property
    def body(self) -> bytes:
        """What it says."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Type, trace and causation."""
        ...

    @property
    def stream_seq(self) -> int:
        """Its sequence in its stream."""
        ...

    @property
    def deliveries(self) -> int:
        """How often it has been handed out, this time included."""
        ...

    async def ack(self) -> None:
        """Say that its consequences are durable."""
        ...

    async def nak(self, *, delay_s: float = 0.0) -> None:
        """Ask for it again after *delay_s*."""
        ...

    async def dead_letter(self, *, service: str, reason: str) -> None:
        """Move it to the dead-letter stream, durably, and never see it again."""
        ...


class Inbox(Protocol):
    """A durable consumer, pulled at the reader's own pace."""

    async def take(self, *, limit: int, wait_s: float) -> Sequence[Delivery]:
        """Return what is waiting, at most *limit*; wait up to *wait_s* for the first one."""
        ...


class Table(Protocol):
    """The last value for each subject (`ASSIGNMENTS`)."""

    async def put(self, subject: str, body: bytes, *, expected_seq: int | None = None) -> int:
        """Replace the value and return its sequence.

        *expected_seq* is the subject's last sequence, 0 for none; None writes unconditionally.

        Raises:
            Conflict: The subject's last sequence is another.

        """
        ...

    async def get(self, subject: str) -> tuple[int, bytes] | None:
        """Return sequence and value, or None."""
        ...
