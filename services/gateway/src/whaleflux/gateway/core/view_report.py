"""What a run's program says of itself, kept apart from what the scheduler knows of the run.

Reports come by another log than the run's own facts, and nothing orders the two logs. So each is
folded into a document of its own, and a run is shown as the newest of both: a fold from nothing
gives what was shown before, in whatever order the logs are read.
"""

from typing import Any, TypeAlias

from whaleflux.common.contracts.agent import RunReported

Document: TypeAlias = dict[str, Any]

HISTORY_POINTS_MAX = 60
"""Points of a run's history: enough for a curve in a terminal, little enough to send along."""


def fold_report(kept: Document | None, event: RunReported) -> Document | None:
    """Return the report document after *event*, or None where nothing changes.

    The newest attempt counts, and in it the lowest rank that has spoken.
    """
    if kept is not None and event.attempt < kept["attempt"]:
        return None
    at = event.at.isoformat()
    if kept is None or event.attempt > kept["attempt"] or event.rank < kept["rank"]:
        kept = _new(event)
    elif event.rank > kept["rank"]:
        return {**kept, "reported_at": at}
    changed = {**kept, "reported_at": at, "metrics": {**kept["metrics"], **event.metrics}}
    if event.step is not None:
        changed["step"] = event.step
    if event.progress is not None:
        changed["progress"] = event.progress
    if event.metrics:
        _remember(changed, {"at": at, "step": event.step, "metrics": dict(event.metrics)})
    return changed


def _new(event: RunReported) -> Document:
    return {
        "attempt": event.attempt,
        "rank": event.rank,
        "metrics": {},
        "step": None,
        "progress": None,
        "points": 0,
        "every": 1,
        "history": [],
    }


def _remember(report: Document, point: Document) -> None:
    """Keep every n-th point, and double n when they become too many."""
    history = list(report["history"])
    if report["points"] % report["every"] == 0:
        history.append(point)
    report["points"] += 1
    if len(history) > HISTORY_POINTS_MAX:
        history = history[::2]
        report["every"] *= 2
    report["history"] = history


def show_report(run: Document, report: Document | None) -> None:
    """Write into *run* what its live attempt reported, below what its end has settled."""
    said = report if report is not None and report["attempt"] == run["attempt"] else None
    kept = run["kept"]
    run |= {
        "step": None if said is None else said["step"],
        "progress": None if said is None else said["progress"],
        "reported_at": None if said is None else said["reported_at"],
        "metrics": {
            **kept["released"],
            **({} if said is None else said["metrics"]),
            **kept["ended"],
        },
    }


def history(run: Document, report: Document | None) -> list[Document]:
    """Return the points that the run's newest attempt reported, oldest first."""
    if report is None or report["attempt"] != run["attempt"]:
        return []
    found: list[Document] = report["history"]
    return found
