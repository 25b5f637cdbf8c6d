"""Every (state, event) pair of a run: what moves it and what must leave it alone."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from whaleflux.common.contracts.agent import ExitKind
from whaleflux.common.contracts.assignment import CheckpointRef
from whaleflux.common.contracts.scheduler import (
    CheckpointRecorded,
    Explanation,
    MemberPlacement,
    MemberRecorded,
    MemberReleased,
    Outcome,
    RunEnded,
    RunExplained,
    RunPlaced,
    RunQueued,
    RunStarted,
    RunStopping,
    WaitCode,
)
from whaleflux.scheduler.core.evolve import evolve
from whaleflux.sim.story import Story

AT = datetime(2031, 1, 1, tzinfo=UTC)
WHO: dict[str, Any] = {"at": AT, "run_id": "j-main-1", "workload_id": "j", "tenant": "acme"}

EVENTS: dict[str, Callable[[], Any]] = {
    "RunQueued": lambda: RunQueued(
        phase="main", iteration=1, attempt=2, role=None, reason="again", **WHO
    ),
    "RunPlaced": lambda: RunPlaced(
        attempt=1,
        gpu_type="H100",
        members=(MemberPlacement(rank=0, node_id="h100-0", gpus=(0,), handover=False),),
        why="it fits",
        **WHO,
    ),
    "MemberRecorded": lambda: MemberRecorded(attempt=1, rank=0, node_id="h100-0", **WHO),
    "RunStarted": lambda: RunStarted(attempt=1, **WHO),
    "RunStopping": lambda: RunStopping(attempt=1, reason="asked", **WHO),
    "MemberReleased": lambda: MemberReleased(
        attempt=1, rank=0, node_id="h100-0", kind=ExitKind.DONE, **WHO
    ),
    "RunEnded": lambda: RunEnded(
        attempt=1, outcome=Outcome.SUCCEEDED, reason="done", final=True, **WHO
    ),
    "RunExplained": lambda: RunExplained(
        attempt=1, explanation=Explanation(code=WaitCode.QUEUED, sentence="soon"), **WHO
    ),
    "CheckpointRecorded": lambda: CheckpointRecorded(
        checkpoint=CheckpointRef(attempt=1, step=1, path="p", manifest_sha256="m", safe=True),
        **WHO,
    ),
}

PATHS: dict[str, list[str]] = {
    "Queued": [],
    "Placed": ["RunPlaced"],
    "Running": ["RunPlaced", "MemberRecorded", "RunStarted"],
    "Stopping": ["RunPlaced", "RunStopping"],
    "Ended": ["RunPlaced", "MemberReleased", "RunEnded"],
}

MOVES: dict[tuple[str, str], str] = {
    ("Queued", "RunPlaced"): "Placed",
    ("Queued", "RunEnded"): "Ended",
    ("Placed", "RunStarted"): "Running",
    ("Placed", "RunStopping"): "Stopping",
    ("Placed", "RunEnded"): "Ended",
    ("Running", "RunStopping"): "Stopping",
    ("Running", "RunEnded"): "Ended",
    ("Stopping", "RunEnded"): "Ended",
    ("Ended", "RunQueued"): "Queued",
    ("Ended", "RunPlaced"): "Placed",
    ("Placed", "RunQueued"): "Queued",
    ("Running", "RunQueued"): "Queued",
    ("Stopping", "RunQueued"): "Queued",
    ("Running", "RunPlaced"): "Placed",
    ("Stopping", "RunPlaced"): "Placed",
}
"""Facts are believed: what `decide` never writes (the last six) is folded as it stands."""


@pytest.mark.parametrize("state", PATHS)
@pytest.mark.parametrize("event", EVENTS)
def test_an_event_moves_a_run_as_drawn_and_never_otherwise(
    fleet: Story, state: str, event: str
) -> None:
    fleet.tell()
    queued = EVENTS["RunQueued"]().model_copy(update={"attempt": 1})
    submitted = fleet.submit("j", resources={"accelerators": "H100:1"})[0]
    fresh = type(fleet)()
    fresh.join("h100-0", "H100", 8)
    evolve(fresh.state, submitted, 1)
    evolve(fresh.state, queued, 2)
    for seq, name in enumerate(PATHS[state], start=3):
        evolve(fresh.state, EVENTS[name](), seq)
    run = fresh.state.runs["j-main-1"]
    assert type(run.state).__name__ == state

    evolve(fresh.state, EVENTS[event](), 10)

    assert type(run.state).__name__ == MOVES.get((state, event), state)
