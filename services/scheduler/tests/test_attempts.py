"""How attempts end and what follows: retries, gangs, lost nodes, cancelling, whole pipelines."""

from typing import Any

import pytest

from whaleflux.common.contracts.agent import ExitKind
from whaleflux.common.contracts.scheduler import (
    CancelWorkload,
    MemberReleased,
    Outcome,
    RunEnded,
    RunPlaced,
    RunQueued,
    SchedulerEvent,
    WorkloadEnded,
)
from whaleflux.common.contracts.workload import Fencing
from whaleflux.scheduler.core.assign import assignment
from whaleflux.scheduler.core.command import ClearNode, CloseNode, OpenNode, RecordExit
from whaleflux.sim.story import Story

GANG: dict[str, Any] = {"resources": {"accelerators": "H100:8"}, "num_nodes": 2}
ONE: dict[str, Any] = {"resources": {"accelerators": "H100:1"}}


def only(events: list[SchedulerEvent], type_: type) -> Any:
    (found,) = [e for e in events if isinstance(e, type_)]
    return found


def names(events: list[SchedulerEvent]) -> list[str]:
    return [type(e).__name__ for e in events]


def test_a_job_that_is_done_ends_its_workload_in_the_same_cycle(fleet: Story) -> None:
    fleet.submit("j", **ONE)
    fleet.start("j-main-1")
    events = fleet.exit("j-main-1", metrics={"loss": 0.5})
    assert names(events) == ["MemberReleased", "RunEnded", "WorkloadEnded"]
    assert only(events, RunEnded).metrics == {"loss": 0.5}
    assert only(events, WorkloadEnded).outcome is Outcome.SUCCEEDED


def test_a_failed_attempt_is_tried_again_up_to_its_limit(fleet: Story) -> None:
    fleet.submit("j", retry={"max_attempts": 2}, **ONE)
    events = fleet.exit("j-main-1", ExitKind.FAILED, exit_code=3)
    assert names(events) == ["MemberReleased", "RunEnded", "RunQueued", "RunPlaced"]
    assert only(events, RunQueued).attempt == 2
    events = fleet.exit("j-main-1", ExitKind.FAILED, exit_code=3)
    ended = only(events, RunEnded)
    assert (ended.outcome, ended.final) == (Outcome.FAILED, True)
    assert "exit code 3" in ended.reason
    assert only(events, WorkloadEnded).outcome is Outcome.FAILED


def test_exit_code_93_is_never_tried_again(fleet: Story) -> None:
    fleet.submit("j", **ONE)
    events = fleet.exit("j-main-1", ExitKind.DO_NOT_RETRY, exit_code=93)
    assert only(events, RunEnded).final


def test_the_next_attempt_resumes_from_the_newest_safe_checkpoint(fleet: Story) -> None:
    fleet.submit("j", **ONE)
    fleet.save("j-main-1", 10)
    fleet.save("j-main-1", 20)
    fleet.save("j-main-1", 30, safe=False)
    events = fleet.exit("j-main-1", ExitKind.FAILED)
    assert [c.step for c in only(events, RunQueued).resume_from] == [20, 10]
    node = fleet.members("j-main-1")[0][1]
    (member,) = assignment(fleet.state, node).members
    assert (member.attempt, member.resume_from[0].step) == (2, 20)


def test_three_attempts_without_progress_stop_the_run_with_a_reason(fleet: Story) -> None:
    fleet.submit("j", retry={"max_attempts": 50}, **ONE)
    fleet.save("j-main-1", 10)
    fleet.exit("j-main-1", ExitKind.FAILED)
    for _ in range(2):
        assert not only(fleet.exit("j-main-1", ExitKind.FAILED), RunEnded).final
    ended = only(fleet.exit("j-main-1", ExitKind.FAILED), RunEnded)
    assert ended.final
    assert "3 attempts in a row made no progress" in ended.reason


def test_progress_resets_the_count(fleet: Story) -> None:
    fleet.submit("j", retry={"max_attempts": 50}, **ONE)
    for step in range(1, 8):
        fleet.save("j-main-1", step)
        assert not only(fleet.exit("j-main-1", ExitKind.FAILED), RunEnded).final


