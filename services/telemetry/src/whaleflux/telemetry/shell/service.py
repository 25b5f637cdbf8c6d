"""The loop: hear samples, keep the newest, write them to the cache in batches, answer questions."""

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from whaleflux.common.bus import BusMessage
from whaleflux.common.clock import Clock
from whaleflux.common.contracts.telemetry import GpusRequest, NodeSample
from whaleflux.common.errors import Refused, Unavailable
from whaleflux.telemetry.shell import metrics
from whaleflux.telemetry.shell.live import Live, Reading
from whaleflux.telemetry.shell.settings import (
    FLUSH_EVERY_S,
    PAGE_BYTES_MAX,
    PENDING_MAX,
    SWEEP_EVERY_S,
    WRITE_READINGS_MAX,
)

_log = logging.getLogger(__name__)
_samples: TypeAdapter[NodeSample] = TypeAdapter(NodeSample)


class Ring(Protocol):
    """Where readings are kept for other processes."""

    async def write(self, readings: Sequence[Reading]) -> None:
        """Keep *readings*, oldest first.

        Raises:
            Unavailable: The cache cannot be reached.

        """
        ...

    def forget(self, now_s: float) -> None:
        """Let go of what is older than anything still kept."""
        ...


class Service:
    """One telemetry process."""

    def __init__(
        self, *, ring: Ring, clock: Clock, on_cache: Callable[[bool, str], None] | None = None
    ) -> None:
        """Write to *ring*; tell *on_cache* whether that works, and why not."""
        self.live = Live()
        self._ring = ring
        self._clock = clock
        self._on_cache = on_cache
        self._pending: list[Reading] = []

    async def hear(self, message: BusMessage) -> None:
        """Take in one node's sample."""
        try:
            sample = _samples.validate_json(message.body, extra="ignore")
        except ValidationError:
            metrics.MESSAGES.labels("unreadable").inc()
            _log.warning("unreadable sample", extra={"subject": message.subject})
            return
        if message.subject.rpartition(".")[2] != sample.node_id:
            metrics.MESSAGES.labels("wrong_node").inc()
            _log.warning(
                "sample of another node",
                extra={"subject": message.subject, "node_id": sample.node_id},
            )
            return
        metrics.MESSAGES.labels("kept").inc()
        taken = self.live.take(sample, self._clock.boottime_s())
        room = PENDING_MAX - len(self._pending)
        self._pending += taken[:room]
        if len(taken) > room:
            metrics.DROPPED.inc(len(taken) - room)

    async def flush(self) -> None:
        """Write what is waiting; what cannot be written is dropped, for newer figures follow."""
        pending, self._pending = self._pending, []
        for start in range(0, len(pending), WRITE_READINGS_MAX):
            batch = pending[start : start + WRITE_READINGS_MAX]
            try:
                await self._ring.write(batch)
            except Unavailable as error:
                metrics.DROPPED.inc(len(pending) - start)
                self._tell(ok=False, detail=error.message)
                return
            metrics.WRITTEN.inc(len(batch))
        if pending:
            self._tell(ok=True, detail="")

    async def run(self) -> None:
        """Flush and forget until cancelled."""
        loop = asyncio.get_running_loop()
        forget_at_s = loop.time() + SWEEP_EVERY_S
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            await self.flush()
            if loop.time() >= forget_at_s:
                forget_at_s = loop.time() + SWEEP_EVERY_S
                self.live.forget_stale(self._clock.boottime_s())
                self._ring.forget(self._clock.boottime_s())

    async def gpus(self, message: BusMessage) -> bytes:
        """Answer `wf.qry.telemetry.gpus`: `{"items": [...], "next": null}`.

        `next` is given when more GPUs follow; asking again with `after` set to it returns those.
        """
        try:
            request = GpusRequest.model_validate_json(message.body or b"{}", extra="ignore")
        except ValidationError as error:
            raise Refused(f"the question cannot be read: {error}", code="bad_request") from error
        items: list[bytes] = []
        size = 0
        last = ""
        for reading in self.live.readings(self._clock.boottime_s()):
            if reading.sample.uuid <= request.after:
                continue
            if request.node_id not in (None, reading.node_id):
                continue
            size += len(reading.body) + 1
            if size > PAGE_BYTES_MAX:
                return _page(items, last)
            items.append(reading.body)
            last = reading.sample.uuid
        return _page(items, None)

    def _tell(self, *, ok: bool, detail: str) -> None:
        if self._on_cache is not None:
            self._on_cache(ok, detail)


def _page(items: Sequence[bytes], after: str | None) -> bytes:
    return b'{"items":[' + b",".join(items) + b'],"next":' + json.dumps(after).encode() + b"}"
