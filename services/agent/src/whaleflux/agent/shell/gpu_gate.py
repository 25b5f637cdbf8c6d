"""Sees to it that a GPU's memory is free before the next program starts on it."""

import asyncio

from whaleflux.agent.shell.probe import Probe
from whaleflux.common.errors import Refused

FREE_BELOW_MIB = 512
"""What a driver holds on an idle card stays below this."""
FREE_WITHIN_S = 50.0
"""A card that is not free by then is held by something that is not ours."""
LOOK_EVERY_S = 0.1


class GpuGate:
    """Asks the probe; simulated devices are free by definition."""

    def __init__(self, probe: Probe, *, within_s: float = FREE_WITHIN_S) -> None:
        self._probe = probe
        self._within_s = within_s

    async def wait_free(self, gpus: tuple[int, ...]) -> None:
        """Return once the memory of *gpus* is free; a card that cannot say counts as free.

        Raises:
            Refused: One of them is still taken after FREE_WITHIN_S.

        """
        if self._probe.simulated:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._within_s
        for index in gpus:
            while (used := await self._probe.memory_used_mib(index) or 0) >= FREE_BELOW_MIB:
                if loop.time() >= deadline:
                    raise Refused(
                        f"GPU {index} still holds {used} MiB after {self._within_s:g} s",
                        code="gpu_taken",
                    )
                await asyncio.sleep(LOOK_EVERY_S)
