"""The live ring in Valkey: the newest figures of each GPU, and those of the last minutes."""

from collections.abc import Sequence

from whaleflux.common.valkey_cache import Cache, Op
from whaleflux.telemetry.shell.live import Reading
from whaleflux.telemetry.shell.settings import RING_EXPIRES_S, RING_LENGTH, STALE_AFTER_S


def newest_key(uuid: str) -> str:
    """Return where the newest figures of a GPU stand, as JSON."""
    return f"tel:gpu:{uuid}"


def ring_key(uuid: str) -> str:
    """Return where the last figures of a GPU stand: a list of JSON, newest first."""
    return f"tel:ring:{uuid}"


class CacheRing:
    """Implements `service.Ring`."""

    def __init__(self, cache: Cache) -> None:
        """Write to *cache*."""
        self._cache = cache
        self._expires_at_s: dict[str, float] = {}

    async def write(self, readings: Sequence[Reading]) -> None:
        """Keep *readings*, oldest first, in one round trip.

        Raises:
            Unavailable: The cache cannot be reached.

        """
        newest = {reading.sample.uuid: reading for reading in readings}
        ops = [
            Op("set", newest_key(uuid), reading.body, STALE_AFTER_S)
            for uuid, reading in newest.items()
        ]
        ops += [
            Op("lpush_trim", ring_key(reading.sample.uuid), reading.body, RING_LENGTH)
            for reading in readings
        ]
        renewed = {
            uuid: reading.heard_at_s + RING_EXPIRES_S
            for uuid, reading in newest.items()
            if self._is_due(uuid, reading.heard_at_s)
        }
        ops += [Op("expire", ring_key(uuid), limit=RING_EXPIRES_S) for uuid in renewed]
        await self._cache.apply(ops)
        self._expires_at_s.update(renewed)

    def forget(self, now_s: float) -> None:
        """Let go of what is known about rings that have expired."""
        for uuid in [u for u, at_s in self._expires_at_s.items() if at_s < now_s]:
            del self._expires_at_s[uuid]

    def _is_due(self, uuid: str, now_s: float) -> bool:
        """Return whether half of the ring's life is over: one command less for most readings."""
        return self._expires_at_s.get(uuid, 0.0) - now_s < RING_EXPIRES_S / 2
