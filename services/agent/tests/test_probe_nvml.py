"""NVIDIA cards behind a child process, with a stand-in for the library's device calls.

The stand-in is the real `pynvml` with those of its functions replaced that the child calls; what
each card says stands in a JSON file, so that a test can change it while the child runs.
"""

import asyncio
import inspect
import json
import os
import runpy
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from whaleflux.agent.shell.nvml_probe import NvmlProbe, type_of
from whaleflux.common.clock import SystemClock

LOST, RESET, UNKNOWN = 15, 16, 999
UNSUPPORTED, DENIED, NO_FUNCTION = 3, 4, 13

STAND_IN = """
import importlib.util, json, os, sys, time, types

spec = importlib.util.spec_from_file_location("real_pynvml", os.environ["REAL_PYNVML"])
_real = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = _real
spec.loader.exec_module(_real)
globals().update({k: v for k, v in vars(_real).items() if not k.startswith("__")})

def _world():
    with open(os.environ["STAND_IN_WORLD"]) as file:
        return json.load(file)

def _say(handle, key, default):
    value = _world()["gpus"][handle].get(key, default)
    if value == "hang":
        time.sleep(3600)
    if value == "crash":
        os._exit(3)
    if isinstance(value, dict):
        raise NVMLError(value["error"])
    return value

def nvmlInit():
    if "init_error" in _world():
        raise NVMLError(_world()["init_error"])

def nvmlDeviceGetCount():
    print("noise from a library", flush=True)
    return len(_world()["gpus"])

def nvmlDeviceGetHandleByIndex(index):
    _say(index, "handle", None)
    return index

def nvmlDeviceGetUUID(handle):
    return _say(handle, "uuid", f"GPU-{handle}")

def nvmlDeviceGetName(handle):
    return _say(handle, "name", "NVIDIA H100 80GB HBM3")

def nvmlDeviceGetUtilizationRates(handle):
    return types.SimpleNamespace(gpu=_say(handle, "utilisation", 97), memory=1)

def nvmlDeviceGetMemoryInfo(handle, version=None):
    used = _say(handle, "memory_v2" if version else "memory", 4 * 2**20)
    return types.SimpleNamespace(used=used, total=81559 * 2**20)

def nvmlDeviceGetTemperature(handle, sensor):
    return _say(handle, "temperature", 41)

def nvmlDeviceGetPowerUsage(handle):
    return _say(handle, "power", 312500)

def nvmlDeviceGetEnforcedPowerLimit(handle):
    return _say(handle, "power_limit", 700000)

def nvmlDeviceGetClockInfo(handle, type):
    return _say(handle, "clock", 1980)

def nvmlDeviceGetTotalEccErrors(handle, errorType, counterType):
    return _say(handle, "ecc", 0)
"""


