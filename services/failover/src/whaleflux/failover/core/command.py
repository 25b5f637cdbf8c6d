"""What failover is asked to think about."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Elect:
    """This process leads from here on."""

    term: str


@dataclass(frozen=True, slots=True)
class RenewLease:
    """An agent renews its node's lease."""

    node_id: str
    boot_id: str
    agent_id: str
    clean: bool
    """No member of an older lease is alive on the node."""
    term: str
    """Of the leader that heard it."""
    silent_s: float
    """Seconds since the last renewal of this node that was granted; 0 for an unknown node."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Look at nodes that have been silent for a while."""

    term: str
    """Of the leader whose clocks these are."""
    silences_s: Mapping[str, float]
    """Seconds since each silent node's last granted renewal."""
    holding: bool
    """So many fell silent at once that the fault may be ours: fence nobody yet."""


Thought: TypeAlias = Elect | RenewLease | Sweep
