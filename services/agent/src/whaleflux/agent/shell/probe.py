"""What a node's accelerators are and what they measure, whoever makes them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from whaleflux.common.contracts.agent import Gpu
from whaleflux.common.contracts.telemetry import NodeSample

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
