"""The checks look at what they claim to look at."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORES = [
    "services/scheduler/src/whaleflux/scheduler/core",
    "services/failover/src/whaleflux/failover/core",
    "services/gateway/src/whaleflux/gateway/core",
    "libs/common/src/whaleflux/common/contracts",
]


def test_every_core_is_checked_strictly() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    cores = {str(p.relative_to(ROOT)) for p in ROOT.glob("services/*/src/whaleflux/*/core")}
    assert cores <= set(CORES)
    for core in CORES:
        assert f'"{core}",' in text


@pytest.mark.slow
@pytest.mark.alone
def test_the_strict_checker_finds_an_untyped_function_in_a_core() -> None:
    """Patterns that match nothing make a checker content with everything."""
    checker = Path(sys.executable).with_name("basedpyright")
    planted = ROOT / CORES[0] / "planted_by_a_test.py"
    planted.write_text('"""Planted."""\n\n\ndef f(x):\n    return x\n')
    try:
        done = subprocess.run(
            [str(checker), "--level", "error"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        planted.unlink()
    assert done.returncode != 0
    assert "planted_by_a_test.py" in done.stdout
