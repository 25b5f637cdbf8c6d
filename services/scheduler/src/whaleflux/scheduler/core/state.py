"""What the scheduler knows: workloads, their runs, the nodes, and who holds which GPU."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from whaleflux.common.contracts.agent import ExitKind, Gpu
from whaleflux.common.contracts.assignment import CheckpointRef
from whaleflux.common.contracts.scheduler import Explanation, MemberPlacement, Outcome
from whaleflux.common.contracts.workload import Checkpoint, Fencing, PhaseSpec, Retry, WorkloadSpec


@dataclass(frozen=True, slots=True)
class Released:
    """How one member of an attempt ended."""

    rank: int
    kind: ExitKind
    detail: str
    """`exit code 3`, `signal 9`, `node h100-0 was fenced` …"""


@dataclass(frozen=True, slots=True)
class Queued:
    """Waits for GPUs."""

    attempt: int
    since: datetime
    reason: str
    resume_from: tuple[CheckpointRef, ...]
    explanation: Explanation | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """Holds GPUs; some members may have started, not all."""

    attempt: int
    gpu_type: str | None
    placement: tuple[MemberPlacement, ...]
    resume_from: tuple[CheckpointRef, ...]
    started: tuple[int, ...] = ()
    released: tuple[Released, ...] = ()


@dataclass(frozen=True, slots=True)
class Running:
    """All members have started."""

    attempt: int
    gpu_type: str | None
    placement: tuple[MemberPlacement, ...]
    resume_from: tuple[CheckpointRef, ...]
    released: tuple[Released, ...] = ()


@dataclass(frozen=True, slots=True)
class Stopping:
    """The members that are left have been told to save and exit."""

    attempt: int
    gpu_type: str | None
    placement: tuple[MemberPlacement, ...]
    resume_from: tuple[CheckpointRef, ...]
    reason: str
    released: tuple[Released, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """No member is left. `final` is False while the next attempt is being queued."""

    attempt: int
    outcome: Outcome
    reason: str
    final: bool


Live: TypeAlias = Placed | Running | Stopping
RunState: TypeAlias = Queued | Live | Ended


def left(state: Live) -> tuple[MemberPlacement, ...]:
    """Return the members that have not been released."""
    gone = {r.rank for r in state.released}
    return tuple(m for m in state.placement if m.rank not in gone)


@dataclass(slots=True)
class Run:
    """One iteration of a phase, through all its attempts."""

    run_id: str
    workload_id: str
    tenant: str
    phase: PhaseSpec
    iteration: int
    priority: int
    inputs: Mapping[str, str]
    queued_seq: int
    """Sequence of its first RunQueued: older runs go first."""
    state: RunState
    failures: int = 0
    """Attempts that ended by the program's own fault."""
    stalled: int = 0
    """Attempts in a row that ended by themselves without a newer checkpoint."""
    best_step: int = -1
    """Newest step in any checkpoint."""
    best_step_at_start: int = -1
    """`best_step` when the present attempt was queued."""
    checkpoints: list[CheckpointRef] = field(default_factory=list[CheckpointRef])
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Newest metrics of the present attempt, lowest rank's word first."""


@dataclass(slots=True)
class Workload:
    """A job or pipeline from submission to end."""

    workload_id: str
    tenant: str
    user: str
    body_hash: str
    spec: WorkloadSpec
    runs: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    """(phase, iteration) → run id, in the order they were queued."""
    done: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """(phase, iteration) → the attempt that succeeded."""
    loops_ended: dict[str, int] = field(default_factory=dict[str, int])
    """Loop → iterations it took."""
    cancelled_by: str | None = None
    failure: str | None = None
    outcome: Outcome | None = None

    def fencing(self, phase: PhaseSpec) -> Fencing:
        """Return how long the phase's members may outlive their node's lease."""
        return phase.fencing or self.spec.fencing

    def retry(self, phase: PhaseSpec) -> Retry:
        """Return the phase's retry rule."""
        return phase.retry or self.spec.retry

    def checkpoint(self, phase: PhaseSpec) -> Checkpoint:
        """Return how the phase saves."""
        return phase.checkpoint or self.spec.checkpoint


@dataclass(slots=True)
class Node:
    """A machine with an agent."""

    node_id: str
    boot_id: str
    simulated: bool
    gpus: tuple[Gpu, ...]
    cpus: int
    memory_mib: int
    stores: tuple[str, ...]
    holders: dict[int, str | None]
    """GPU index → the run that holds it."""
    released_at: dict[int, datetime] = field(default_factory=dict[int, datetime])
    """GPU index → when it was last given back."""
    members: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """(run id, rank) → attempt, of the members that are left here."""
    closed: str | None = None
    """Why nothing new is placed here; None when open."""
    version: int = 0
    """Sequence of the newest event that changed what should run here."""


@dataclass(slots=True)
class State:
    """Everything decided so far."""

    workloads: dict[str, Workload] = field(default_factory=dict[str, Workload])
    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    """Refused workload → body hash."""
    queue: dict[str, None] = field(default_factory=dict[str, None])
    """Runs that wait, in the order they were queued (an ordered set)."""
    unsettled: dict[str, None] = field(default_factory=dict[str, None])
    """Workloads of which something ended since they were last advanced (an ordered set)."""

    live_workloads: int = 0
    """Workloads that have not ended."""

    def waiting(self) -> list[Run]:
        """Return queued runs: higher priority first, then older first."""
        runs = [self.runs[run_id] for run_id in self.queue]
        return sorted(runs, key=lambda run: (-run.priority, run.queued_seq))

    def runs_of(self, workload: Workload) -> Iterator[Run]:
        """Yield the workload's runs in the order they were queued."""
        return (self.runs[run_id] for run_id in workload.runs.values())
