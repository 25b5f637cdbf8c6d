"""Public events for subscribers: one reader of `PUB` per process, a ring, and resume by cursor."""

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal

from whaleflux.common.bus import Bus, BusMessage
from whaleflux.common.contracts import subjects
from whaleflux.common.errors import Unavailable
from whaleflux.common.jetstream import JetStream, StoredMessage
from whaleflux.gateway.shell.settings import IDLE_LOOK_S, RING_EVENTS_MAX

PAGE_EVENTS = 500

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """A public event as it is sent to subscribers."""

    seq: int
    tenant: str
    type: str
    """`run.placed`."""
    body: bytes
    """The whole event as JSON (CloudEvents, structured)."""


class Resync(Exception):
    """The cursor lies outside of what is kept; `first_seq` is the oldest event there is."""

    def __init__(self, code: Literal["too_old", "too_new"], first_seq: int) -> None:
        """Say where the stream begins now, and on which side of it the cursor lies."""
        super().__init__(code, first_seq)
        self.code = code
        self.first_seq = max(first_seq, 1)


class Feed:
    """Follows `PUB` and hands its events to any number of subscribers."""

    def __init__(self, bus: Bus, js: JetStream) -> None:
        """Read by *js*; wake up by *bus*."""
        self._bus = bus
        self._js = js
        self._ring: deque[FeedEvent] = deque(maxlen=RING_EVENTS_MAX)
        self._after = 0
        """Everything behind this sequence is in the ring or was pushed out of it."""
        self._begins = 0
        """The ring holds everything after this sequence."""
        self._wake = asyncio.Event()
        self._news = asyncio.Condition()

    @property
    def last_seq(self) -> int:
        """The newest sequence that was read."""
        return self._after

    async def run(self) -> None:
        """Follow the stream until cancelled; call `open` first.

        A stream that cannot be read for a while makes events late, and ends nobody.
        """
        await self._bus.subscribe("wf.pub.>", self._on_public)
        while True:
            self._wake.clear()
            try:
                messages = await self._js.read(
                    subjects.STREAM_PUB, after_seq=self._after, limit=PAGE_EVENTS
                )
            except Unavailable as error:
                _log.warning("public events are late", extra={"reason": error.message})
                await asyncio.sleep(IDLE_LOOK_S)
                continue
            if messages:
                await self._take(messages)
                continue
            try:
                async with asyncio.timeout(IDLE_LOOK_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def open(self) -> None:
        """Begin at the present end of the stream."""
        self._after = (await self._js.stream_state(subjects.STREAM_PUB)).last_seq
        self._begins = self._after

    async def follow(
        self, tenant: str, *, after_seq: int | None
    ) -> AsyncGenerator[FeedEvent, None]:
        """Yield *tenant*'s events after *after_seq* (None: from now on), for ever.

        Raises:
            Resync: As `page`.

        """
        cursor = self._after if after_seq is None else after_seq
        while True:
            begins = self._begins
            page = await self.page(tenant, after_seq=cursor, limit=PAGE_EVENTS)
            for event in page:
                cursor = event.seq
                yield event
            if page:
                continue
            # Nothing of this tenant stands between the cursor and the ring.
            cursor = max(cursor, begins)
            async with self._news:
                if not self._has_news(tenant, cursor):
                    await self._news.wait()

    async def page(self, tenant: str, *, after_seq: int, limit: int) -> list[FeedEvent]:
        """Return *tenant*'s next events after *after_seq*.

        Raises:
            Resync: Some events after *after_seq* are not kept any more, or there never was so
                late an event: the stream is another one than the cursor was made for.

        """
        if self._begins <= after_seq <= self._after:
            return self._from_ring(tenant, after_seq)[:limit]
        state = await self._js.stream_state(subjects.STREAM_PUB)
        if after_seq > state.last_seq:
            raise Resync("too_new", state.first_seq)
        if after_seq < state.first_seq - 1:
            raise Resync("too_old", state.first_seq)
        messages = await self._js.read(
            subjects.STREAM_PUB,
            after_seq=after_seq,
            subject_filter=f"wf.pub.{tenant}.>",
            limit=limit,
        )
        return [_event(message) for message in messages]

    async def wait(self, tenant: str, *, after_seq: int, wait_s: float) -> None:
        """Return once *tenant* has an event after *after_seq*, or after *wait_s*."""
        try:
            async with asyncio.timeout(wait_s), self._news:
                await self._news.wait_for(lambda: self._has_news(tenant, after_seq))
        except TimeoutError:
            return

    def _from_ring(self, tenant: str, after_seq: int) -> list[FeedEvent]:
        # From the new end, because a subscriber who keeps up looks at the last few of thousands.
        found: list[FeedEvent] = []
        for event in reversed(self._ring):
            if event.seq <= after_seq:
                break
            if event.tenant == tenant:
                found.append(event)
        found.reverse()
        return found

    def _has_news(self, tenant: str, cursor: int) -> bool:
        if cursor < self._begins:
            return True
        for event in reversed(self._ring):
            if event.seq <= cursor:
                return False
            if event.tenant == tenant:
                return True
        return False

    async def _on_public(self, _message: BusMessage) -> None:
        self._wake.set()

    async def _take(self, messages: list[StoredMessage]) -> None:
        for message in messages:
            if len(self._ring) == RING_EVENTS_MAX:
                self._begins = self._ring[0].seq
            self._ring.append(_event(message))
            self._after = message.seq
        async with self._news:
            self._news.notify_all()


def _event(message: StoredMessage) -> FeedEvent:
    _wf, _pub, tenant, entity, participle, _id = message.subject.split(".", 5)
    type_ = f"{entity}.{participle}"
    headers = message.headers
    body = {
        "specversion": headers.get("ce-specversion", "1.0"),
        "id": str(message.seq),
        "seq": message.seq,
        "type": headers.get("ce-type", type_),
        "source": headers.get("ce-source", ""),
        "subject": headers.get("ce-subject", ""),
        "time": headers.get("ce-time", ""),
        "data": json.loads(message.body),
    }
    return FeedEvent(message.seq, tenant, type_, json.dumps(body, separators=(",", ":")).encode())
