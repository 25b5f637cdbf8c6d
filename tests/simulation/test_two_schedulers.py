"""Two schedulers fight over one log while answers get lost, programs fail and nodes vanish.

Safety, at every moment and seen from outside: no run has two live attempts, no GPU two members,
no gang is cut, no GPU is granted while it is held. Liveness: once the storm is over, everything
that was accepted ends. A failure prints its seed; seeds that ever failed stay in `seeds.txt`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from whaleflux.sim.world import Faults, storm

SEEDS_KEPT = [
    int(line) for line in (Path(__file__).parent / "seeds.txt").read_text().split() if line
]
SEEDS = sorted({*range(200), *SEEDS_KEPT})


@pytest.mark.simulation
@pytest.mark.parametrize("seed", SEEDS)
def test_safety_holds_in_the_storm_and_all_work_ends_in_the_calm(seed: int) -> None:
    report = storm(seed)
    assert report.violations == []
    assert report.unfinished == []
    assert report.started > 0


@pytest.mark.simulation
def test_without_the_sequence_guard_the_witness_speaks_up() -> None:
    broken = [s for s in range(20) if storm(s, faults=Faults(guarded=False)).violations]
    assert len(broken) >= 10


_DIGESTS = (
    "from whaleflux.sim.world import storm; print([storm(s).digest() for s in range(0, 200, 10)])"
)


def _digests(hash_seed: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", _DIGESTS],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.simulation
def test_a_seed_is_one_history_under_any_hash_seed() -> None:
    assert _digests("1") == _digests("2")
