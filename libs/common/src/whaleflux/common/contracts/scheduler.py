"""What the scheduler is asked and what it decides.

Its log is whole by itself: facts that other services own (a node is there, a member has exited)
are written down again in its own words before anything is decided on them.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from whaleflux.common.contracts.agent import ExitKind, Gpu
from whaleflux.common.contracts.assignment import CheckpointRef
from whaleflux.common.contracts.base import Command, Event, Part, Reader, Token
from whaleflux.common.contracts.workload import Fencing, Role, WorkloadSpec


class SubmitWorkload(Command):
    """Ask for a workload to be run."""

    type: Literal["scheduler.workload.submit.v1"] = "scheduler.workload.submit.v1"
    workload_id: Token
    tenant: Token
    user: str
    body_hash: str
    spec: WorkloadSpec


class CancelWorkload(Command):
    """Ask for a workload to end."""

    type: Literal["scheduler.workload.cancel.v1"] = "scheduler.workload.cancel.v1"
    workload_id: Token
    user: str


SchedulerCommand: TypeAlias = SubmitWorkload | CancelWorkload
read_scheduler_command: Reader[SchedulerCommand] = Reader(
    Annotated[SchedulerCommand, Field(discriminator="type")]
)


class Outcome(StrEnum):
    """How an attempt, a run or a workload ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    LOST = "lost"


class MemberPlacement(Part):
    """Where one member of a gang goes."""

    rank: int
    node_id: Token
    gpus: tuple[int, ...]
    handover: bool
    """The run was already waiting when these GPUs were released."""


class WaitCode(StrEnum):
    """Why a run does not run, by tier; the first that holds is said."""

    NO_SUCH_TYPE = "NO_SUCH_TYPE"
    EXCEEDS_FLEET_MAX = "EXCEEDS_FLEET_MAX"
    STORE_UNREACHABLE = "STORE_UNREACHABLE"
    NODE_LOST = "NODE_LOST"
    NO_CAPACITY = "NO_CAPACITY"
    FRAGMENTED = "FRAGMENTED"
    QUEUED = "QUEUED"


class FunnelStep(Part):
    """How many GPUs are left after one filter."""

    filter: str
    gpus: int


class Explanation(Part):
    """Why a run waits, and what would start it now."""

    code: WaitCode
    sentence: str
    funnel: tuple[FunnelStep, ...] = ()
    starts_if: tuple[str, ...] = ()
    """Changes that were really tried and would start it now."""


class WorkloadSubmitted(Event):
    """The workload is accepted, for good."""

    type: Literal["scheduler.workload.submitted.v1"] = "scheduler.workload.submitted.v1"
    workload_id: Token
    tenant: Token
    user: str
    body_hash: str
    spec: WorkloadSpec


class WorkloadRefused(Event):
    """The workload can never run as it stands."""

    type: Literal["scheduler.workload.refused.v1"] = "scheduler.workload.refused.v1"
    workload_id: Token
    tenant: Token
    user: str
    body_hash: str
    name: str
    code: str
    reason: str


class WorkloadCancelling(Event):
    """Somebody asked for the workload to end; its members are being stopped."""

    type: Literal["scheduler.workload.cancelling.v1"] = "scheduler.workload.cancelling.v1"
    workload_id: Token
    tenant: Token
    user: str


class WorkloadEnded(Event):
    """All its runs are over."""

    type: Literal["scheduler.workload.ended.v1"] = "scheduler.workload.ended.v1"
    workload_id: Token
    tenant: Token
    outcome: Outcome
    reason: str


class LoopEnded(Event):
    """A loop of a pipeline will not go round again."""

    type: Literal["scheduler.loop.ended.v1"] = "scheduler.loop.ended.v1"
    workload_id: Token
    tenant: Token
    loop: str
    iterations: int
    reason: str


class RunQueued(Event):
    """An attempt waits for GPUs. Attempt 1 is a phase that became ready; later ones are retries."""

    type: Literal["scheduler.run.queued.v1"] = "scheduler.run.queued.v1"
    run_id: Token
    workload_id: Token
    tenant: Token
    phase: str
    iteration: int
    attempt: int
    role: Role | None
    reason: str
    inputs: Mapping[str, str] = Field(default_factory=dict)
    resume_from: tuple[CheckpointRef, ...] = ()


class RunPlaced(Event):
    """An attempt has its GPUs; its members may start."""

    type: Literal["scheduler.run.placed.v1"] = "scheduler.run.placed.v1"
    run_id: Token
    workload_id: Token
    tenant: Token
    attempt: int
    gpu_type: str | None
    members: tuple[MemberPlacement, ...]
    why: str
    """Why here, in a sentence with numbers."""


