"""What the demo tells, folded from recorded public events."""

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console

from whaleflux.local.demo_story import Story, kind_of, percentile
from whaleflux.local.demo_view import Legend, NodeRow, picture, sparkline, summary

START = datetime(2026, 1, 1, tzinfo=UTC)
NODES = [NodeRow("h200-0", "H200", 8), NodeRow("a100-0", "A100", 8)]


class Teller:
    """Feeds a story one event a second."""

    def __init__(self) -> None:
        self.story = Story()
        self.at = START

    def __call__(self, kind: str, **data: Any) -> str | None:
        self.at += timedelta(seconds=1)
        return self.story.apply(kind, self.at, {"workload_id": "wl_1", **data})

    def place(self, run: str, attempt: int, node: str, gpus: list[int]) -> None:
        phase = run.split("-")[1]
        self("run.queued", run_id=run, attempt=attempt, phase=phase, iteration=0, role=phase)
        members = [{"rank": 0, "node_id": node, "gpus": gpus, "handover": False}]
        self("run.placed", run_id=run, attempt=attempt, gpu_type="H200", members=members)

    def end(self, run: str, attempt: int, outcome: str, **metrics: float) -> str | None:
        return self(
            "run.ended", run_id=run, attempt=attempt, outcome=outcome, reason="r", metrics=metrics
        )


def text(renderable: Any) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def test_gpus_are_held_from_placement_to_release() -> None:
    tell = Teller()
    tell.place("wl_1-rollout-0", 1, "h200-0", [0, 1])
    assert set(tell.story.holders) == {("h200-0", 0), ("h200-0", 1)}
    tell("member.released", run_id="wl_1-rollout-0", attempt=1, rank=0, node_id="h200-0")
    assert tell.story.holders == {}


def test_the_next_holder_keeps_its_gpus_when_the_last_one_ends() -> None:
    tell = Teller()
    tell.place("wl_1-rollout-0", 1, "h200-0", [0])
    tell.place("wl_1-scoring-0", 1, "h200-0", [0])
    tell.end("wl_1-rollout-0", 1, "succeeded")
    assert tell.story.holders[("h200-0", 0)].phase == "scoring"


def test_rewards_come_from_runs_that_ended_well() -> None:
    tell = Teller()
    tell.place("wl_1-rollout-0", 1, "h200-0", [0])
    tell.end("wl_1-rollout-0", 1, "lost", reward=0.9)
    tell.place("wl_1-rollout-0", 2, "h200-0", [1])
    assert tell.end("wl_1-rollout-0", 2, "succeeded", reward=0.25) == (
        "rollout #0 done, reward 0.250"
    )
    assert tell.story.reward_line == ("rollout", [0.25])


def test_the_evaluation_says_before_and_after() -> None:
    tell = Teller()
    tell.place("wl_1-evaluation-0", 1, "h200-0", [0])
    tell.end("wl_1-evaluation-0", 1, "succeeded", reward_before=0.1, reward_after=0.8)
    assert (tell.story.reward_before, tell.story.reward_after) == (0.1, 0.8)


def test_steps_redone_after_a_lost_node_are_counted_from_the_checkpoint() -> None:
    tell = Teller()
    run = "wl_1-rollout-0"
    tell.place(run, 1, "h200-0", [0])
    tell("run.reported", run_id=run, attempt=1, step=7)
    tell.end(run, 1, "lost")
    tell.place(run, 2, "a100-0", [0])
    tell("member.recorded", run_id=run, attempt=2, node_id="a100-0", resumed_from_step=5)
    tell("run.started", run_id=run, attempt=2)
    assert tell.story.lost_steps == 2
    assert tell.story.overlaps == []


def test_only_safe_checkpoints_are_remembered() -> None:
    tell = Teller()
    run = "wl_1-rollout-0"
    tell.place(run, 1, "h200-0", [0])
    tell("checkpoint.recorded", run_id=run, attempt=1, step=4, safe=True)
    tell("checkpoint.recorded", run_id=run, attempt=1, step=6, safe=False)
    assert tell.story.attempts[run, 1].safe_step == 4


def test_kinds_are_read_from_public_types() -> None:
    assert kind_of("io.whaleflux.run.placed.v1") == "run.placed"
    assert kind_of("run.placed") == "run.placed"


def test_two_live_attempts_of_one_run_are_noticed() -> None:
    tell = Teller()
    tell.place("wl_1-rollout-0", 1, "h200-0", [0])
    tell.place("wl_1-rollout-0", 2, "a100-0", [0])
    assert tell.story.overlaps == ["wl_1-rollout-0"]


def test_the_end_of_another_workload_is_not_the_end() -> None:
    tell = Teller()
    tell.story.workload_id = "wl_1"
    tell.story.apply(
        "workload.ended", START, {"workload_id": "wl_2", "outcome": "failed", "reason": ""}
    )
    assert not tell.story.ended


def test_percentiles_are_nearest_rank() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0], 0.95) == 3.0
    assert percentile([float(n) for n in range(1, 101)], 0.95) == 95.0
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0


def test_the_picture_marks_simulated_gpus_and_shows_who_holds_what() -> None:
    tell = Teller()
    tell.place("wl_1-rollout-0", 1, "h200-0", [0, 1])
    shown = text(picture(tell.story, NODES, Legend(), title="demo", simulated=True, elapsed_s=3.0))
    row = next(line for line in shown.splitlines() if line.startswith("h200-0"))
    assert row.count(" R ") == 2 and row.count("·") == 6
    assert "SIMULATED" in shown


def test_two_phases_never_share_a_letter() -> None:
    legend = Legend()
    letters = [legend.letter(p) for p in ("reward_training", "rollout", "scoring", "reward")]
    assert len(set(letters)) == 4


def test_the_summary_counts_attempts_by_phase() -> None:
    tell = Teller()
    tell.place("wl_1-rollout-0", 1, "h200-0", [0, 1])
    tell("run.started", run_id="wl_1-rollout-0", attempt=1)
    tell.end("wl_1-rollout-0", 1, "succeeded")
    shown = text(summary(tell.story, simulated=True, notes=["reward rose"]))
    assert "2 × H200" in shown and "reward rose" in shown and "simulated" in shown
    assert json.dumps(tell.story.phases_run) == "1"


def test_a_sparkline_spans_its_values() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▄█"
    assert sparkline([]) == ""
