"""GPUs that do not exist, for laptops, tests and demonstrations; always marked so.

Figures follow the load: a GPU that a run holds is busy, hot and full, a free one idles. They vary
with the time of day and the card, the same on every machine, so that pictures look alive and
tests can repeat them.
"""

import difflib
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from whaleflux.agent.shell.probe import NO_HOLDERS
from whaleflux.common.clock import Clock
from whaleflux.common.contracts.agent import Gpu
from whaleflux.common.contracts.telemetry import GpuSample, NodeSample
from whaleflux.common.errors import Refused

GPUS_MAX = 64
"""GPUs in one simulated node; the largest real machines have 16."""


@dataclass(frozen=True, slots=True)
class Model:
    """What is known of one type of GPU."""

    memory_mib: int
    """As the driver reports it."""
    power_limit_w: float
    power_idle_w: float
    clock_max_mhz: int
    ecc: bool = True


MODELS: Mapping[str, Model] = {
    "A10": Model(23_028, 150, 16, 1_695),
    "A100": Model(81_920, 400, 52, 1_410),
    "B200": Model(183_359, 1_000, 140, 1_965),
    "GH200": Model(97_871, 900, 75, 1_980),
    "H100": Model(81_559, 700, 70, 1_980),
    "H20": Model(97_871, 500, 70, 1_980),
    "H200": Model(143_771, 700, 76, 1_980),
    "L4": Model(23_034, 72, 12, 2_040),
    "L40S": Model(46_068, 350, 32, 2_520),
    "RTX3090": Model(24_576, 350, 14, 2_100, ecc=False),
    "RTX4090": Model(24_564, 450, 18, 3_105, ecc=False),
    "T4": Model(15_360, 70, 9, 1_590),
    "V100": Model(32_768, 300, 24, 1_530),
}
"""Memory and power limit from the makers' data sheets; idle power and clock as commonly seen."""

MEMORY_IDLE_MIB = 4
CLOCK_IDLE_MHZ = 210
TEMPERATURE_IDLE_C = 29.0
TEMPERATURE_PER_LOAD_C = 38.0
"""Degrees that a fully busy card is warmer than an idle one."""

_TYPES = re.compile(r"(?P<type>[A-Za-z0-9._-]+?)x(?P<count>\d{1,3})")


class SimulatedProbe:
    """Implements `Probe` without hardware."""

    simulated = True

    def __init__(self, node_id: str, *, types: str, clock: Clock) -> None:
        """Make the GPUs that *types* lists, such as `H200x8` or `H200x4,RTX4090x2`.

        Raises:
            Refused: A type is not known or a count is out of bounds.

        """
        self._node_id = node_id
        self._clock = clock
        self._gpus = tuple(
            Gpu(
                index=index,
                uuid=f"SIM-{node_id}-{index}",
                type=type_,
                memory_mib=MODELS[type_].memory_mib,
            )
            for index, type_ in enumerate(_read_types(types))
        )

    async def inventory(self) -> tuple[Gpu, ...]:
        """Return the GPUs that were asked for."""
        return self._gpus

    async def sample(self, holders: Mapping[int, str] = NO_HOLDERS) -> NodeSample:
        """Return figures that fit the load."""
        now = self._clock.now()
        return NodeSample(
            node_id=self._node_id,
            at=now,
            simulated=True,
            gpus=tuple(
                _measure(gpu, holders.get(gpu.index), now.timestamp()) for gpu in self._gpus
            ),
        )

    async def memory_used_mib(self, index: int) -> int | None:
        """Return what an empty card shows: simulated members free memory the moment they exit."""
        return MEMORY_IDLE_MIB if index < len(self._gpus) else None

    async def close(self) -> None:
        """Do nothing: nothing was started."""


def _measure(gpu: Gpu, run_id: str | None, at_s: float) -> GpuSample:
    model = MODELS[gpu.type]
    load = 0.0 if run_id is None else 0.88 + 0.10 * _wave(gpu.uuid, at_s, period_s=47.0)
    # What a run allocates differs by run, not by second.
    filled = 0.0 if run_id is None else 0.72 + 0.18 * _wave(run_id, 0.0, period_s=1.0)
    flicker = _wave(gpu.uuid, at_s, period_s=13.0)
    power_w = model.power_idle_w + load * 0.9 * (model.power_limit_w - model.power_idle_w)
    return GpuSample(
        index=gpu.index,
        uuid=gpu.uuid,
        type=gpu.type,
        utilisation_pct=round(100 * load),
        memory_used_mib=MEMORY_IDLE_MIB + round(filled * model.memory_mib),
        memory_total_mib=model.memory_mib,
        temperature_c=round(TEMPERATURE_IDLE_C + TEMPERATURE_PER_LOAD_C * load + 2 * flicker),
        power_w=round(power_w * (1 + 0.02 * flicker), 1),
        power_limit_w=model.power_limit_w,
        sm_clock_mhz=CLOCK_IDLE_MHZ if run_id is None else round(model.clock_max_mhz * 0.96),
        ecc_uncorrected=0 if model.ecc else None,
        run_id=run_id,
    )


def _wave(seed: str, at_s: float, *, period_s: float) -> float:
    """Return a value from -1 to 1 that swings once in *period_s* and differs by *seed*."""
    phase = zlib.crc32(seed.encode()) / 2**32
    return math.sin(math.tau * (at_s / period_s + phase))


def _read_types(text: str) -> list[str]:
    types: list[str] = []
    for part in text.split(","):
        match = _TYPES.fullmatch(part.strip())
        if match is None:
            raise Refused(
                f"simulated devices {part.strip()!r} cannot be read; write '<type>x<count>', such"
                " as 'H200x8'",
                code="bad_devices",
            )
        types += [_known(match["type"])] * int(match["count"])
    if not 1 <= len(types) <= GPUS_MAX:
        raise Refused(
            f"a simulated node has 1 to {GPUS_MAX} GPUs, not {len(types)}", code="bad_devices"
        )
    return types


def _known(type_: str) -> str:
    name = type_.upper()
    if name in MODELS:
        return name
    nearest = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.0)[0]
    raise Refused(
        f"simulated GPU type {type_!r} is not known; the nearest is {nearest}, all are"
        f" {', '.join(MODELS)}",
        code="bad_devices",
        fields={"type": type_, "nearest": nearest},
    )
