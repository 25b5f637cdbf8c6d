"""How a node's document follows the scheduler's facts and failover's verdicts.

The two come by different logs that nothing orders, so each has a document of its own; the state
that is shown is the graver of both.
"""

from typing import Any, TypeAlias

from whaleflux.common.contracts.failover import NodeFenced, NodeLost, NodeReturned
from whaleflux.common.contracts.scheduler import NodeCleared, NodeClosed, NodeJoined, NodeOpened

Document: TypeAlias = dict[str, Any]
Verdict: TypeAlias = NodeLost | NodeFenced | NodeReturned


def fold_node(
    node: Document | None, event: NodeJoined | NodeClosed | NodeOpened | NodeCleared
) -> Document | None:
    """Return the node's document after *event*, or None for a node that never joined."""
    if isinstance(event, NodeJoined):
        held = {} if node is None else {g["index"]: g["run_id"] for g in node["gpus"]}
        return {
            "id": event.node_id,
            "closed": None if node is None else node["closed"],
            "simulated": event.simulated,
            "cpus": event.cpus,
            "memory_mib": event.memory_mib,
            "stores": list(event.stores),
            "gpus": [
                {**gpu.model_dump(mode="json"), "run_id": held.get(gpu.index)} for gpu in event.gpus
            ],
        }
    if node is None:
        return None
    if isinstance(event, NodeClosed):
        return {**node, "closed": event.reason}
    if isinstance(event, NodeOpened):
        return {**node, "closed": None}
    return node


def fold_verdict(event: Verdict) -> Document:
    """Return what failover last said about a node."""
    state: str | None = None
    reason: str | None = None
    match event:
        case NodeLost():
            state, reason = "lost", f"silent for {event.silent_s:.0f} s"
        case NodeFenced():
            state, reason = "fenced", f"fenced for {event.fencing.value} work"
        case NodeReturned():
            pass
    return {"state": state, "reason": reason, "incident": event.incident}


def show_verdict(node: Document, verdict: Document | None) -> None:
    """Write into *node* the state that both logs give it."""
    if verdict is not None and verdict["state"] is not None:
        shown = (verdict["state"], verdict["reason"])
    elif node["closed"] is not None:
        shown = ("closed", node["closed"])
    else:
        shown = ("ready", None)
    node["state"], node["reason"] = shown
    node["incident"] = None if verdict is None else verdict["incident"]