def test_a_program_that_saved_and_left_is_started_again(fleet: Story) -> None:
    fleet.submit("j", **ONE)
    fleet.save("j-main-1", 5)
    events = fleet.exit("j-main-1", ExitKind.SAVED, exit_code=85)
    assert only(events, RunEnded).outcome is Outcome.PREEMPTED
    assert only(events, RunPlaced).attempt == 2


def test_when_one_member_fails_the_others_are_stopped_before_the_attempt_ends(fleet: Story) -> None:
    fleet.submit("g", **GANG)
    fleet.start("g-main-1")
    events = fleet.exit("g-main-1", ExitKind.FAILED, ranks=[1], signal=11)
    assert names(events) == ["MemberReleased", "RunStopping"]
    (member,) = assignment(fleet.state, "h100-0").members
    assert member.desired == "stop"
    assert assignment(fleet.state, "h100-1").members == ()
    events = fleet.exit("g-main-1", ExitKind.STOPPED, ranks=[0])
    ended = only(events, RunEnded)
    assert ended.outcome is Outcome.FAILED
    assert "member 1, signal 11" in ended.reason
    assert only(events, RunPlaced).attempt == 2


def test_a_member_that_is_done_gives_its_gpus_back_before_the_others(fleet: Story) -> None:
    fleet.submit("g", **GANG)
    fleet.submit("next", resources={"accelerators": "H100:8"})
    events = fleet.exit("g-main-1", ranks=[1])
    assert names(events) == ["MemberReleased", "RunPlaced"]
    assert only(events, RunPlaced).run_id == "next-main-1"


def test_a_lost_node_frees_nothing_until_it_is_fenced(fleet: Story) -> None:
    fleet.submit("j", fencing="fast", **ONE)
    fleet.tell(CloseNode("h100-0", "silent for 10 s"))
    assert fleet.run("j-main-1").state.attempt == 1
    events = fleet.tell(ClearNode("h100-0", Fencing.FAST))
    assert names(events) == [
        "NodeCleared",
        "MemberReleased",
        "RunEnded",
        "RunQueued",
        "RunPlaced",
    ]
    assert only(events, RunEnded).outcome is Outcome.LOST
    assert only(events, RunPlaced).members[0].node_id == "h100-1"


def test_patient_work_stays_where_it_is_when_only_fast_work_is_fenced(fleet: Story) -> None:
    fleet.submit("j", **ONE)
    fleet.tell(CloseNode("h100-0", "silent for 10 s"))
    assert fleet.tell(ClearNode("h100-0", Fencing.FAST)) == []
    events = fleet.tell(ClearNode("h100-0", Fencing.PATIENT))
    assert only(events, MemberReleased).kind is ExitKind.FENCED


def test_the_survivors_of_a_gang_stop_before_it_starts_elsewhere(fleet: Story) -> None:
    fleet.submit("g", fencing="fast", resources={"accelerators": "H100:4"}, num_nodes=2)
    fleet.tell(CloseNode("h100-1", "silent for 10 s"))
    events = fleet.tell(ClearNode("h100-1", Fencing.FAST))
    assert names(events) == ["NodeCleared", "MemberReleased", "RunStopping"]
    events = fleet.exit("g-main-1", ExitKind.STOPPED, ranks=[0])
    assert only(events, RunEnded).outcome is Outcome.LOST
    assert not [e for e in events if isinstance(e, RunPlaced)]
    assert only(fleet.tell(OpenNode("h100-1")), RunPlaced).attempt == 2


def test_lost_nodes_do_not_count_as_failures(fleet: Story) -> None:
    fleet.submit("j", fencing="fast", retry={"max_attempts": 1}, **ONE)
    for _ in range(4):
        node = fleet.members("j-main-1")[0][1]
        fleet.tell(CloseNode(node, "silent"))
        assert not only(fleet.tell(ClearNode(node, Fencing.FAST)), RunEnded).final
        fleet.tell(OpenNode(node))


@pytest.mark.parametrize("kind", list(ExitKind))
def test_what_an_older_attempt_says_changes_nothing(fleet: Story, kind: ExitKind) -> None:
    fleet.submit("j", fencing="fast", **ONE)
    fleet.tell(CloseNode("h100-0", "silent"))
    fleet.tell(ClearNode("h100-0", Fencing.FAST))
    assert fleet.tell(RecordExit("j-main-1", 1, 0, "h100-0", kind)) == []


