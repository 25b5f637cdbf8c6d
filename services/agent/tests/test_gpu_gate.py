import pytest

from whaleflux.agent.shell.gpu_gate import GpuGate
from whaleflux.agent.shell.simulated_probe import SimulatedProbe
from whaleflux.common.clock import SystemClock
from whaleflux.common.errors import Refused


class Cards(SimulatedProbe):
    """Cards that claim to be real and are emptied as they are looked at."""

    simulated = False

    def __init__(self, *used_mib: int | None) -> None:
        super().__init__("n1", types="H200x8", clock=SystemClock())
        self.used_mib = list(used_mib)

    async def memory_used_mib(self, index: int) -> int | None:
        assert index == 3
        return self.used_mib.pop(0) if len(self.used_mib) > 1 else self.used_mib[0]


async def test_a_member_waits_until_the_memory_of_its_gpus_is_free() -> None:
    cards = Cards(80_000, 600, 300, 90_000)
    await GpuGate(cards).wait_free((3,))
    assert cards.used_mib == [90_000]


async def test_a_card_that_stays_taken_is_refused_with_what_it_holds() -> None:
    with pytest.raises(Refused, match="GPU 3 still holds 80000 MiB"):
        await GpuGate(Cards(80_000), within_s=0.0).wait_free((3,))


async def test_a_card_that_cannot_say_and_a_simulated_one_count_as_free() -> None:
    await GpuGate(Cards(None)).wait_free((3,))
    await GpuGate(SimulatedProbe("n1", types="H200x8", clock=SystemClock())).wait_free((3,))
