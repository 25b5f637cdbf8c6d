"""Which phases become ready when. Loops, inputs, ends; no GPUs here."""

from collections.abc import Mapping

import pytest
from pydantic import ValidationError

from whaleflux.common.contracts.workload import WorkloadSpec
from whaleflux.scheduler.core.pipeline import Progress, loop_ends, ready_steps

RFT = WorkloadSpec.model_validate(
    {
        "kind": "pipeline",
        "name": "rft",
        "phases": [
            {"name": "reward", "run": "x"},
            {"name": "rollout", "run": "x", "needs": ["reward"], "previous": ["update"]},
            {"name": "score", "run": "x", "needs": ["rollout", "reward"]},
            {"name": "update", "run": "x", "needs": ["score"]},
            {"name": "evaluate", "run": "x", "needs": ["update"]},
        ],
        "loops": [
            {
                "name": "train",
                "phases": ["rollout", "score", "update"],
                "max": 3,
                "until": "update.reward >= 0.9",
            }
        ],
    }
)


def progress(
    *done: tuple[str, int],
    ended: Mapping[str, int] | None = None,
    metrics: Mapping[tuple[str, int], Mapping[str, float]] | None = None,
) -> Progress:
    return Progress(
        queued=dict.fromkeys(done, "run"),
        done=dict.fromkeys(done, 1),
        loops_ended=ended or {},
        metrics=metrics or {},
    )


def ready(now: Progress) -> list[tuple[str, int]]:
    return [(step.phase.name, step.iteration) for step in ready_steps(RFT, now)]


ROUND_1 = (("rollout", 1), ("score", 1), ("update", 1))
ROUND_2 = (("rollout", 2), ("score", 2), ("update", 2))
ROUND_3 = (("rollout", 3), ("score", 3), ("update", 3))


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(progress(), [("reward", 1)], id="only what needs nothing"),
        pytest.param(progress(("reward", 1)), [("rollout", 1)], id="the loop begins"),
        pytest.param(progress(("reward", 1), ("rollout", 1)), [("score", 1)], id="inside"),
        pytest.param(progress(("reward", 1), *ROUND_1), [("rollout", 2)], id="goes round"),
        pytest.param(
            progress(("reward", 1), *ROUND_1, ended={"train": 1}),
            [("evaluate", 1)],
            id="after an ended loop",
        ),
        pytest.param(
            progress(("reward", 1), *ROUND_1, *ROUND_2, *ROUND_3), [], id="never a fourth round"
        ),
    ],
)
def test_phases_become_ready_in_order(now: Progress, expected: list[tuple[str, int]]) -> None:
    assert ready(now) == expected


def test_a_loop_ends_after_its_last_iteration() -> None:
    (end,) = loop_ends(RFT, progress(("reward", 1), *ROUND_1, *ROUND_2, *ROUND_3))
    assert (end.loop, end.iterations) == ("train", 3)


def test_a_loop_ends_early_once_its_condition_holds() -> None:
    metrics = {("update", 1): {"reward": 0.95}}
    (end,) = loop_ends(RFT, progress(("reward", 1), *ROUND_1, metrics=metrics))
    assert end.iterations == 1
    assert "0.95" in end.reason


def test_a_condition_without_a_metric_does_not_end_a_loop() -> None:
    assert loop_ends(RFT, progress(("reward", 1), *ROUND_1)) == []


def test_an_iteration_reads_this_rounds_needs_and_last_rounds_previous() -> None:
    (step,) = ready_steps(RFT, progress(("reward", 1), *ROUND_1))
    assert step.reads == {"reward": ("reward", 1), "update": ("update", 1)}


def test_the_first_iteration_has_no_previous() -> None:
    (step,) = ready_steps(RFT, progress(("reward", 1)))
    assert step.reads == {"reward": ("reward", 1)}


def test_a_phase_after_a_loop_reads_its_last_iteration() -> None:
    now = progress(("reward", 1), *ROUND_1, *ROUND_2, ended={"train": 2})
    (step,) = ready_steps(RFT, now)
    assert step.reads == {"update": ("update", 2)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"phases": [{"name": "a", "run": "x", "needs": ["b"]}]}, "'b', which does not exist"),
        (
            {
                "phases": [
                    {"name": "a", "run": "x", "needs": ["b"]},
                    {"name": "b", "run": "x", "needs": ["a"]},
                ]
            },
            "in a circle: a, b",
        ),
        (
            {"phases": [{"name": "a", "run": "x"}, {"name": "a", "run": "x"}]},
            "two phases are called 'a'",
        ),
        (
            {"phases": [{"name": "a", "run": "x"}], "loops": [{"phases": ["z"], "max": 2}]},
            "names phase 'z'",
        ),
        (
            {"phases": [{"name": "a", "run": "x", "previous": ["a"]}]},
            "not in its loop",
        ),
        (
            {
                "phases": [{"name": "a", "run": "x"}],
                "loops": [{"phases": ["a"], "max": 2, "until": "a.loss ~ 3"}],
            },
            "'<phase>.<metric> >= <number>'",
        ),
        (
            {
                "phases": [
                    {"name": "a", "run": "x", "needs": ["c"]},
                    {"name": "b", "run": "x"},
                    {"name": "c", "run": "x", "needs": ["b"]},
                ],
                "loops": [{"name": "l", "phases": ["a", "b"], "max": 2}],
            },
            "in a circle",
        ),
    ],
)
def test_an_impossible_graph_is_refused_in_words(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        WorkloadSpec.model_validate({"kind": "pipeline", "name": "p", **change})
