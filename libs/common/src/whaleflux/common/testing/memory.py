"""The bus in memory: late, forgetful about answers, and never wrong.

Each class passes the same tests as its twin on real servers. Delays and lost answers come from a
generator the caller seeds, so a simulation has one history per seed.
"""

import asyncio
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from whaleflux.common.contracts.base import UnknownEvent
from whaleflux.common.errors import Broken, Unavailable
from whaleflux.common.log import Conflict, Recorded
from whaleflux.common.valkey_cache import Op, Ops

E = TypeVar("E")

TRAVEL_S = 0.005
"""Mean time of one way to the log."""


async def _travel(rng: random.Random | None) -> None:
    if rng is not None:
        await asyncio.sleep(rng.expovariate(1 / TRAVEL_S))


class MemoryLog(Generic[E]):
    """Implements `Log` with a list."""

    def __init__(
        self,
        rng: random.Random | None = None,
        *,
        answer_loss_rate: float = 0.0,
        guarded: bool = True,
    ) -> None:
        """Lose answers at a rate; without *guarded* the sequence guard is missing."""
        self._rng = rng
        self._guarded = guarded
        self.answer_loss_rate = answer_loss_rate
        self.events: list[E] = []

    async def append(
        self, events: Sequence[E], *, expected_seq: int, trace: Mapping[str, str] | None = None
    ) -> int:
        """Write all of *events* or none, and return the new last sequence."""
        await _travel(self._rng)
        if self._guarded and expected_seq != len(self.events):
            raise Conflict(f"the last sequence is {len(self.events)}, not {expected_seq}")
        self.events.extend(events)
        seq = len(self.events)
        await _travel(self._rng)
        if self._rng is not None and self._rng.random() < self.answer_loss_rate:
            raise Unavailable("the answer was lost")
        return seq

    async def read(self, *, after_seq: int) -> Sequence[Recorded[E]]:
        """Return everything written after *after_seq*, events of unknown types left out."""
        await _travel(self._rng)
        kept = enumerate(self.events[after_seq:], start=after_seq + 1)
        return [Recorded(n, event) for n, event in kept if not isinstance(event, UnknownEvent)]

    async def last_seq(self) -> int:
        """Return the sequence of the newest event; 0 for an empty log."""
        await _travel(self._rng)
        return len(self.events)


class MemoryTable:
    """Implements `Table` with a dictionary."""

    def __init__(self, rng: random.Random | None = None) -> None:
        """Delay answers as *rng* says."""
        self._rng = rng
        self._seq = 0
        self._values: dict[str, tuple[int, bytes]] = {}

    async def put(self, subject: str, body: bytes, *, expected_seq: int | None = None) -> int:
        """Replace the value and return its sequence."""
        await _travel(self._rng)
        standing = self._values.get(subject, (0, b""))[0]
        if expected_seq is not None and standing != expected_seq:
            raise Conflict(f"the last sequence of {subject} is {standing}, not {expected_seq}")
        self._seq += 1
        self._values[subject] = (self._seq, body)
        return self._seq

    async def get(self, subject: str) -> tuple[int, bytes] | None:
        """Return sequence and value, or None."""
        await _travel(self._rng)
        return self._values.get(subject)


@dataclass(slots=True)
class MemoryDelivery:
    """Implements `Delivery`."""

    inbox: "MemoryInbox"
    subject: str
    body: bytes
    headers: Mapping[str, str]
    stream_seq: int
    deliveries: int = 1
    settled: bool = False

    async def ack(self) -> None:
        """Say that its consequences are durable."""
        self._settle()

    async def nak(self, *, delay_s: float = 0.0) -> None:
        """Ask for it again after *delay_s*."""
        self._settle()
        again = MemoryDelivery(
            self.inbox, self.subject, self.body, self.headers, self.stream_seq, self.deliveries + 1
        )
        asyncio.get_running_loop().call_later(delay_s, self.inbox.enqueue, again)

    async def dead_letter(self, *, service: str, reason: str) -> None:
        """Move it to `inbox.dead` and never see it again."""
        self._settle()
        self.inbox.dead.append((self, reason))

    def _settle(self) -> None:
        if self.settled:
            raise Broken(f"message {self.stream_seq} on {self.subject} was settled before")
        self.settled = True


