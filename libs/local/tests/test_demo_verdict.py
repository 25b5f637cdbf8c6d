"""The demo claims nothing that does not hold."""

from datetime import UTC, datetime, timedelta
from typing import Any

from whaleflux.client import from_yaml
from whaleflux.local.demo import find_pipeline
from whaleflux.local.demo_kill import AgentKill
from whaleflux.local.demo_story import Story
from whaleflux.local.demo_verdict import Verdict, judge
from whaleflux.local.witness import Sighting, Witness

START = datetime(2026, 1, 1, tzinfo=UTC)
ROLLOUT, EVALUATION = "wl_1-rollout-1", "wl_1-evaluation-1"


def story(*, after: float = 0.9, lost_on: str | None = None) -> Story:
    told = Story(workload_id="wl_1")
    moments = iter(range(100))

    def tell(kind: str, **data: Any) -> None:
        told.apply(kind, START + timedelta(seconds=next(moments)), {"workload_id": "wl_1", **data})

    def attempt(run: str, number: int, node: str, outcome: str, **metrics: float) -> None:
        members = [{"rank": 0, "node_id": node, "gpus": [0]}]
        tell("run.placed", run_id=run, attempt=number, gpu_type="H100", members=members)
        tell("run.started", run_id=run, attempt=number)
        tell("run.ended", run_id=run, attempt=number, outcome=outcome, metrics=metrics)

    if lost_on:
        attempt(ROLLOUT, 1, lost_on, "lost")
    attempt(ROLLOUT, 2 if lost_on else 1, "h100-1", "succeeded")
    attempt(EVALUATION, 1, "h100-1", "succeeded", reward_before=0.5, reward_after=after)
    tell("workload.ended", outcome="succeeded", reason="every phase done")
    return told


def verdict(
    told: Story,
    *,
    witness: Witness | None = None,
    kill: AgentKill | None = None,
    left: tuple[str, ...] = (),
) -> Verdict:
    return judge(
        told,
        witness or Witness(),
        simulated=True,
        expects_reward=True,
        kill=kill,
        left=left,
        ready_s=2.0,
        total_s=40.0,
    )


def test_all_is_well() -> None:
    found = verdict(story())
    assert found.ok
    assert found.as_json()["phases_run"] == 2
    assert found.as_json()["handover_gap_ms_p95"] is None


def test_an_evaluation_that_did_not_improve_fails() -> None:
    assert verdict(story(after=0.5)).failures == ["the evaluation did not improve"]


def test_a_process_left_running_fails() -> None:
    assert verdict(story(), left=("shim",)).failures == ["processes left running: shim"]


def test_two_programs_alive_at_once_fail_even_if_no_event_says_so() -> None:
    one = Sighting(ROLLOUT, 0, 1, 10, 1.0, 5.0)
    other = Sighting(ROLLOUT, 0, 2, 11, 4.0, 6.0)
    found = verdict(story(), witness=Witness([one, other]))
    assert found.as_json()["duplicate_attempts"] == 1
    assert "two live attempts" in found.failures[0]


def test_a_kill_that_never_happened_fails() -> None:
    assert "no rollout" in verdict(story(), kill=AgentKill()).failures[0]


def test_a_killed_run_must_have_gone_on() -> None:
    kill = AgentKill(node="h100-0", run_id=ROLLOUT, attempt=1, pid=7)
    assert "did not go on" in verdict(story(), kill=kill).failures[0]


def test_the_story_of_a_kill_is_told() -> None:
    kill = AgentKill(node="h100-0", run_id=ROLLOUT, attempt=1, pid=7)
    witness = Witness([Sighting(ROLLOUT, 0, 1, 10, 1.0, 5.0)])
    found = verdict(story(lost_on="h100-0"), kill=kill, witness=witness)
    assert found.ok
    assert found.as_json()["resumed_on"] == ["h100-1"]
    assert any("ended by themselves at their deadline" in note for note in found.notes)


def test_the_kill_waits_for_the_second_round_where_there_is_one() -> None:
    assert AgentKill.in_middle_of(from_yaml(find_pipeline())).iteration == 2
    single = "name: one\nkind: pipeline\nphases: [{name: roll, role: rollout, run: 'true'}]\n"
    assert AgentKill.in_middle_of(from_yaml(single)).iteration == 1
