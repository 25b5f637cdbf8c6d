"""Views are the same in whatever order the logs are read, and nobody folds anything twice."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whaleflux.common.contracts.agent import ExitKind, RunReported
from whaleflux.common.contracts.failover import NodeFenced, NodeLost, NodeReturned
from whaleflux.common.contracts.workload import Fencing
from whaleflux.common.log import Conflict
from whaleflux.common.testing.memory import MemoryCache
from whaleflux.gateway.core.view_report import HISTORY_POINTS_MAX, fold_report, history
from whaleflux.gateway.shell.view_store import ViewStore
from whaleflux.scheduler.core.command import CloseNode, OpenNode
from whaleflux.sim.story import START, Story

Log = list[tuple[int, Any]]


def report(run_id: str, attempt: int, step: int, rank: int = 0, **metrics: float) -> RunReported:
    return RunReported(
        at=START,
        node_id="h100-0",
        run_id=run_id,
        attempt=attempt,
        rank=rank,
        step=step,
        metrics=metrics,
    )


def a_life() -> dict[str, Log]:
    """Return three logs in which everything meets: retries, gangs, reports, a lost node."""
    story = Story()
    story.join("h100-0", "H100", 8)
    story.join("h100-1", "H100", 8)
    story.submit("gang", num_nodes=2, resources={"accelerators": "H100:4"})
    story.submit("job", resources={"accelerators": "H100:2"})
    story.start("gang-main-1")
    story.exit("job-main-1", ExitKind.FAILED, exit_code=1, metrics={"loss": 3.0})
    story.exit("job-main-1", metrics={"loss": 0.5})
    story.tell(CloseNode("h100-1", "lost"))
    story.tell(OpenNode("h100-1"))
    story.tell(CloseNode("h100-0", "lost"))
    reports = [
        report("gang-main-1", 1, 1, rank=1, reward=0.1),
        report("job-main-1", 1, 4, loss=4.0),
        report("gang-main-1", 1, 2, rank=0, reward=0.2),
        report("job-main-1", 2, 2, loss=1.0, lr=0.1),
        report("gang-main-1", 1, 3, rank=1, reward=9.9),
    ]
    verdicts: list[Any] = [
        NodeLost(at=START, node_id="h100-1", incident=1, silent_s=10.0),
        NodeFenced(at=START, node_id="h100-1", incident=1, fencing=Fencing.FAST),
        NodeReturned(at=START, node_id="h100-1", incident=1, boot_id="b"),
        NodeLost(at=START, node_id="h100-0", incident=2, silent_s=10.0),
    ]
    return {
        "EVT_SCHEDULER_c0": list(enumerate(story.log, 1)),
        "EVT_AGENT": list(enumerate(reports, 1)),
        "EVT_FAILOVER": list(enumerate(verdicts, 1)),
    }


LIFE = a_life()
NAMES = {
    "workload": ["gang", "job"],
    "run": ["gang-main-1", "job-main-1"],
    "node": ["h100-0", "h100-1"],
    "report": ["gang-main-1", "job-main-1"],
}


async def fold_in(turns: list[tuple[str, int]]) -> dict[str, list[Any]]:
    """Fold so many events of each log in turn, then what is left; return all that is shown."""
    views = ViewStore(MemoryCache())
    await views.prepare()
    done = dict.fromkeys(LIFE, 0)
    for stream, count in (*turns, *((stream, len(log)) for stream, log in LIFE.items())):
        events = LIFE[stream][done[stream] : done[stream] + count]
        if events:
            await views.project(stream, events, after_seq=done[stream])
            done[stream] += len(events)
    return {kind: [await views.document(kind, id_) for id_ in ids] for kind, ids in NAMES.items()}


@given(st.lists(st.tuples(st.sampled_from(sorted(LIFE)), st.integers(1, 9)), max_size=25))
async def test_the_order_in_which_logs_are_read_changes_nothing(
    turns: list[tuple[str, int]],
) -> None:
    assert await fold_in(turns) == await fold_in([])


async def test_what_is_shown_in_the_end_is_what_happened() -> None:
    shown = await fold_in([])
    gang, job = shown["run"]
    assert (gang["metrics"], gang["step"]) == ({"reward": 0.2}, 2)
    assert (job["metrics"], job["step"]) == ({"loss": 0.5, "lr": 0.1}, 2)
    lost, back = shown["node"]
    assert (lost["state"], lost["incident"]) == ("lost", 2)
    assert (back["state"], back["incident"]) == ("ready", 1)


async def test_who_was_overtaken_while_folding_changes_nothing() -> None:
    views = ViewStore(MemoryCache())
    await views.prepare()
    log = LIFE["EVT_SCHEDULER_c0"]
    await views.project("EVT_SCHEDULER_c0", log[:6], after_seq=0)
    await views.project("EVT_SCHEDULER_c0", log[6:], after_seq=6)
    before = await views.document("run", "job-main-1")
    with pytest.raises(Conflict):
        await views.project("EVT_SCHEDULER_c0", log[6:9], after_seq=6)
    assert await views.document("run", "job-main-1") == before
    assert await views.position("EVT_SCHEDULER_c0") == len(log)


def test_a_long_history_is_thinned_and_spans_the_whole_run() -> None:
    kept = None
    for step in range(1, 1001):
        kept = fold_report(kept, report("r", 1, step, loss=float(step)))
    assert kept is not None
    steps = [point["step"] for point in history({"attempt": 1}, kept)]
    assert len(steps) <= HISTORY_POINTS_MAX
    assert steps[0] == 1 and steps[-1] > 950
    gaps = {b - a for a, b in pairwise(steps)}
    assert len(gaps) == 1
    assert history({"attempt": 2}, kept) == []
    assert kept["metrics"] == {"loss": 1000.0}
