"""Public events for subscribers on NATS: a long poll by cursor, for each tenant's account."""

import asyncio
import json
import logging
from collections import Counter
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from whaleflux.common.bus import Bus, BusMessage
from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.explain import explain_validation
from whaleflux.common.errors import Unavailable
from whaleflux.gateway.shell.feed import Feed, Resync
from whaleflux.gateway.shell.settings import LONG_POLL_S_MAX, QUESTIONS_PER_TENANT_MAX

ANSWER_BYTES_MAX = 900_000
"""An answer is one bus message of at most 1 MiB."""

_log = logging.getLogger(__name__)


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
        self._waiting: Counter[str] = Counter()

    async def open(self) -> None:
        """Begin to answer."""
        subject = subjects.question("gateway", "events", of="*")
        await self._bus.subscribe(subject, self._on_question, queue="gateway")

    async def _on_question(self, message: BusMessage) -> None:
        if not message.reply:
            return
        tenant = message.subject.rpartition(".")[2]
        if self._waiting[tenant] >= QUESTIONS_PER_TENANT_MAX:
            await self._say(message, {"error": "too_many", "limit": QUESTIONS_PER_TENANT_MAX})
            return
        self._waiting[tenant] += 1
        self._group.create_task(self._answer(message, tenant))

    async def _answer(self, message: BusMessage, tenant: str) -> None:
        try:
            await self._say(message, await self._found(message, tenant))
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]

    async def _found(self, message: BusMessage, tenant: str) -> dict[str, Any]:
        try:
            request = EventsRequest.model_validate_json(message.body or b"{}")
            return await self._events(tenant, request)
        except ValidationError as error:
            wrong = explain_validation(error, EventsRequest)
            detail = "; ".join(f"{p.pointer.strip('/') or 'question'}: {p.detail}" for p in wrong)
            return {"error": "invalid_request", "detail": detail}
        except Unavailable as error:
            return {"error": "unavailable", "detail": error.message}

    async def _say(self, message: BusMessage, body: dict[str, Any]) -> None:
        try:
            await self._bus.publish(message.reply, json.dumps(body, separators=(",", ":")).encode())
        except Unavailable as error:
            # Whoever asked asks again: its question has a deadline of its own.
            _log.info("a question stays without an answer", extra={"reason": error.message})

    async def _events(self, tenant: str, request: EventsRequest) -> dict[str, Any]:
        if request.after is None:
            return {"events": [], "last": self._feed.last_seq}
        try:
            found = await self._feed.page(tenant, after_seq=request.after, limit=request.limit)
            if not found and request.wait_s:
                await self._feed.wait(tenant, after_seq=request.after, wait_s=request.wait_s)
                found = await self._feed.page(tenant, after_seq=request.after, limit=request.limit)
        except Resync as error:
            return {"error": error.code, "first_seq": error.first_seq}
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
