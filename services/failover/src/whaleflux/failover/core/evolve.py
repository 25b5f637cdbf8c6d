"""Fold failover's facts into its state."""

from typing import assert_never

from whaleflux.common.contracts.failover import (
    FailoverEvent,
    FailoverRecord,
    LeaderElected,
    NodeAdmitted,
    NodeFenced,
    NodeLost,
    NodeReturned,
)
from whaleflux.common.contracts.workload import Fencing
from whaleflux.failover.core.state import FencedFast, FencedPatient, Live, Lost, NodeState, State


def evolve(state: State, event: FailoverRecord, seq: int) -> None:
    """Change *state* by one event of the log; never refuse."""
    if isinstance(event, LeaderElected):
        state.term = event.term
        return
    before = state.nodes.get(event.node_id)
    state.nodes[event.node_id] = _next(before, event)
    if not isinstance(event, NodeAdmitted):
        state.incidents = max(state.incidents, event.incident)


def _next(before: NodeState | None, event: FailoverEvent) -> NodeState:
    boot_id = before.boot_id if before is not None else ""
    match event:
        case NodeAdmitted():
            return Live(event.boot_id, before.incident if before is not None else 0)
        case NodeReturned():
            return Live(event.boot_id, event.incident)
        case NodeLost():
            # A fence that was announced stays announced: work may have started elsewhere.
            if isinstance(before, FencedFast | FencedPatient):
                return before
            return Lost(boot_id, event.incident)
        case NodeFenced():
            if event.fencing is Fencing.PATIENT or isinstance(before, FencedPatient):
                return FencedPatient(boot_id, event.incident)
            return FencedFast(boot_id, event.incident)
        case _:
            assert_never(event)
