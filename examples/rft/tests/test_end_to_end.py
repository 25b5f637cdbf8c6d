"""The whole pipeline at its smallest, quick enough to be tried after every change."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from rft.local import Bench
from rft.models import POLICY, REWARD_MODEL

ROUNDS = 2
"""The fewest in which a phase reads what the round before has made."""


class ShortBench(Bench):
    """The pipeline as it is shipped, with fewer rounds."""

    @property
    def document(self) -> dict[str, Any]:
        found = super().document
        (loop,) = found["loops"]
        return {**found, "loops": [{**loop, "max": ROUNDS}]}


def test_a_small_pipeline_runs_through_and_improves(tmp_path: Path) -> None:
    bench = ShortBench(tmp_path, envs={"RFT_SCALE": "0.1"})
    rewards: list[float] = []
    made: dict[tuple[str, int], Path] = {}
    told: dict[str, float] = {}
    for phase, iteration, _, one in bench.run_all():
        made[phase, iteration] = one.output
        told = one.metrics()
        if phase == "policy_update":
            assert told.keys() >= {"reward_mean", "kl", "entropy", "clip_frac"}
            rewards.append(told["reward_mean"])
        assert one.newest_checkpoint() is not None, phase
        assert one.said()[-1]["progress"] == 1.0
    looped = ("rollout", "scoring", "feedback", "policy_update")
    rounds = itertools.product((1, 2), looped)
    assert list(made) == [
        ("reward_training", 1),
        *((phase, number) for number, phase in rounds),
        ("evaluation", 1),
    ]
    for user, maker, model in (
        (("rollout", 1), ("reward_training", 1), POLICY),
        (("rollout", 2), ("policy_update", 1), POLICY),
        (("scoring", 1), ("reward_training", 1), REWARD_MODEL),
        (("scoring", 2), ("feedback", 1), REWARD_MODEL),
    ):
        used = (made[user] / model).read_bytes()
        assert used == (made[maker] / model).read_bytes(), f"{user} does not use {maker}"
    assert rewards[1] > rewards[0]
    assert told["reward_after"] > told["reward_before"] + 0.3
    assert told["win_rate"] > 0.55


@pytest.mark.parametrize(
    ("name", "value"),
    [("RFT_SCALE", "large"), ("RFT_SCALE", "0"), ("RFT_SCALE", "nan"), ("RFT_SEED", "1.5")],
)
def test_a_size_that_makes_no_sense_is_said_and_not_retried(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    one = Bench(tmp_path, envs={name: value}).start("reward_training")
    assert one.wait(60) == [93]
    assert f"{name} is {value!r}" in capfd.readouterr().err
