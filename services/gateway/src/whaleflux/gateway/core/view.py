"""What people are shown, folded from facts: one document for each workload, run and node.

What comes by a log of its own (reports of programs, verdicts on nodes) has documents of its own,
because nothing orders the logs among one another.

A `View` holds the documents that a batch of events touches; the shell loads them before (`keys`
says which) and stores them after, in one transaction with the position in the log. Folding is
idempotent only together with that position, which is why they travel together.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from whaleflux.common.contracts.agent import AgentEvent, RunReported
from whaleflux.common.contracts.failover import FailoverEvent, NodeFenced, NodeLost, NodeReturned
from whaleflux.common.contracts.scheduler import LoopEnded as LoopEndedEvent
from whaleflux.common.contracts.scheduler import (
    NodeCleared,
    NodeClosed,
    NodeJoined,
    NodeOpened,
    SchedulerEvent,
    WorkloadCancelling,
    WorkloadEnded,
    WorkloadRefused,
    WorkloadSubmitted,
)
from whaleflux.gateway.core.view_node import Verdict, fold_node, fold_verdict, show_verdict
from whaleflux.gateway.core.view_report import fold_report, show_report
from whaleflux.gateway.core.view_run import RunEvent, fold_run

Document: TypeAlias = dict[str, Any]
Shown: TypeAlias = SchedulerEvent | AgentEvent | FailoverEvent


@dataclass(slots=True)
class View:
    """Documents by kind and id; `touched` are those that changed."""

    workloads: dict[str, Document] = field(default_factory=dict[str, Document])
    runs: dict[str, Document] = field(default_factory=dict[str, Document])
    nodes: dict[str, Document] = field(default_factory=dict[str, Document])
    reports: dict[str, Document] = field(default_factory=dict[str, Document])
    """By run."""
    verdicts: dict[str, Document] = field(default_factory=dict[str, Document])
    """By node."""
    touched: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    def touch(self, kind: str, id_: str) -> None:
        """Note that a document changed."""
        self.touched.add((kind, id_))

    def of(self, kind: str) -> dict[str, Document]:
        """Return the documents of one kind, by id."""
        return {
            "workload": self.workloads,
            "run": self.runs,
            "node": self.nodes,
            "report": self.reports,
            "verdict": self.verdicts,
        }[kind]


def keys(event: Shown) -> list[tuple[str, str]]:
    """Return (kind, id) of every document that folding *event* may read."""
    found: list[tuple[str, str]] = []
    workload_id = getattr(event, "workload_id", None)
    if workload_id is not None:
        found.append(("workload", workload_id))
    run_id = getattr(event, "run_id", None)
    if run_id is not None:
        found += [("run", run_id), ("report", run_id)]
    node_id = getattr(event, "node_id", None)
    if node_id is not None:
        found += [("node", node_id), ("verdict", node_id)]
    found += [("node", member.node_id) for member in getattr(event, "members", ())]
    return found


def fold(view: View, event: Shown, seq: int) -> None:
    """Fold one event; what belongs to documents that are not there is passed over."""
    match event:
        case WorkloadSubmitted() | WorkloadRefused():
            view.workloads[event.workload_id] = _workload(event, seq)
            view.touch("workload", event.workload_id)
        case WorkloadCancelling() | WorkloadEnded() | LoopEndedEvent():
            _change_workload(view, event)
        case NodeJoined() | NodeClosed() | NodeOpened() | NodeCleared():
            _node(view, event)
        case NodeLost() | NodeFenced() | NodeReturned():
            _verdict(view, event)
        case RunReported():
            _report(view, event)
        case _:
            if isinstance(event, RunEvent):
                fold_run(view, event, seq)
                _show_run(view, event.run_id)


def _workload(event: WorkloadSubmitted | WorkloadRefused, seq: int) -> Document:
    document: Document = {
        "id": event.workload_id,
        "tenant": event.tenant,
        "user": event.user,
        "seq": seq,
        "body_hash": event.body_hash,
        "created_at": event.at.isoformat(),
        "ended_at": None,
        "outcome": None,
        "reason": None,
        "runs": [],
        "loops": [],
        "phases": [],
        "simulated": None,
    }
    if isinstance(event, WorkloadRefused):
        return document | {
            "name": event.name,
            "kind": None,
            "project": None,
            "state": "refused",
            "outcome": "refused",
            "code": event.code,
            "reason": event.reason,
            "ended_at": event.at.isoformat(),
        }
    spec = event.spec
    return document | {
        "name": spec.name,
        "kind": spec.kind.value,
        "project": spec.project,
        "priority": spec.priority,
        "state": "queued",
        "spec": spec.model_dump(mode="json"),
        "loops": [
            {
                "name": loop.name,
                "phases": list(loop.phases),
                "max": loop.max,
                "until": loop.until,
                "iterations": None,
                "reason": None,
            }
            for loop in spec.loops
        ],
        "phases": [
            {
                "name": phase.name,
                "role": phase.role,
                "needs": list(phase.needs),
                "state": "waiting",
                "iteration": 0,
            }
            for phase in spec.phases
        ],
    }


def _change_workload(
    view: View, event: WorkloadCancelling | WorkloadEnded | LoopEndedEvent
) -> None:
    document = view.workloads.get(event.workload_id)
    if document is None:
        return
    match event:
        case WorkloadCancelling():
            document["state"] = "cancelling"
            document["reason"] = f"cancelled by {event.user}"
        case WorkloadEnded():
            document["state"] = document["outcome"] = event.outcome.value
            document["reason"] = event.reason
            document["ended_at"] = event.at.isoformat()
        case LoopEndedEvent():
            for loop in document["loops"]:
                if loop["name"] == event.loop:
                    loop |= {"iterations": event.iterations, "reason": event.reason}
    view.touch("workload", event.workload_id)


def _node(view: View, event: NodeJoined | NodeClosed | NodeOpened | NodeCleared) -> None:
    node = fold_node(view.nodes.get(event.node_id), event)
    if node is not None:
        view.nodes[event.node_id] = node
        _show_node(view, event.node_id)


def _verdict(view: View, event: Verdict) -> None:
    view.verdicts[event.node_id] = fold_verdict(event)
    view.touch("verdict", event.node_id)
    _show_node(view, event.node_id)


def _show_node(view: View, node_id: str) -> None:
    node = view.nodes.get(node_id)
    if node is not None:
        show_verdict(node, view.verdicts.get(node_id))
        view.touch("node", node_id)


def _report(view: View, event: RunReported) -> None:
    report = fold_report(view.reports.get(event.run_id), event)
    if report is not None:
        view.reports[event.run_id] = report
        view.touch("report", event.run_id)
        _show_run(view, event.run_id)


def _show_run(view: View, run_id: str) -> None:
    run = view.runs.get(run_id)
    if run is not None:
        show_report(run, view.reports.get(run_id))
        view.touch("run", run_id)


def changed(view: View) -> Iterable[tuple[str, str, Document]]:
    """Yield (kind, id, document) of everything that changed, in a stable order."""
    for kind, id_ in sorted(view.touched):
        yield kind, id_, view.of(kind)[id_]
