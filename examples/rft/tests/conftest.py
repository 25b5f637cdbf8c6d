"""Runs the example's programs as real processes in a scratch store."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(EXAMPLE))

from rft.local import Bench, Try  # noqa: E402 - after the path was extended

SMALL = {"RFT_SCALE": "0.4"}


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the output of a finished reward training, for the phases that need it."""
    one = Bench(tmp_path_factory.mktemp("trained"), envs=SMALL).start("reward_training")
    assert one.wait(60) == [0]
    return one.output


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Give an empty store; whatever a test leaves running in it is ended."""
    started: list[Try] = []

    class Noted(Bench):
        def start(self, *arguments: object, **options: object) -> Try:
            one = super().start(*arguments, **options)  # type: ignore[arg-type]  # passed on as they came
            started.append(one)
            return one

    yield Noted(tmp_path, envs=SMALL)
    for one in started:
        one.kill()
