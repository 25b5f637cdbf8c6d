"""Where runs go, what they hold, and why others wait. Ends and retries are in test_attempts."""

from collections.abc import Iterable

import pytest

from whaleflux.common.contracts.scheduler import (
    RunExplained,
    RunPlaced,
    SchedulerEvent,
    WaitCode,
    WorkloadRefused,
)
from whaleflux.scheduler.core.command import CloseNode, OpenNode
from whaleflux.sim.story import Story

H100_8 = {"accelerators": "H100:8"}


def placed(events: Iterable[SchedulerEvent]) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    return {
        e.run_id: [(m.node_id, m.gpus) for m in e.members]
        for e in events
        if isinstance(e, RunPlaced)
    }


def explained(events: Iterable[SchedulerEvent]) -> dict[str, RunExplained]:
    return {e.run_id: e for e in events if isinstance(e, RunExplained)}


def test_a_job_gets_whole_gpus_of_its_type_in_the_cycle_that_submits_it(fleet: Story) -> None:
    events = fleet.submit("j", resources={"accelerators": "H100:2"})
    assert placed(events) == {"j-main-1": [("h100-0", (0, 1))]}


def test_the_tightest_node_that_fits_is_taken(fleet: Story) -> None:
    fleet.submit("a", resources={"accelerators": "H100:6"})
    fleet.submit("b", resources={"accelerators": "H100:8"})
    fleet.exit("b-main-1")
    events = fleet.submit("c", resources={"accelerators": "H100:2"})
    assert placed(events) == {"c-main-1": [("h100-0", (6, 7))]}


def test_a_gang_takes_one_node_for_each_member(fleet: Story) -> None:
    events = fleet.submit("g", resources=H100_8, num_nodes=2)
    assert placed(events) == {
        "g-main-1": [("h100-0", tuple(range(8))), ("h100-1", tuple(range(8)))]
    }


def test_a_gang_waits_until_all_members_fit(fleet: Story) -> None:
    fleet.submit("small", resources={"accelerators": "H100:1"})
    events = fleet.submit("gang", resources=H100_8, num_nodes=2)
    assert placed(events) == {}
    events = fleet.exit("small-main-1")
    assert set(placed(events)) == {"gang-main-1"}


def test_gpus_are_granted_again_in_the_cycle_that_releases_them(fleet: Story) -> None:
    fleet.submit("first", resources=H100_8, num_nodes=2)
    fleet.submit("second", resources=H100_8, num_nodes=2)
    events = fleet.exit("first-main-1")
    (second,) = [e for e in events if isinstance(e, RunPlaced)]
    assert second.run_id == "second-main-1"
    assert all(member.handover for member in second.members)


def test_gpus_that_lay_idle_are_not_a_handover(fleet: Story) -> None:
    fleet.submit("first", resources=H100_8)
    fleet.exit("first-main-1")
    events = fleet.submit("later", resources=H100_8)
    (later,) = [e for e in events if isinstance(e, RunPlaced)]
    assert not later.members[0].handover


def test_alternatives_are_tried_in_order(fleet: Story) -> None:
    fleet.submit("a", resources={"accelerators": ["A100:8", "H100:8"]})
    events = fleet.submit("b", resources={"accelerators": ["A100:8", "H100:8"]})
    assert placed(events) == {"b-main-1": [("h100-0", tuple(range(8)))]}


def test_higher_priority_goes_first_and_age_breaks_ties(fleet: Story) -> None:
    fleet.submit("holder", resources=H100_8, num_nodes=2)
    fleet.submit("old", resources=H100_8, num_nodes=2)
    fleet.submit("young", resources=H100_8, num_nodes=2)
    fleet.submit("urgent", resources=H100_8, num_nodes=2, priority=10)
    order = []
    for run in ("holder", "urgent", "old"):
        order += list(placed(fleet.exit(f"{run}-main-1")))
    assert order == ["urgent-main-1", "old-main-1", "young-main-1"]


