"""What a node's accelerators are and what they measure, whoever makes them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from whaleflux.common.clock import Clock, SystemClock
from whaleflux.common.contracts.agent import Gpu
from whaleflux.common.contracts.telemetry import NodeSample
from whaleflux.common.errors import Refused

NO_HOLDERS: Mapping[int, str] = MappingProxyType({})
"""No GPU is held by a run."""


class Probe(Protocol):
    """Looks at the accelerators of this node; never raises for a fault of theirs."""

    @property
    def simulated(self) -> bool:
        """Whether the accelerators do not exist."""
        ...

    async def inventory(self) -> tuple[Gpu, ...]:
        """Return the GPUs as they were last found; none when there is no driver."""
        ...

    async def sample(self, holders: Mapping[int, str] = NO_HOLDERS) -> NodeSample:
        """Measure all GPUs; *holders* names the run that holds each index.

        What a card cannot say is None; `probe_error` says why figures are missing.
        """
        ...

    async def memory_used_mib(self, index: int) -> int | None:
        """Return the memory in use on GPU *index* in MiB, or None when that is not known."""
        ...

    async def close(self) -> None:
        """End what the probe started; never waits for a stuck driver."""
        ...


def open_probe(devices: str, node_id: str, *, clock: Clock | None = None) -> Probe:
    """Return the probe that *devices* asks for: `nvml`, or `simulated:H200x8`.

    A simulated node may mix types: `simulated:H200x4,RTX4090x2`.

    Raises:
        Refused: *devices* is neither.

    """
    # Both implement what this module defines, so they cannot be imported before it.
    from whaleflux.agent.shell.nvml_probe import NvmlProbe
    from whaleflux.agent.shell.simulated_probe import SimulatedProbe

    kind, _, types = devices.partition(":")
    if kind == "nvml" and not types:
        return NvmlProbe(node_id, clock=clock or SystemClock())
    if kind == "simulated":
        return SimulatedProbe(node_id, types=types, clock=clock or SystemClock())
    raise Refused(
        f"devices is {devices!r}; write 'nvml' or 'simulated:<type>x<count>', such as"
        " 'simulated:H200x8'",
        code="bad_devices",
        fields={"devices": devices},
    )