class World:
    """What the stand-in's cards say."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.set([{}, {}])

    def set(self, gpus: list[dict[str, Any]], **more: Any) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps({"gpus": gpus, **more}))
        fresh.replace(self._path)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    (tmp_path / "pynvml.py").write_text(STAND_IN)
    assert pynvml.__file__ is not None
    monkeypatch.setenv("REAL_PYNVML", pynvml.__file__)
    monkeypatch.setenv("STAND_IN_WORLD", str(tmp_path / "world.json"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return World(tmp_path / "world.json")


Make = Callable[..., NvmlProbe]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    probes: list[NvmlProbe] = []

    def make_one(**limits: float) -> NvmlProbe:
        probes.append(NvmlProbe("n0", clock=SystemClock(), **limits))
        return probes[-1]

    yield make_one
    for probe in probes:
        await probe.close()
        await _until(lambda probe=probe: probe.abandoned == 0)  # type: ignore[misc]  # a default binds the loop variable


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_cards_are_found_and_measured(world: World, make: Make) -> None:
    probe = make()
    gpus = await probe.inventory()
    assert [(g.index, g.uuid, g.type, g.memory_mib) for g in gpus] == [
        (0, "GPU-0", "H100", 81_559),
        (1, "GPU-1", "H100", 81_559),
    ]
    sample = await probe.sample({1: "wl_a-main-0"})
    assert not sample.simulated
    assert sample.probe_error is None
    assert sample.gpus[1].model_dump() == {
        "index": 1,
        "uuid": "GPU-1",
        "type": "H100",
        "utilisation_pct": 97.0,
        "memory_used_mib": 4,
        "memory_total_mib": 81_559,
        "temperature_c": 41.0,
        "power_w": 312.5,
        "power_limit_w": 700.0,
        "sm_clock_mhz": 1980,
        "ecc_uncorrected": 0,
        "run_id": "wl_a-main-0",
    }
    assert await probe.memory_used_mib(0) == 4


async def test_what_a_card_cannot_say_is_unknown_and_no_fault(world: World, make: Make) -> None:
    world.set(
        [
            {
                "ecc": {"error": UNSUPPORTED},
                "power": {"error": DENIED},
                "clock": {"error": NO_FUNCTION},
                "memory_v2": {"error": NO_FUNCTION},
                "memory": 600 * 2**20,
            }
        ]
    )
    probe = make()
    sample = await probe.sample()
    (gpu,) = sample.gpus
    assert (gpu.ecc_uncorrected, gpu.power_w, gpu.sm_clock_mhz) == (None, None, None)
    assert gpu.memory_used_mib == 600
    assert sample.probe_error is None
    capabilities = probe.capabilities[0]
    assert capabilities["ecc_uncorrected"] == "unsupported"
    assert capabilities["power_w"] == "denied"
    assert capabilities["temperature_c"] == "supported"


@pytest.mark.parametrize(("code", "words"), [(LOST, "is lost"), (RESET, "needs a reset")])
async def test_a_lost_card_is_reported_and_the_others_go_on(
    world: World, make: Make, code: int, words: str
) -> None:
    probe = make()
    await probe.inventory()
    world.set([{}, {"temperature": {"error": code}, "power": {"error": code}}])
    sample = await probe.sample()
    assert sample.probe_error == f"gpu 1 {words}"
    assert sample.gpus[0].temperature_c == 41
    assert sample.gpus[1].temperature_c is None
    world.set([{}, {}])
    assert (await probe.sample()).probe_error is None


async def test_a_card_that_cannot_be_opened_does_not_hide_the_others(
    world: World, make: Make
) -> None:
    world.set([{"handle": {"error": LOST}}, {}])
    probe = make()
    assert [gpu.index for gpu in await probe.inventory()] == [1]
    assert (await probe.sample()).probe_error == "gpu 0 is lost"


async def test_an_unexplained_error_counts_only_when_repeated(world: World, make: Make) -> None:
    probe = make()
    await probe.inventory()
    world.set([{}, {"utilisation": {"error": UNKNOWN}, "ecc": {"error": UNKNOWN}}])
    errors = [(await probe.sample()).probe_error for _ in range(3)]
    assert errors == [None, None, "gpu 1 gives unknown errors"]


async def test_a_stuck_driver_is_reported_in_time_and_its_child_left_behind(
    world: World, make: Make
) -> None:
    probe = make(answer_within_s=0.3, retry_after_s=0.0)
    await probe.inventory()
    world.set([{"temperature": "hang"}, {}])
    sample = await probe.sample({0: "r"})
    assert sample.probe_error == "nvml stuck"
    assert [gpu.uuid for gpu in sample.gpus] == ["GPU-0", "GPU-1"]
    assert [gpu.temperature_c for gpu in sample.gpus] == [None, None]
    assert sample.gpus[0].run_id == "r"
    world.set([{}, {}])
    await _until(lambda: probe.abandoned == 0)
    assert (await probe.sample()).probe_error is None


async def test_no_more_than_two_children_hang_in_the_driver(
    world: World, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[Any] = []
    # A process that hangs in the kernel survives SIGKILL until the driver lets go.
    monkeypatch.setattr("subprocess.Popen.kill", lambda process: killed.append(process))
    probe = make(first_within_s=1.0, answer_within_s=0.3, retry_after_s=0.0)
    world.set([{"temperature": "hang"}])
    try:
        for _ in range(5):
            assert (await probe.sample()).probe_error == "nvml stuck"
        assert len(killed) == 2
        assert probe.abandoned == 2
    finally:
        monkeypatch.undo()
        for process in killed:
            process.kill()
    await _until(lambda: probe.abandoned == 0)


async def test_a_child_that_crashes_is_replaced(world: World, make: Make) -> None:
    probe = make(retry_after_s=0.0)
    await probe.inventory()
    world.set([{"power": "crash"}, {}])
    assert (await probe.sample()).probe_error == "nvml process ended"
    world.set([{}, {}])
    await _until(lambda: probe.abandoned == 0)
    assert (await probe.sample()).probe_error is None


async def test_an_answer_that_comes_after_its_asker_left_is_not_taken_for_the_next(
    world: World, make: Make
) -> None:
    probe = make()
    await probe.inventory()
    asking = asyncio.ensure_future(probe.memory_used_mib(0))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    assert (await probe.sample()).gpus[0].temperature_c == 41


async def test_a_driver_that_comes_later_is_found(world: World, make: Make) -> None:
    world.set([], init_error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    probe = make(retry_after_s=0.0)
    assert (await probe.sample()).probe_error == "no driver"
    world.set([{}])
    await _until(lambda: probe.abandoned == 0)
    assert len((await probe.sample()).gpus) == 1


async def test_the_child_ends_with_the_agent(world: World, make: Make) -> None:
    probe = make()
    await probe.inventory()
    child = probe._child
    assert child is not None
    child._stdin.close()
    await _until(lambda: child.process.poll() is not None)
    assert child.process.returncode == 0


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has a driver")
async def test_a_machine_without_a_driver_says_so_and_lives_on(make: Make) -> None:
    probe = make(retry_after_s=0.0)
    assert await probe.inventory() == ()
    sample = await probe.sample()
    assert sample.probe_error == "no driver"
    assert sample.gpus == ()
    assert await probe.memory_used_mib(0) is None


def test_the_stand_in_has_the_real_library_s_signatures(world: World, tmp_path: Path) -> None:
    stand_in = runpy.run_path(str(tmp_path / "pynvml.py"))
    replaced = {
        name: function
        for name, function in stand_in.items()
        if name.startswith("nvml")
        and inspect.isfunction(function)
        and function.__code__.co_filename == str(tmp_path / "pynvml.py")
    }
    assert len(replaced) == 12
    for name, function in replaced.items():
        real = inspect.signature(getattr(pynvml, name))
        assert list(inspect.signature(function).parameters) == list(real.parameters), name


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIE"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIE"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIE"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A10G", "A10G"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA GeForce RTX 4090 D", "RTX4090D"),
        ("NVIDIA GeForce RTX 3080 Ti", "RTX3080TI"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX4070TISUPER"),
        ("NVIDIA RTX A6000", "RTXA6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000ADA"),
        ("NVIDIA TITAN RTX", "TITAN-RTX"),
        ("  ", "GPU"),
    ],
)
def test_names_become_the_types_that_users_write(name: str, type_: str) -> None:
    assert type_of(name) == type_