@dataclass(slots=True)
class MemoryInbox:
    """Implements `Inbox` with a queue that tests fill by `send`."""

    dead: list[tuple[MemoryDelivery, str]] = field(default_factory=list)
    _queue: deque[MemoryDelivery] = field(default_factory=deque)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _seq: int = 0

    def send(self, subject: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Put a message into the stream behind this inbox."""
        self._seq += 1
        self.enqueue(MemoryDelivery(self, subject, body, dict(headers or {}), self._seq))

    def enqueue(self, delivery: MemoryDelivery) -> None:
        """Hand *delivery* out next."""
        self._queue.append(delivery)
        self._arrived.set()

    async def take(self, *, limit: int, wait_s: float) -> Sequence[MemoryDelivery]:
        """Return what is waiting, at most *limit*; wait up to *wait_s* for the first one."""
        if not self._queue:
            self._arrived.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        return [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]


class MemoryCache:
    """Implements `Cache` with dictionaries; times to live are kept by the running loop's clock."""

    def __init__(self) -> None:
        """Start empty."""
        self._values: dict[str, Any] = {}
        self._dies_at: dict[str, float] = {}

    async def apply(self, ops: Ops, *, only_if: Mapping[str, bytes | None] | None = None) -> None:
        """Do all of *ops* or none."""
        if ops and any(self._alive(key) != value for key, value in (only_if or {}).items()):
            raise Conflict("a guarded key holds something else", code="conflict")
        for op in ops:
            self._apply(op)

    async def get(self, key: str) -> bytes | None:
        """Return the value of *key*."""
        value: bytes | None = self._alive(key)
        return value

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of *keys*, in order."""
        return [self._alive(key) for key in keys]

    async def hash_of(self, key: str) -> Mapping[str, bytes]:
        """Return the fields of a hash."""
        return dict(self._alive(key) or {})

    async def range_by_score(
        self, key: str, *, below: float | None, limit: int
    ) -> list[tuple[str, float]]:
        """Return members with a score below *below*, highest first, at most *limit*."""
        members: dict[str, float] = self._alive(key) or {}
        ordered = sorted(members.items(), key=lambda item: (item[1], item[0]), reverse=True)
        return [item for item in ordered if below is None or item[1] < below][:limit]

    async def list_of(self, key: str) -> list[bytes]:
        """Return a list, newest first."""
        return list(self._alive(key) or [])

    async def delete_prefix(self, prefix: str) -> None:
        """Forget every key that starts with *prefix*."""
        for key in [key for key in self._values if key.startswith(prefix)]:
            self._forget(key)

    def _alive(self, key: str) -> Any:  # noqa: ANN401 - a key holds any of five kinds of value
        if self._dies_at.get(key, float("inf")) <= asyncio.get_running_loop().time():
            self._forget(key)
        return self._values.get(key)

    def _forget(self, key: str) -> None:
        self._values.pop(key, None)
        self._dies_at.pop(key, None)

    def _apply(self, op: Op) -> None:
        held = self._alive(op.key)
        now = asyncio.get_running_loop().time()
        match op.verb:
            case "set":
                self._forget(op.key)
                self._values[op.key] = _raw(op.value)
                if op.limit:
                    self._dies_at[op.key] = now + op.limit
            case "delete":
                self._forget(op.key)
            case "hset":
                fields = {name: _raw(value) for name, value in dict(op.value).items()}
                self._values[op.key] = {**(held or {}), **fields}
            case "hdel":
                self._keep(op.key, {k: v for k, v in (held or {}).items() if k not in op.value})
            case "zadd":
                self._values[op.key] = {**(held or {}), op.value: op.limit}
            case "zrem":
                self._keep(op.key, {k: v for k, v in (held or {}).items() if k != op.value})
            case "lpush_trim":
                self._values[op.key] = [_raw(op.value), *(held or [])][: int(op.limit)]
            case "expire":
                if held is not None:
                    self._dies_at[op.key] = now + op.limit

    def _keep(self, key: str, value: Any) -> None:  # noqa: ANN401 - see `_alive`
        if value:
            self._values[key] = value
        else:
            self._forget(key)


def _raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
