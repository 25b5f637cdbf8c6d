"""Simulated GPUs: marked, plausible, repeatable."""

from datetime import UTC, datetime, timedelta

import pytest

from whaleflux.agent.shell.devices import open_probe
from whaleflux.common.errors import Refused


class SetClock:
    def __init__(self) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at

    def boottime_s(self) -> float:
        return self.at.timestamp()


async def test_a_simulated_node_has_the_gpus_that_were_asked_for() -> None:
    probe = open_probe("simulated:H200x8", "node-1", clock=SetClock())
    gpus = await probe.inventory()
    assert probe.simulated
    assert [gpu.uuid for gpu in gpus] == [f"SIM-node-1-{i}" for i in range(8)]
    assert {(gpu.type, gpu.memory_mib) for gpu in gpus} == {("H200", 143_771)}


async def test_types_may_be_mixed_and_written_in_any_case() -> None:
    probe = open_probe("simulated:h100x2,RTX4090x1", "n", clock=SetClock())
    assert [gpu.type for gpu in await probe.inventory()] == ["H100", "H100", "RTX4090"]


@pytest.mark.parametrize(
    ("devices", "named"),
    [
        ("simulated:H201x8", "H200"),
        ("simulated:H200", "<type>x<count>"),
        ("simulated:H200x0", "1 to 64"),
        ("simulated:", "<type>x<count>"),
        ("cuda", "simulated:H200x8"),
        ("nvml:all", "nvml"),
    ],
)
def test_devices_that_cannot_be_read_are_refused_with_the_nearest_right_value(
    devices: str, named: str
) -> None:
    with pytest.raises(Refused) as refusal:
        open_probe(devices, "n", clock=SetClock())
    assert named in refusal.value.message


async def test_a_held_gpu_is_busy_and_a_free_one_idles() -> None:
    clock = SetClock()
    probe = open_probe("simulated:H200x2", "n", clock=clock)
    for _ in range(120):
        clock.at += timedelta(seconds=1)
        sample = await probe.sample({1: "wl_a-main-0"})
        free, held = sample.gpus
        assert sample.simulated
        assert (free.run_id, held.run_id) == (None, "wl_a-main-0")
        assert free.utilisation_pct == 0
        assert held.utilisation_pct is not None
        assert 70 <= held.utilisation_pct <= 100
        assert free.memory_used_mib is not None
        assert held.memory_used_mib is not None
        assert free.memory_used_mib < 512 < held.memory_used_mib < 143_771
        assert free.power_w is not None
        assert held.power_w is not None
        assert free.power_w < 100 < held.power_w <= 700
        assert held.temperature_c is not None
        assert held.temperature_c < 75


async def test_figures_change_with_time_but_are_the_same_on_every_machine() -> None:
    clock = SetClock()
    one = await open_probe("simulated:A100x1", "n", clock=clock).sample({0: "r"})
    two = await open_probe("simulated:A100x1", "n", clock=clock).sample({0: "r"})
    clock.at += timedelta(seconds=11)
    later = await open_probe("simulated:A100x1", "n", clock=clock).sample({0: "r"})
    assert one == two
    assert one.gpus[0].power_w != later.gpus[0].power_w


async def test_a_card_without_ecc_does_not_claim_to_have_no_errors() -> None:
    probe = open_probe("simulated:RTX4090x1,H100x1", "n", clock=SetClock())
    assert [gpu.ecc_uncorrected for gpu in (await probe.sample()).gpus] == [None, 0]


async def test_memory_is_free_once_a_member_has_exited() -> None:
    probe = open_probe("simulated:H100x1", "n", clock=SetClock())
    await probe.sample({0: "r"})
    used_mib = await probe.memory_used_mib(0)
    assert used_mib is not None
    assert used_mib < 512
    assert await probe.memory_used_mib(7) is None
    await probe.close()
