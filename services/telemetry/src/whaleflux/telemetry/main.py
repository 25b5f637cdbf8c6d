"""Put telemetry together and run it."""

from prometheus_client import REGISTRY

from whaleflux.common.contracts import subjects
from whaleflux.common.runtime import Runtime, run
from whaleflux.common.streams import ensure_streams
from whaleflux.common.valkey_cache import ValkeyCache
from whaleflux.telemetry.shell.cache_ring import CacheRing
from whaleflux.telemetry.shell.metrics import GpuCollector
from whaleflux.telemetry.shell.service import Service
from whaleflux.telemetry.shell.settings import TelemetrySettings

SERVICE = "telemetry"


async def serve(runtime: Runtime) -> None:
    """Wire telemetry to the bus and the cache, and keep the live picture."""
    await ensure_streams(runtime.js, [subjects.STREAM_SAMPLES])
    cache = await ValkeyCache.connect(runtime.settings.valkey_url)
    service = Service(
        ring=CacheRing(cache),
        clock=runtime.clock,
        on_cache=lambda ok, detail: runtime.health.set("cache", ok, detail),
    )
    REGISTRY.register(GpuCollector(service.live, runtime.clock.boottime_s))
    try:
        # Heard as they pass, not read from the stream: a sample that was missed is old news.
        await runtime.bus.subscribe(subjects.sample("*"), service.hear, queue=SERVICE)
        await runtime.bus.answer(subjects.question(SERVICE, "gpus"), service.gpus, queue=SERVICE)
        await service.run()
    finally:
        await cache.close()


def main() -> None:
    """Run until told to stop."""
    run(SERVICE, serve, TelemetrySettings())