def test_another_node_cannot_end_a_member_that_is_not_its_own(fleet: Story) -> None:
    fleet.submit("j", **ONE)
    assert fleet.tell(RecordExit("j-main-1", 1, 0, "h100-1", ExitKind.DONE)) == []


def test_cancelling_ends_what_waits_and_stops_what_runs(fleet: Story) -> None:
    fleet.submit("run", **GANG)
    fleet.submit("wait", **GANG)
    events = fleet.tell(CancelWorkload(workload_id="wait", user="ada"))
    assert names(events) == ["WorkloadCancelling", "RunEnded", "WorkloadEnded"]
    events = fleet.tell(CancelWorkload(workload_id="run", user="ada"))
    assert names(events) == ["WorkloadCancelling", "RunStopping"]
    events = fleet.exit("run-main-1", ExitKind.SAVED)
    assert only(events, WorkloadEnded).outcome is Outcome.CANCELLED
    assert only(events, WorkloadEnded).reason == "cancelled by ada"


def test_a_second_cancel_and_a_second_submission_say_nothing(fleet: Story) -> None:
    fleet.submit("j", **ONE)
    assert fleet.submit("j", **ONE) == []
    fleet.tell(CancelWorkload(workload_id="j", user="ada"))
    assert fleet.tell(CancelWorkload(workload_id="j", user="bob")) == []
    assert fleet.tell(CancelWorkload(workload_id="unknown", user="bob")) == []


PIPELINE: dict[str, Any] = {
    "kind": "pipeline",
    "phases": [
        {"name": "reward", "run": "x", "resources": {"accelerators": "A100:8"}},
        {
            "name": "rollout",
            "run": "x",
            "needs": ["reward"],
            "previous": ["update"],
            "resources": {"accelerators": "H100:8"},
        },
        {
            "name": "update",
            "run": "x",
            "needs": ["rollout"],
            "resources": {"accelerators": "H100:8"},
        },
        {"name": "evaluate", "run": "x", "needs": ["update"]},
    ],
    "loops": [{"name": "train", "phases": ["rollout", "update"], "max": 2}],
}


def test_a_pipeline_runs_its_phases_in_order_and_hands_gpus_over(fleet: Story) -> None:
    fleet.submit("p", **PIPELINE)
    order = []
    handovers = 0
    while fleet.state.workloads["p"].outcome is None:
        (run_id,) = [r.run_id for r in fleet.state.runs.values() if hasattr(r.state, "placement")]
        order.append(run_id)
        events = fleet.exit(run_id)
        for event in events:
            if isinstance(event, RunPlaced):
                handovers += sum(m.handover for m in event.members)
    assert order == [
        "p-reward-1",
        "p-rollout-1",
        "p-update-1",
        "p-rollout-2",
        "p-update-2",
        "p-evaluate-1",
    ]
    assert handovers == 3
    assert fleet.state.workloads["p"].outcome is Outcome.SUCCEEDED


def test_a_phase_reads_the_output_of_the_attempt_that_succeeded(fleet: Story) -> None:
    fleet.submit("p", **PIPELINE)
    fleet.exit("p-reward-1", ExitKind.FAILED)
    events = fleet.exit("p-reward-1")
    assert only(events, RunQueued).inputs == {"reward": "runs/p-reward-1/a2/output"}


def test_a_phase_that_fails_for_good_ends_the_pipeline_with_its_reason(fleet: Story) -> None:
    fleet.submit("p", **PIPELINE)
    fleet.exit("p-reward-1")
    events = fleet.exit("p-rollout-1", ExitKind.DO_NOT_RETRY, exit_code=93)
    ended = only(events, WorkloadEnded)
    assert ended.outcome is Outcome.FAILED
    assert ended.reason.startswith("phase 'rollout', iteration 1:")


def test_an_assignment_holds_all_a_member_needs(fleet: Story) -> None:
    fleet.submit("g", envs={"A": "1"}, fencing="fast", workdir="sha256:" + "0" * 64, **GANG)
    before = assignment(fleet.state, "h100-1")
    (member,) = before.members
    assert (member.rank, member.world_size, member.nodes) == (1, 2, ("h100-0", "h100-1"))
    assert member.gpus == tuple(range(8))
    assert member.envs == {"A": "1"}
    assert 20_000 <= member.master_port < 32_000
    fleet.exit("g-main-1")
    assert assignment(fleet.state, "h100-1").version > before.version