class RunExplained(Event):
    """Why a queued run waits; written again only when the code or a number changes."""

    type: Literal["scheduler.run.explained.v1"] = "scheduler.run.explained.v1"
    run_id: Token
    workload_id: Token
    tenant: Token
    attempt: int
    explanation: Explanation


class RunStarted(Event):
    """All members of the attempt have been executed."""

    type: Literal["scheduler.run.started.v1"] = "scheduler.run.started.v1"
    run_id: Token
    workload_id: Token
    tenant: Token
    attempt: int


class MemberRecorded(Event):
    """A member's program started; facts of the agent in the scheduler's log."""

    type: Literal["scheduler.member.recorded.v1"] = "scheduler.member.recorded.v1"
    run_id: Token
    workload_id: Token
    tenant: Token
    attempt: int
    rank: int
    node_id: Token
    handover_gap_ms: float | None = None
    resumed_from_step: int | None = None


class MemberReleased(Event):
    """A member is gone (exited, or fenced with its node) and gives its GPUs back."""

    type: Literal["scheduler.member.released.v1"] = "scheduler.member.released.v1"
    run_id: Token
    workload_id: Token
    tenant: Token
    attempt: int
    rank: int
    node_id: Token
    kind: ExitKind
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    last_step: int | None = None
    metrics: Mapping[str, float] = Field(default_factory=dict)


class CheckpointRecorded(Event):
    """An attempt's checkpoint is known and may be resumed from."""

    type: Literal["scheduler.checkpoint.recorded.v1"] = "scheduler.checkpoint.recorded.v1"
    run_id: Token
    workload_id: Token
    tenant: Token
    checkpoint: CheckpointRef


class RunStopping(Event):
    """The attempt's members are told to save and exit."""

    type: Literal["scheduler.run.stopping.v1"] = "scheduler.run.stopping.v1"
    run_id: Token
    workload_id: Token
    tenant: Token
    attempt: int
    reason: str


class RunEnded(Event):
    """An attempt is over: every member is gone."""

    type: Literal["scheduler.run.ended.v1"] = "scheduler.run.ended.v1"
    run_id: Token
    workload_id: Token
    tenant: Token
    attempt: int
    outcome: Outcome
    reason: str
    final: bool
    """False when another attempt follows."""
    metrics: Mapping[str, float] = Field(default_factory=dict)


class NodeJoined(Event):
    """A node and its GPUs belong to this cell; also written when its inventory changed."""

    type: Literal["scheduler.node.joined.v1"] = "scheduler.node.joined.v1"
    node_id: Token
    boot_id: str
    simulated: bool
    gpus: tuple[Gpu, ...]
    cpus: int
    memory_mib: int
    stores: tuple[str, ...]


class NodeClosed(Event):
    """Nothing new is placed on the node."""

    type: Literal["scheduler.node.closed.v1"] = "scheduler.node.closed.v1"
    node_id: Token
    reason: str


class NodeCleared(Event):
    """Members of this fencing on the node are surely gone; their GPUs are not usable yet."""

    type: Literal["scheduler.node.cleared.v1"] = "scheduler.node.cleared.v1"
    node_id: Token
    fencing: Fencing


class NodeOpened(Event):
    """The node may be used again."""

    type: Literal["scheduler.node.opened.v1"] = "scheduler.node.opened.v1"
    node_id: Token


SchedulerEvent: TypeAlias = (
    WorkloadSubmitted
    | WorkloadRefused
    | WorkloadCancelling
    | WorkloadEnded
    | LoopEnded
    | RunQueued
    | RunPlaced
    | RunExplained
    | RunStarted
    | RunStopping
    | RunEnded
    | MemberRecorded
    | MemberReleased
    | CheckpointRecorded
    | NodeJoined
    | NodeClosed
    | NodeCleared
    | NodeOpened
)
read_scheduler_event: Reader[SchedulerEvent] = Reader(
    Annotated[SchedulerEvent, Field(discriminator="type")]
)


def identity(event: SchedulerEvent) -> str:
    """Return the id that ends the event's subject."""
    match event:
        case WorkloadSubmitted() | WorkloadRefused() | WorkloadCancelling() | WorkloadEnded():
            return event.workload_id
        case LoopEnded():
            return event.workload_id
        case NodeJoined() | NodeClosed() | NodeCleared() | NodeOpened():
            return event.node_id
        case _:
            return event.run_id
