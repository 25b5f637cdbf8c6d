"""What failover knows about each node."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from whaleflux.common.contracts.workload import FENCING_S, SELF_FENCE_MARGIN_S, Fencing

FENCED_AFTER_S: Mapping[Fencing, float] = {
    fencing: deadline_s + SELF_FENCE_MARGIN_S for fencing, deadline_s in FENCING_S.items()
}
"""Seconds from the last granted renewal until no member with that fencing can be alive."""


@dataclass(frozen=True, slots=True)
class Live:
    """Renews its lease; may be used."""

    boot_id: str
    incident: int
    """Number of the node's newest incident; 0 when it never had one."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Silent; its members may still be alive."""

    boot_id: str
    incident: int


@dataclass(frozen=True, slots=True)
class FencedFast:
    """Silent so long that its members with `fast` fencing have ended themselves."""

    boot_id: str
    incident: int


@dataclass(frozen=True, slots=True)
class FencedPatient:
    """No member of the node's last lease can be alive."""

    boot_id: str
    incident: int


NodeState: TypeAlias = Live | Lost | FencedFast | FencedPatient


@dataclass(slots=True)
class State:
    """All nodes that were ever admitted, the last incident number, and who leads."""

    nodes: dict[str, NodeState] = field(default_factory=dict)
    incidents: int = 0
    term: str = ""
    """Of the leader that may decide."""


def unfenced(node: NodeState) -> tuple[Fencing, ...]:
    """Return the fencings not yet announced in the node's present incident, in order."""
    match node:
        case Live() | Lost():
            return (Fencing.FAST, Fencing.PATIENT)
        case FencedFast():
            return (Fencing.PATIENT,)
        case FencedPatient():
            return ()
