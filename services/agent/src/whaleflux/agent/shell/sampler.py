"""Sends what the probe measures, once a second, to whoever listens."""

import asyncio
import logging
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol

from whaleflux.agent.shell.probe import Probe
from whaleflux.common.contracts import subjects
from whaleflux.common.errors import WhalefluxError

SAMPLE_EVERY_S = 1.0
"""Fast enough to see a phase end, slow enough to cost next to nothing."""

_log = logging.getLogger(__name__)


class Publishes(Protocol):
    """The part of the bus that samples go through."""

    @property
    def connected(self) -> bool:
        """Return whether a server is reachable now."""
        ...

    async def publish(self, subject: str, body: bytes) -> None:
        """Send once, without knowing whether anybody hears."""
        ...


async def run_sampler(
    probe: Probe,
    bus: Publishes,
    node_id: str,
    holders: Callable[[], Mapping[int, str]],
    *,
    every_s: float = SAMPLE_EVERY_S,
) -> None:
    """Measure and send until cancelled.

    *holders* tells which run holds each GPU index now. A sample that cannot be sent is dropped:
    the next one is newer. A probe that is slower than *every_s* is not called again to make up.
    """
    loop = asyncio.get_running_loop()
    subject = subjects.sample(node_id)
    # Nodes that start together do not all send in the same instant.
    next_at_s = loop.time() + every_s * (zlib.crc32(node_id.encode()) % 1000) / 1000
    reported: str | None = None
    while True:
        await asyncio.sleep(next_at_s - loop.time())
        next_at_s = max(next_at_s + every_s, loop.time())
        if not bus.connected:
            continue
        sample = await probe.sample(holders())
        if sample.probe_error != reported:
            reported = sample.probe_error
            _log.warning("probe changed its mind", extra={"probe_error": reported})
        try:
            await bus.publish(subject, sample.model_dump_json().encode())
        except WhalefluxError as error:
            _log.debug("sample dropped", extra={"reason": str(error)})
