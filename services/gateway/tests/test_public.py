"""What tenants may know: everything they need, nothing that is not theirs."""

import json
from typing import Any

from whaleflux.common.contracts.agent import ExitKind, RunReported
from whaleflux.common.contracts.scheduler import CancelWorkload
from whaleflux.gateway.core.public import Context, PublicEvent, publish
from whaleflux.gateway.core.public_data import EVENTS
from whaleflux.sim.story import START, Story

SECRET = "do-not-tell"


def context(**changes: Any) -> Context:
    facts: dict[str, Any] = {
        "simulated": {"h100-0": True}.get,
        "tenant_of": {"j-main-1": "acme"}.get,
        "operators": ("default",),
    } | changes
    return Context(**facts)


def tell(story: Story) -> list[PublicEvent]:
    return [public for event in story.log for public in publish(event, context())]


def whole_life(story: Story) -> list[PublicEvent]:
    story.submit(
        "j",
        run=f"echo {SECRET}",
        setup=SECRET,
        envs={"TOKEN": SECRET},
        resources={"accelerators": "H100:8"},
    )
    story.submit("waits", resources={"accelerators": "H100:8"})
    story.start("j-main-1")
    story.save("j-main-1", 3)
    story.exit("j-main-1", ExitKind.FAILED, exit_code=1)
    story.tell(CancelWorkload(workload_id="waits", user="ada"))
    story.exit("j-main-1")
    return tell(story)


def test_nothing_private_is_told(story: Story) -> None:
    text = json.dumps([e.data for e in whole_life(story)])
    for private in (SECRET, "body_hash", "inputs", "checkpoints/", "runs/", "manifest"):
        assert private not in text


def test_a_field_that_a_fact_gains_is_not_told_by_itself(story: Story) -> None:
    whole_life(story)
    for event in story.log:
        grown = type("Grown", (type(event),), {"__annotations__": {"internal": str}})
        fact = grown(**{**event.model_dump(), "internal": SECRET})
        assert SECRET not in json.dumps([public.data for public in publish(fact, context())])


def test_every_kind_that_is_told_is_documented(story: Story) -> None:
    told = {event.type for event in whole_life(story)}
    assert told <= set(EVENTS)
    assert {"run.queued", "run.placed", "run.explained", "run.ended", "workload.ended"} <= told


def test_workloads_are_told_to_their_tenant_and_nodes_to_operators(story: Story) -> None:
    for event in whole_life(story):
        assert event.tenant == ("default" if event.type.startswith("node.") else "acme")


def test_simulated_devices_are_marked(story: Story) -> None:
    for event in whole_life(story):
        if event.type in ("run.placed", "member.recorded", "member.released", "node.joined"):
            assert event.data["simulated"] is True


def test_an_unknown_node_is_neither_simulated_nor_real(story: Story) -> None:
    story.submit("j", resources={"accelerators": "H100:1"})
    nobody: dict[str, bool] = {}
    events = [p for e in story.log for p in publish(e, context(simulated=nobody.get))]
    (placed,) = [e for e in events if e.type == "run.placed"]
    assert placed.data["simulated"] is None


def test_progress_of_an_unknown_run_is_told_to_nobody() -> None:
    report = RunReported(at=START, node_id="h100-0", run_id="?", attempt=1, rank=0, step=1)
    assert publish(report, context()) == []


def test_progress_is_told_without_its_node() -> None:
    report = RunReported(
        at=START, node_id="h100-0", run_id="j-main-1", attempt=1, rank=0, metrics={"loss": 1.0}
    )
    (event,) = publish(report, context())
    assert (event.tenant, event.data["metrics"]) == ("acme", {"loss": 1.0})
    assert "node_id" not in event.data
