"""What people are shown, folded from what the scheduler really writes."""

from typing import Any

from whaleflux.common.contracts.agent import ExitKind, RunReported
from whaleflux.common.contracts.failover import NodeLost, NodeReturned
from whaleflux.common.contracts.scheduler import CancelWorkload
from whaleflux.sim.story import START

H100 = {"accelerators": "H100:8"}


async def test_a_job_is_shown_from_queue_to_end(shown: Any) -> None:
    shown.story.submit("j", resources=H100)
    run = await shown.run("j-main-1")
    assert (run["state"], run["gpu_type"], run["simulated"]) == ("placed", "H100", True)
    assert (await shown.workload("j"))["state"] == "running"
    shown.story.start("j-main-1")
    assert (await shown.run("j-main-1"))["state"] == "running"
    shown.story.exit("j-main-1", metrics={"loss": 0.5})
    run = await shown.run("j-main-1")
    assert (run["state"], run["metrics"]) == ("succeeded", {"loss": 0.5})
    workload = await shown.workload("j")
    assert (workload["state"], workload["runs"]) == ("succeeded", ["j-main-1"])
    assert workload["simulated"] is True


async def test_a_waiting_run_shows_its_reason_until_it_is_placed(shown: Any) -> None:
    shown.story.submit("a", resources=H100)
    shown.story.submit("b", resources=H100)
    run = await shown.run("b-main-1")
    assert run["explanation"]["code"] == "NO_CAPACITY"
    assert (await shown.workload("b"))["state"] == "queued"
    shown.story.exit("a-main-1")
    assert (await shown.run("b-main-1"))["explanation"] is None


async def test_gpus_show_who_holds_them(shown: Any) -> None:
    shown.story.submit("a", resources={"accelerators": "H100:2"})
    node = await shown.node("h100-0")
    assert [g["run_id"] for g in node["gpus"]] == ["a-main-1"] * 2 + [None] * 6
    shown.story.exit("a-main-1")
    assert {g["run_id"] for g in (await shown.node("h100-0"))["gpus"]} == {None}


async def test_attempts_that_ended_are_kept_with_their_reasons(shown: Any) -> None:
    shown.story.submit("j", resources=H100)
    shown.story.save("j-main-1", 7)
    shown.story.exit("j-main-1", ExitKind.FAILED, exit_code=3)
    run = await shown.run("j-main-1")
    assert (run["attempt"], run["state"], run["resume_from_step"]) == (2, "placed", 7)
    (first,) = run["attempts"]
    assert first["outcome"] == "failed"
    assert first["members"][0]["exit_code"] == 3
    assert run["checkpoint"]["step"] == 7


async def test_a_refused_workload_is_shown_with_its_code(shown: Any) -> None:
    shown.story.submit("j", resources={"accelerators": "B200:1"})
    workload = await shown.workload("j")
    assert (workload["state"], workload["code"]) == ("refused", "NO_SUCH_TYPE")


async def test_a_cancelled_workload_says_by_whom(shown: Any) -> None:
    shown.story.submit("j", resources=H100)
    shown.story.tell(CancelWorkload(workload_id="j", user="ada"))
    workload = await shown.workload("j")
    assert (workload["state"], workload["reason"]) == ("cancelling", "cancelled by ada")


async def test_a_pipeline_shows_where_each_phase_stands(shown: Any) -> None:
    shown.story.submit(
        "p",
        kind="pipeline",
        phases=[
            {"name": "a", "run": "x", "resources": H100},
            {"name": "b", "run": "x", "needs": ["a"], "resources": H100},
        ],
        loops=[{"name": "l", "phases": ["b"], "max": 2}],
    )
    shown.story.exit("p-a-1")
    states = {p["name"]: p["state"] for p in (await shown.workload("p"))["phases"]}
    assert states == {"a": "succeeded", "b": "placed"}
    shown.story.exit("p-b-1")
    shown.story.exit("p-b-2")
    workload = await shown.workload("p")
    assert workload["loops"][0]["iterations"] == 2
    assert workload["runs"] == ["p-a-1", "p-b-1", "p-b-2"]


async def test_progress_of_the_live_attempt_is_shown_and_of_older_ones_not(shown: Any) -> None:
    shown.story.submit("j", resources=H100)
    await shown.catch_up()

    async def report(attempt: int, step: int) -> None:
        event = RunReported(
            at=START, node_id="h100-0", run_id="j-main-1", attempt=attempt, rank=0, step=step
        )
        position = await shown.views.position("EVT_AGENT")
        await shown.views.project("EVT_AGENT", [(step, event)], after_seq=position)

    await report(1, 5)
    assert (await shown.run("j-main-1"))["step"] == 5
    shown.story.exit("j-main-1", ExitKind.FAILED)
    assert (await shown.run("j-main-1"))["step"] is None
    await report(2, 1)
    await report(1, 9)
    assert (await shown.run("j-main-1"))["step"] == 1


async def test_a_lost_node_is_shown_as_lost_until_it_returns(shown: Any) -> None:
    await shown.catch_up()
    lost = NodeLost(at=START, node_id="h100-0", incident=1, silent_s=10.2)
    await shown.views.project("EVT_FAILOVER", [(1, lost)], after_seq=0)
    node = await shown.node("h100-0")
    assert (node["state"], node["reason"]) == ("lost", "silent for 10 s")
    back = NodeReturned(at=START, node_id="h100-0", incident=1, boot_id="b")
    await shown.views.project("EVT_FAILOVER", [(2, back)], after_seq=1)
    assert (await shown.node("h100-0"))["state"] == "ready"


async def test_folding_everything_anew_gives_the_same_views(shown: Any) -> None:
    shown.story.submit("j", resources=H100)
    shown.story.exit("j-main-1", ExitKind.FAILED, signal=9)
    shown.story.exit("j-main-1")
    first = await shown.run("j-main-1"), await shown.workload("j"), await shown.node("h100-0")
    again = type(shown)(shown.story)
    await again.views.prepare()
    assert first == (
        await again.run("j-main-1"),
        await again.workload("j"),
        await again.node("h100-0"),
    )


async def test_another_schema_makes_all_be_forgotten(shown: Any) -> None:
    from whaleflux.common.valkey_cache import Op

    await shown.catch_up()
    await shown.views._cache.apply([Op("set", "view:schema", "0")])
    await shown.views.prepare()
    assert await shown.views.document("node", "h100-0") is None
    assert await shown.views.position("EVT_SCHEDULER_c0") == 0