def test_work_without_gpus_goes_to_the_node_with_the_fewest_members(fleet: Story) -> None:
    first = placed(fleet.submit("a"))
    second = placed(fleet.submit("b"))
    assert first == {"a-main-1": [("a100-0", ())]}
    assert second == {"b-main-1": [("h100-0", ())]}


def test_a_closed_node_takes_nothing_until_it_is_opened(fleet: Story) -> None:
    fleet.tell(CloseNode("a100-0", "silent for 10 s"))
    events = fleet.submit("j", resources={"accelerators": "A100:1"})
    assert explained(events)["j-main-1"].explanation.code is WaitCode.NODE_LOST
    assert set(placed(fleet.tell(OpenNode("a100-0")))) == {"j-main-1"}


def test_a_node_that_does_not_reach_the_store_is_passed_over(story: Story) -> None:
    story.join("h100-0", "H100", 8, stores=())
    events = story.submit("j", resources={"accelerators": "H100:1"})
    assert explained(events)["j-main-1"].explanation.code is WaitCode.STORE_UNREACHABLE


def test_an_agent_that_restarts_changes_nothing(fleet: Story) -> None:
    fleet.submit("j", resources={"accelerators": "A100:1"})
    assert fleet.join("a100-0", "A100", 8) == []
    changed = fleet.join("a100-0", "A100", 8, boot_id="boot-2")
    assert [type(e).__name__ for e in changed] == ["NodeJoined"]
    assert fleet.state.nodes["a100-0"].holders[0] == "j-main-1"


def test_a_waiting_run_says_why_with_numbers_and_what_would_start_it(fleet: Story) -> None:
    fleet.submit("holder", resources=H100_8)
    events = fleet.submit("gang", resources=H100_8, num_nodes=2)
    explanation = explained(events)["gang-main-1"].explanation
    assert explanation.code is WaitCode.NO_CAPACITY
    assert "8 of 16 are free" in explanation.sentence
    assert [step.gpus for step in explanation.funnel] == [24, 16, 16, 16, 8, 8]
    assert "1 nodes instead of 2" in explanation.starts_if


def test_scattered_gpus_are_called_fragmented(fleet: Story) -> None:
    fleet.submit("a", resources={"accelerators": "H100:4"})
    fleet.submit("b", resources={"accelerators": "H100:5"})
    events = fleet.submit("c", resources={"accelerators": "H100:7"})
    explanation = explained(events)["c-main-1"].explanation
    assert explanation.code is WaitCode.FRAGMENTED
    assert explanation.sentence.endswith("on no node enough together.")


def test_an_explanation_is_written_again_only_when_it_changes(fleet: Story) -> None:
    fleet.submit("holder", resources=H100_8, num_nodes=2)
    fleet.submit("waits", resources=H100_8)
    assert explained(fleet.tell()) == {}


@pytest.mark.parametrize(
    ("resources", "nodes", "code", "words"),
    [
        ("B200:1", 1, "NO_SUCH_TYPE", "it has 8 A100, 16 H100"),
        ("h10:1", 1, "NO_SUCH_TYPE", "Did you mean H100?"),
        ("H100:9", 1, "EXCEEDS_FLEET_MAX", "the largest node has 8"),
        ("A100:8", 2, "EXCEEDS_FLEET_MAX", "Needs 2 nodes with 8 A100 each; the fleet has 1."),
    ],
)
def test_what_can_never_run_is_refused_at_once(
    fleet: Story, resources: str, nodes: int, code: str, words: str
) -> None:
    (refused,) = fleet.submit("j", resources={"accelerators": resources}, num_nodes=nodes)
    assert isinstance(refused, WorkloadRefused)
    assert refused.code == code
    assert words in refused.reason


def test_a_fleet_without_nodes_refuses_nothing(story: Story) -> None:
    story.submit("j", resources={"accelerators": "H100:1"})
    assert set(placed(story.join("h100-0", "H100", 1))) == {"j-main-1"}
