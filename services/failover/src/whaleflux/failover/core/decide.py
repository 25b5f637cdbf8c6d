"""Which facts follow from a renewal or from silence, and what a renewing node is told."""

from collections.abc import Sequence
from datetime import datetime
from typing import assert_never

from whaleflux.common.contracts.failover import (
    LOST_AFTER_S,
    SUSPECT_AFTER_S,
    FailoverEvent,
    FailoverRecord,
    LeaderElected,
    LeaseAnswer,
    NodeAdmitted,
    NodeFenced,
    NodeLost,
    NodeReturned,
)
from whaleflux.failover.core.command import Elect, RenewLease, Sweep, Thought
from whaleflux.failover.core.state import (
    FENCED_AFTER_S,
    FencedFast,
    FencedPatient,
    Live,
    Lost,
    NodeState,
    State,
    unfenced,
)


def decide(state: State, command: Thought, now: datetime) -> Sequence[FailoverRecord]:
    """Return the facts that follow from *command*; none when nothing changes.

    What a leader heard or counted before another was elected has no consequences: a process that
    slept must not fence the nodes that its successor grants.
    """
    if isinstance(command, Elect):
        return [] if state.term == command.term else [LeaderElected(at=now, term=command.term)]
    if command.term != state.term:
        return []
    match command:
        case RenewLease():
            return _renew(state, command, now)
        case Sweep():
            return _sweep(state, command, now)
        case _:
            assert_never(command)


def answer(state: State, *, node_id: str, boot_id: str) -> LeaseAnswer:
    """Return what the log says to a node that renews, once its renewal has been decided.

    Every answer but `granted` for the live boot is `fenced`: also to a second machine that uses
    the name of one that is renewing.
    """
    node = state.nodes.get(node_id)
    if isinstance(node, Live) and node.boot_id == boot_id:
        return LeaseAnswer.GRANTED
    return LeaseAnswer.FENCED


def incident_of(state: State, node_id: str) -> int:
    """Return the number of the node's newest incident; 0 when it never had one."""
    node = state.nodes.get(node_id)
    return 0 if node is None else node.incident


def _renew(state: State, command: RenewLease, now: datetime) -> list[FailoverEvent]:
    node = state.nodes.get(command.node_id)
    if node is None:
        return [NodeAdmitted(at=now, node_id=command.node_id, boot_id=command.boot_id)]
    rebooted = node.boot_id != command.boot_id
    match node:
        case Live():
            # Two machines under one name would otherwise take the node from each other for ever;
            # a reboot takes longer than the silence that makes a node suspect.
            if not rebooted or command.silent_s < SUSPECT_AFTER_S:
                return []
            return _restart(state, command, now)
        case Lost():
            return _back(node, command, now, fence=rebooted)
        case FencedFast() | FencedPatient():
            if not (rebooted or command.clean):
                return []
            return _back(node, command, now, fence=True)
        case _:
            assert_never(node)


def _restart(state: State, command: RenewLease, now: datetime) -> list[FailoverEvent]:
    """Close the incident of a machine that rebooted before anyone missed it."""
    incident = state.incidents + 1
    lost = NodeLost(at=now, node_id=command.node_id, incident=incident, silent_s=command.silent_s)
    return [lost, *_back(Lost("", incident), command, now, fence=True)]


def _back(
    node: NodeState, command: RenewLease, now: datetime, *, fence: bool
) -> list[FailoverEvent]:
    """Return a node to use; *fence* when none of its members is alive any more."""
    fenced = [
        NodeFenced(at=now, node_id=command.node_id, incident=node.incident, fencing=fencing)
        for fencing in (unfenced(node) if fence else ())
    ]
    returned = NodeReturned(
        at=now, node_id=command.node_id, incident=node.incident, boot_id=command.boot_id
    )
    return [*fenced, returned]


def _sweep(state: State, command: Sweep, now: datetime) -> list[FailoverEvent]:
    events: list[FailoverEvent] = []
    incidents = state.incidents
    for node_id, silent_s in command.silences_s.items():
        node = state.nodes.get(node_id)
        if node is None or silent_s < LOST_AFTER_S:
            continue
        incident = node.incident
        if isinstance(node, Live):
            incidents += 1
            incident = incidents
            lost = NodeLost(at=now, node_id=node_id, incident=incident, silent_s=silent_s)
            events.append(lost)
        if command.holding:
            continue
        events += [
            NodeFenced(at=now, node_id=node_id, incident=incident, fencing=fencing)
            for fencing in unfenced(node)
            if silent_s >= FENCED_AFTER_S[fencing]
        ]
    return events
