"""Wakes who waits for a decision as soon as it is in the views, whichever gateway folded it."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from whaleflux.common.bus import Bus, BusMessage
from whaleflux.common.contracts import subjects

NOTICE = subjects.notice("gateway", "decided")


class Decisions:
    """Tells and hears which workloads have just been decided."""

    def __init__(self, bus: Bus) -> None:
        """Speak over *bus*; call `open` to hear."""
        self._bus = bus
        self._expected: dict[str, set[asyncio.Event]] = {}

    async def open(self) -> None:
        """Begin to hear."""
        await self._bus.subscribe(NOTICE, self._on_notice)

    @contextmanager
    def expecting(self, workload_id: str) -> Iterator[asyncio.Event]:
        """Yield what is set whenever the decision on *workload_id* may be in the view."""
        event = asyncio.Event()
        self._expected.setdefault(workload_id, set()).add(event)
        try:
            yield event
        finally:
            self._expected[workload_id].discard(event)
            if not self._expected[workload_id]:
                del self._expected[workload_id]

    async def tell(self, workload_ids: Sequence[str]) -> None:
        """Say to every gateway that these are decided and in the view."""
        if workload_ids:
            await self._bus.publish(NOTICE, json.dumps(workload_ids).encode())

    async def _on_notice(self, message: BusMessage) -> None:
        for workload_id in json.loads(message.body):
            for event in self._expected.get(workload_id, ()):
                event.set()
