"""What the scheduler is asked to think about, beside what users ask.

Facts of other services arrive in these words (`react` translates); `Advance` and `Place` end
every cycle, so that what one command made possible is decided in the same append.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from whaleflux.common.contracts.agent import ExitKind, Gpu
from whaleflux.common.contracts.assignment import CheckpointRef
from whaleflux.common.contracts.scheduler import CancelWorkload, SubmitWorkload
from whaleflux.common.contracts.workload import Fencing


@dataclass(frozen=True, slots=True)
class JoinNode:
    """An agent is up and says what its node has."""

    node_id: str
    boot_id: str
    simulated: bool
    gpus: tuple[Gpu, ...]
    cpus: int
    memory_mib: int
    stores: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordStart:
    """A member's program was executed."""

    run_id: str
    attempt: int
    rank: int
    node_id: str
    handover_gap_ms: float | None
    resumed_from: CheckpointRef | None


@dataclass(frozen=True, slots=True)
class RecordExit:
    """A member's last process is gone."""

    run_id: str
    attempt: int
    rank: int
    node_id: str
    kind: ExitKind
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    last_step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class RecordCheckpoint:
    """An attempt's checkpoint is complete."""

    run_id: str
    node_id: str
    checkpoint: CheckpointRef


@dataclass(frozen=True, slots=True)
class CloseNode:
    """Place nothing new on the node."""

    node_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ClearNode:
    """No member with this fencing can be alive on the node."""

    node_id: str
    fencing: Fencing


@dataclass(frozen=True, slots=True)
class OpenNode:
    """The node may be used again."""

    node_id: str


@dataclass(frozen=True, slots=True)
class Advance:
    """Move every workload on of which something ended."""


@dataclass(frozen=True, slots=True)
class Place:
    """Place what waits and fits; explain the rest."""


Thought: TypeAlias = (
    SubmitWorkload
    | CancelWorkload
    | JoinNode
    | RecordStart
    | RecordExit
    | RecordCheckpoint
    | CloseNode
    | ClearNode
    | OpenNode
    | Advance
    | Place
)
