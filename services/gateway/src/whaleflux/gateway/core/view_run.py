"""How a run's document, and its workload's summary, follow the scheduler's facts."""

from typing import Any, Protocol, TypeAlias, assert_never

from whaleflux.common.contracts.scheduler import (
    CheckpointRecorded,
    MemberRecorded,
    MemberReleased,
    RunEnded,
    RunExplained,
    RunPlaced,
    RunQueued,
    RunStarted,
    RunStopping,
)

Document: TypeAlias = dict[str, Any]
RunEvent = (
    RunQueued
    | RunPlaced
    | RunExplained
    | RunStarted
    | RunStopping
    | RunEnded
    | MemberRecorded
    | MemberReleased
    | CheckpointRecorded
)


class Documents(Protocol):
    """The documents a run's facts touch."""

    workloads: dict[str, Document]
    runs: dict[str, Document]
    nodes: dict[str, Document]

    def touch(self, kind: str, id_: str) -> None:
        """Note that a document changed."""
        ...


def fold_run(view: Documents, event: RunEvent, seq: int) -> None:
    """Fold one fact about a run."""
    if isinstance(event, RunQueued):
        _queued(view, event, seq)
    run = view.runs.get(event.run_id)
    if run is None:
        return
    match event:
        case RunQueued():
            _new_attempt(run, event)
        case RunPlaced():
            _placed(view, run, event)
        case RunExplained():
            run["explanation"] = event.explanation.model_dump(mode="json")
        case MemberRecorded():
            _member(run, event.rank).update(
                state="running",
                handover_gap_ms=event.handover_gap_ms,
                resumed_from_step=event.resumed_from_step,
            )
        case RunStarted():
            run |= {"state": "running", "started_at": event.at.isoformat()}
        case RunStopping():
            run |= {"state": "stopping", "reason": event.reason}
        case MemberReleased():
            _released(view, run, event)
        case CheckpointRecorded():
            run["checkpoint"] = {
                "step": event.checkpoint.step,
                "attempt": event.checkpoint.attempt,
                "safe": event.checkpoint.safe,
                "at": event.at.isoformat(),
            }
        case RunEnded():
            _ended(run, event)
        case _:
            assert_never(event)
    view.touch("run", event.run_id)
    _summarise(view, event.workload_id, run)


def _queued(view: Documents, event: RunQueued, seq: int) -> None:
    if event.run_id in view.runs:
        return
    view.runs[event.run_id] = {
        "id": event.run_id,
        "workload_id": event.workload_id,
        "tenant": event.tenant,
        "phase": event.phase,
        "iteration": event.iteration,
        "role": event.role,
        "seq": seq,
        "created_at": event.at.isoformat(),
        "attempts": [],
        "checkpoint": None,
    }
    workload = view.workloads.get(event.workload_id)
    if workload is not None:
        workload["runs"].append(event.run_id)


def _new_attempt(run: Document, event: RunQueued) -> None:
    run |= {
        "attempt": event.attempt,
        "state": "queued",
        "queued_at": event.at.isoformat(),
        "queued_reason": event.reason,
        "resume_from_step": event.resume_from[0].step if event.resume_from else None,
        "placed_at": None,
        "started_at": None,
        "ended_at": None,
        "outcome": None,
        "reason": None,
        "gpu_type": None,
        "why": None,
        "members": [],
        "kept": {"released": {}, "ended": {}},
        "explanation": None,
        "simulated": None,
    }


def _placed(view: Documents, run: Document, event: RunPlaced) -> None:
    nodes = [view.nodes.get(m.node_id) for m in event.members]
    run |= {
        "state": "placed",
        "placed_at": event.at.isoformat(),
        "gpu_type": event.gpu_type,
        "why": event.why,
        "explanation": None,
        "simulated": any(node is not None and node["simulated"] for node in nodes),
        "members": [
            {
                "rank": m.rank,
                "node_id": m.node_id,
                "gpus": list(m.gpus),
                "handover": m.handover,
                "state": "starting",
                "handover_gap_ms": None,
                "resumed_from_step": None,
                "exit_code": None,
                "signal": None,
                "detail": None,
            }
            for m in event.members
        ],
    }
    for member in event.members:
        _hold(view, member.node_id, member.gpus, event.run_id)


def _hold(
    view: Documents, node_id: str, gpus: tuple[int, ...] | list[int], run_id: str | None
) -> None:
    node = view.nodes.get(node_id)
    if node is None:
        return
    for gpu in node["gpus"]:
        if gpu["index"] in gpus:
            gpu["run_id"] = run_id
    view.touch("node", node_id)


def _member(run: Document, rank: int) -> Document:
    for member in run["members"]:
        if member["rank"] == rank:
            found: Document = member
            return found
    return {}


def _released(view: Documents, run: Document, event: MemberReleased) -> None:
    member = _member(run, event.rank)
    member |= {
        "state": event.kind.value,
        "exit_code": event.exit_code,
        "signal": event.signal,
        "detail": event.reason or None,
    }
    run["kept"]["released"] = {**event.metrics, **run["kept"]["released"]}
    _hold(view, event.node_id, member.get("gpus", []), None)


def _ended(run: Document, event: RunEnded) -> None:
    run |= {
        "state": event.outcome.value,
        "outcome": event.outcome.value,
        "reason": event.reason,
        "ended_at": event.at.isoformat(),
    }
    run["kept"]["ended"] = dict(event.metrics)
    run["attempts"].append(
        {
            "attempt": event.attempt,
            "outcome": event.outcome.value,
            "reason": event.reason,
            "queued_at": run["queued_at"],
            "started_at": run["started_at"],
            "ended_at": event.at.isoformat(),
            "resume_from_step": run["resume_from_step"],
            "gpu_type": run["gpu_type"],
            "members": run["members"],
        }
    )


def _summarise(view: Documents, workload_id: str, run: Document) -> None:
    workload = view.workloads.get(workload_id)
    if workload is None or workload["ended_at"] is not None:
        return
    for phase in workload["phases"]:
        if phase["name"] == run["phase"]:
            phase |= {"state": run["state"], "iteration": run["iteration"]}
            settled = {**run["kept"]["released"], **run["kept"]["ended"]}
            if settled:
                phase["metrics"] = settled
    if run["simulated"] is not None:
        workload["simulated"] = bool(workload["simulated"]) or run["simulated"]
    if workload["state"] in ("queued", "running"):
        busy = any(p["state"] in ("placed", "running", "stopping") for p in workload["phases"])
        begun = any(p["state"] not in ("waiting", "queued") for p in workload["phases"])
        workload["state"] = "running" if busy or begun else "queued"
    view.touch("workload", workload_id)
