"""A log on one JetStream stream, guarded by the stream's last sequence."""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from whaleflux.common.contracts.base import Reader, UnknownEvent
from whaleflux.common.contracts.subjects import HEADER_TYPE
from whaleflux.common.errors import Broken, Unavailable
from whaleflux.common.jetstream import BATCH_MESSAGES_MAX, JetStream, OutMessage, StoredMessage
from whaleflux.common.log import Recorded

E = TypeVar("E", bound=BaseModel)


class NatsLog(Generic[E]):
    """Implements `Log`."""

    def __init__(
        self,
        js: JetStream,
        *,
        stream: str,
        reader: Reader[E],
        subject_of: Callable[[E], str],
    ) -> None:
        """Keep events on *stream*, each on the subject that *subject_of* gives it."""
        self._js = js
        self._stream = stream
        self._reader = reader
        self._subject_of = subject_of

    async def append(
        self, events: Sequence[E], *, expected_seq: int, trace: Mapping[str, str] | None = None
    ) -> int:
        """Write all of *events* or none, and return the new last sequence.

        Raises:
            Conflict: The stream's last sequence is not *expected_seq*.
            Unavailable: No answer came; all of the events are there, or none.
            Broken: More events than one decision may have.

        """
        if not events:
            return expected_seq
        if len(events) > BATCH_MESSAGES_MAX:
            raise Broken(f"{len(events)} events in one decision; {BATCH_MESSAGES_MAX} at most")
        messages = [self._message(event, trace) for event in events]
        ack = await self._js.publish_batch(messages, expected_last_seq=expected_seq)
        if ack.seq != expected_seq + len(events):
            raise Broken(
                f"{self._stream} gave sequence {ack.seq} to {len(events)} events after"
                f" {expected_seq}"
            )
        return ack.seq

    async def read(self, *, after_seq: int) -> Sequence[Recorded[E]]:
        """Return everything written after *after_seq*, events of unknown types left out.

        All that the stream's leader had when the call began is in it.

        Raises:
            Unavailable: The stream could not be read, or only by a replica that is behind.
            Broken: An event of a known type does not fit it.

        """
        upto = await self.last_seq()
        if upto <= after_seq:
            return []
        messages = await self._js.read(self._stream, after_seq=after_seq)
        if not messages or messages[-1].seq < upto:
            raise Unavailable(f"a replica of {self._stream} is behind its leader", code="behind")
        return [
            Recorded(message.seq, event)
            for message in messages
            if not isinstance(event := self._event(message), UnknownEvent)
        ]

    async def last_seq(self) -> int:
        """Return the sequence of the newest message; 0 for an empty log."""
        return (await self._js.stream_state(self._stream)).last_seq

    def _message(self, event: E, trace: Mapping[str, str] | None) -> OutMessage:
        headers = {HEADER_TYPE: str(getattr(event, "type", "")), **(trace or {})}
        body = event.__pydantic_serializer__.to_json(event)
        return OutMessage(self._subject_of(event), body, headers)

    def _event(self, message: StoredMessage) -> E | UnknownEvent:
        try:
            return self._reader(message.body)
        except ValidationError as error:
            raise Broken(
                f"event {message.seq} of {self._stream} ({message.subject}) cannot be read: {error}"
            ) from error
