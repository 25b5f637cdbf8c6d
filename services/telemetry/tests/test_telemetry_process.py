"""Telemetry on a real NATS and a real Valkey."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from whaleflux.common.bus import Bus
from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.telemetry import GpuSample, NodeSample
from whaleflux.common.errors import Unavailable
from whaleflux.common.testing.servers import NatsServer
from whaleflux.common.valkey_cache import ValkeyCache
from whaleflux.telemetry.shell.cache_ring import CacheRing, newest_key, ring_key
from whaleflux.telemetry.shell.live import Live
from whaleflux.telemetry.shell.settings import RING_LENGTH

pytestmark = pytest.mark.integration

DEADLINE_S = 30.0


@pytest.fixture
async def cache(valkey_server: str) -> AsyncIterator[ValkeyCache]:
    cache = await ValkeyCache.connect(valkey_server)
    await cache.delete_prefix("tel:")
    yield cache
    await cache.close()


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    bus = await nats_server.connect()
    yield bus
    await bus.close()


@pytest.fixture
def telemetry(nats_server: NatsServer, valkey_server: str, tmp_path: Path) -> Iterator[None]:
    env = {
        **os.environ,
        "WHALEFLUX_NATS_URL": nats_server.url,
        "WHALEFLUX_VALKEY_URL": valkey_server,
        "WHALEFLUX_STATE_DIR": str(tmp_path),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "whaleflux.telemetry"], env=env, stdout=subprocess.DEVNULL
    )
    yield
    process.terminate()
    assert process.wait(20) == 0


def sample(node: str, load_pct: float = 97.0) -> NodeSample:
    gpus = tuple(
        GpuSample(index=i, uuid=f"SIM-{node}-{i}", type="H200", utilisation_pct=load_pct)
        for i in range(2)
    )
    return NodeSample(node_id=node, at=datetime.now(UTC), simulated=True, gpus=gpus)


async def ask(bus: Bus) -> dict[str, Any]:
    try:
        reply = await bus.request("wf.qry.telemetry.gpus", b"", timeout_s=1.0)
    except Unavailable:
        return {"items": []}
    answer: dict[str, Any] = json.loads(reply.body)
    return answer


async def test_what_a_node_sends_is_answered_and_stands_in_the_cache(
    telemetry: None, bus: Bus, cache: ValkeyCache
) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while len((await ask(bus))["items"]) < 2:
            message = sample("n0").model_dump_json().encode()
            await bus.publish(subjects.sample("n0"), message)
            await asyncio.sleep(0.05)
        while await cache.get(newest_key("SIM-n0-1")) is None:
            await asyncio.sleep(0.05)
    newest = await cache.get(newest_key("SIM-n0-1"))
    assert newest is not None
    item = json.loads(newest)
    assert (item["node_id"], item["simulated"], item["utilisation_pct"]) == ("n0", True, 97.0)
    assert item["temperature_c"] is None
    assert json.loads((await cache.list_of(ring_key("SIM-n0-1")))[0]) == item


async def test_the_ring_keeps_the_last_two_minutes_newest_first(cache: ValkeyCache) -> None:
    live, ring = Live(), CacheRing(cache)
    for second in range(RING_LENGTH + 30):
        await ring.write(live.take(sample("n0", float(second)), float(second)))
    loads = [
        json.loads(raw)["utilisation_pct"] for raw in await cache.list_of(ring_key("SIM-n0-0"))
    ]
    assert loads == [float(s) for s in range(RING_LENGTH + 29, 29, -1)]
    raw = await cache.get(newest_key("SIM-n0-0"))
    assert raw is not None
    assert json.loads(raw)["utilisation_pct"] == RING_LENGTH + 29
    for key, seconds in ((newest_key("SIM-n0-0"), 30), (ring_key("SIM-n0-0"), 3_600)):
        left_s = await cache._client.ttl(key)
        assert seconds - 20 <= left_s <= seconds
