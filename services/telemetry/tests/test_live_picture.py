"""What telemetry keeps of samples, shows to Prometheus and answers, without a bus."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from whaleflux.common.bus import BusMessage
from whaleflux.common.contracts.telemetry import GpuSample, GpusRequest, NodeSample
from whaleflux.common.errors import Refused, Unavailable
from whaleflux.telemetry.shell.live import Reading
from whaleflux.telemetry.shell.metrics import GpuCollector
from whaleflux.telemetry.shell.service import Service
from whaleflux.telemetry.shell.settings import PENDING_MAX, STALE_AFTER_S


class SetClock:
    def __init__(self) -> None:
        self.at_s = 1000.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.at_s, UTC)

    def boottime_s(self) -> float:
        return self.at_s


class Kept:
    """A ring that can be out of reach."""

    def __init__(self) -> None:
        self.reachable = True
        self.readings: list[Reading] = []

    async def write(self, readings: Sequence[Reading]) -> None:
        if not self.reachable:
            raise Unavailable("the cache is down")
        self.readings += readings

    def forget(self, now_s: float) -> None:
        pass


class World:
    def __init__(self) -> None:
        self.clock, self.ring = SetClock(), Kept()
        self.told: list[bool] = []
        self.service = Service(
            ring=self.ring, clock=self.clock, on_cache=lambda ok, _detail: self.told.append(ok)
        )
        self.registry = CollectorRegistry()
        self.registry.register(GpuCollector(self.service.live, self.clock.boottime_s))

    async def hear(self, node: str, *gpus: GpuSample, subject: str = "", **more: Any) -> None:
        fields = {"simulated": True, "at": self.clock.now(), **more}
        sample = NodeSample(node_id=node, gpus=gpus, **fields)
        body = sample.model_dump_json().encode()
        await self.service.hear(BusMessage(subject or f"wf.smp.{node}", body, {}, ""))

    async def ask(self, **question: Any) -> dict[str, Any]:
        body = GpusRequest(**question).model_dump_json().encode() if question else b""
        message = BusMessage("wf.qry.telemetry.gpus", body, {}, "_INBOX.1")
        answer: dict[str, Any] = json.loads(await self.service.gpus(message))
        return answer

    def lines(self, name: str) -> list[str]:
        text = generate_latest(self.registry).decode()
        return [line for line in text.splitlines() if line.startswith(name)]


@pytest.fixture
def world() -> World:
    return World()


def gpu(uuid: str = "GPU-0", index: int = 0, **more: Any) -> GpuSample:
    return GpuSample(index=index, uuid=uuid, type="H100", **more)


async def test_a_gpu_is_shown_with_its_node_and_marked_simulated(world: World) -> None:
    await world.hear("n0", gpu(utilisation_pct=97, run_id="r"))
    (item,) = (await world.ask())["items"]
    assert item["uuid"] == "GPU-0"
    assert item["node_id"] == "n0"
    assert item["simulated"] is True
    assert item["run_id"] == "r"
    assert item["power_w"] is None
    assert datetime.fromisoformat(item["at"]) == world.clock.now()


async def test_a_sample_of_another_node_than_its_subject_says_is_not_kept(world: World) -> None:
    await world.hear("n0", gpu(), subject="wf.smp.n1")
    assert (await world.ask())["items"] == []


async def test_a_node_cannot_speak_for_a_gpu_of_another(world: World) -> None:
    await world.hear("n0", gpu(utilisation_pct=50))
    await world.hear("n1", gpu(utilisation_pct=0))
    (item,) = (await world.ask())["items"]
    assert (item["node_id"], item["utilisation_pct"]) == ("n0", 50)


async def test_a_card_that_was_moved_is_shown_once_its_old_figures_are_stale(world: World) -> None:
    await world.hear("n0", gpu())
    world.clock.at_s += STALE_AFTER_S + 1
    await world.hear("n1", gpu())
    assert [item["node_id"] for item in (await world.ask())["items"]] == ["n1"]


async def test_an_unreadable_sample_harms_nobody(world: World) -> None:
    await world.service.hear(BusMessage("wf.smp.n0", b"{", {}, ""))
    await world.hear("n0", gpu())
    assert len((await world.ask())["items"]) == 1


async def test_dashboards_find_the_names_and_labels_they_know(world: World) -> None:
    await world.hear("n0", gpu(utilisation_pct=97, memory_used_mib=4, memory_total_mib=10))
    await world.hear("n1", gpu("GPU-9", 3, utilisation_pct=0), simulated=False)
    assert world.lines("DCGM_FI_DEV_GPU_UTIL") == [
        'DCGM_FI_DEV_GPU_UTIL{Hostname="n0",UUID="GPU-0",device="nvidia0",gpu="0",'
        'modelName="H100",simulated="true"} 97.0',
        'DCGM_FI_DEV_GPU_UTIL{Hostname="n1",UUID="GPU-9",device="nvidia3",gpu="3",'
        'modelName="H100",simulated="false"} 0.0',
    ]
    assert [line.rpartition(" ")[2] for line in world.lines("DCGM_FI_DEV_FB_FREE")] == ["6.0"]


async def test_what_is_unknown_is_absent_and_never_zero(world: World) -> None:
    await world.hear("n0", gpu(utilisation_pct=1))
    assert world.lines("DCGM_FI_DEV_GPU_TEMP{") == []
    assert world.lines("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{") == []
    assert world.lines("DCGM_FI_DEV_FB_FREE{") == []


async def test_stale_gpus_vanish_from_metrics_and_answers(world: World) -> None:
    await world.hear("n0", gpu(utilisation_pct=1))
    world.clock.at_s += STALE_AFTER_S + 1
    assert world.lines("DCGM_FI_DEV_GPU_UTIL{") == []
    assert (await world.ask())["items"] == []
    world.service.live.forget_stale(world.clock.boottime_s())
    assert list(world.service.live.nodes(world.clock.boottime_s())) == []


async def test_a_node_that_cannot_measure_is_seen_as_such(world: World) -> None:
    await world.hear("n0", gpu(), probe_error="nvml stuck")
    await world.hear("n1", gpu("GPU-1"))
    assert world.lines("whaleflux_telemetry_probe_ok") == [
        'whaleflux_telemetry_probe_ok{Hostname="n0"} 0.0',
        'whaleflux_telemetry_probe_ok{Hostname="n1"} 1.0',
    ]


async def test_figures_are_written_together(world: World) -> None:
    await world.hear("n0", gpu("GPU-0"), gpu("GPU-1", 1))
    await world.hear("n1", gpu("GPU-2"))
    assert world.ring.readings == []
    await world.service.flush()
    assert [reading.sample.uuid for reading in world.ring.readings] == ["GPU-0", "GPU-1", "GPU-2"]
    await world.service.flush()
    assert len(world.ring.readings) == 3
    assert world.told == [True]


async def test_a_cache_that_is_down_loses_its_figures_and_nothing_else(world: World) -> None:
    world.ring.reachable = False
    await world.hear("n0", gpu())
    await world.service.flush()
    assert world.told == [False]
    assert len((await world.ask())["items"]) == 1
    world.ring.reachable = True
    await world.hear("n0", gpu())
    await world.service.flush()
    assert world.told == [False, True]
    assert len(world.ring.readings) == 1


async def test_what_waits_is_bounded(world: World) -> None:
    cards = [gpu(f"GPU-{i}", i) for i in range(1024)]
    for _ in range(PENDING_MAX // 1024 + 3):
        await world.hear("n0", *cards)
    await world.service.flush()
    assert len(world.ring.readings) == PENDING_MAX


async def test_a_large_fleet_is_answered_in_pages_that_the_bus_takes(world: World) -> None:
    for node in range(500):
        await world.hear(f"n{node}", *(gpu(f"GPU-{node:03}-{i}", i) for i in range(16)))
    seen: list[str] = []
    page = await world.ask()
    while True:
        assert len(json.dumps(page)) < 1_048_576
        seen += [item["uuid"] for item in page["items"]]
        if page["next"] is None:
            break
        page = await world.ask(after=page["next"])
    assert len(seen) == len(set(seen)) == 8_000


async def test_one_node_may_be_asked_about(world: World) -> None:
    await world.hear("n0", gpu("GPU-0"))
    await world.hear("n1", gpu("GPU-1"))
    assert [i["uuid"] for i in (await world.ask(node_id="n1"))["items"]] == ["GPU-1"]


async def test_a_question_that_cannot_be_read_is_refused(world: World) -> None:
    with pytest.raises(Refused):
        await world.service.gpus(BusMessage("wf.qry.telemetry.gpus", b"[", {}, "_INBOX.1"))
