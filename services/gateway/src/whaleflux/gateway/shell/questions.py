"""Public events for subscribers on NATS: a long poll by cursor, for each tenant's account."""

import asyncio
import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from whaleflux.common.bus import Bus, BusMessage
from whaleflux.common.contracts import subjects
from whaleflux.gateway.shell.feed import Feed, TooOld
from whaleflux.gateway.shell.settings import LONG_POLL_S_MAX

ANSWER_BYTES_MAX = 900_000
"""An answer is one bus message of at most 1 MiB."""


class EventsRequest(BaseModel):
    """Ask for events after a cursor."""

    model_config = ConfigDict(extra="forbid")

    after: int | None = Field(default=None, ge=0)
    """Sequence of the last event seen; absent: only where the end is now."""
    limit: int = Field(default=100, ge=1, le=1000)
    wait_s: float = Field(default=0.0, ge=0, le=LONG_POLL_S_MAX)


class Questions:
    """Answers `wf.qry.gateway.events.<tenant>`."""

    def __init__(self, bus: Bus, feed: Feed, group: asyncio.TaskGroup) -> None:
        """Answer from *feed*; every question waits in a task of *group*."""
        self._bus = bus
        self._feed = feed
        self._group = group

    async def open(self) -> None:
        """Begin to answer."""
        subject = subjects.question("gateway", "events", of="*")
        await self._bus.subscribe(subject, self._on_question, queue="gateway")

    async def _on_question(self, message: BusMessage) -> None:
        if message.reply:
            self._group.create_task(self._answer(message))

    async def _answer(self, message: BusMessage) -> None:
        tenant = message.subject.rpartition(".")[2]
        try:
            request = EventsRequest.model_validate_json(message.body or b"{}")
        except ValidationError as error:
            body: dict[str, Any] = {"error": "invalid_request", "detail": str(error)[:500]}
        else:
            body = await self._events(tenant, request)
        await self._bus.publish(message.reply, json.dumps(body, separators=(",", ":")).encode())

    async def _events(self, tenant: str, request: EventsRequest) -> dict[str, Any]:
        if request.after is None:
            return {"events": [], "last": self._feed.last_seq}
        try:
            found = await self._feed.page(tenant, after_seq=request.after, limit=request.limit)
            if not found and request.wait_s:
                await self._feed.wait(tenant, after_seq=request.after, wait_s=request.wait_s)
                found = await self._feed.page(tenant, after_seq=request.after, limit=request.limit)
        except TooOld as error:
            return {"error": "too_old", "first_seq": error.first_seq}
        events: list[Any] = []
        size = 0
        last = request.after
        for event in found:
            size += len(event.body)
            if size > ANSWER_BYTES_MAX:
                break
            events.append(json.loads(event.body))
            last = event.seq
        return {"events": events, "last": last}
