"""What public events hold: a contract of its own, versioned by the event type's last part.

Only what stands here is told. A field that a service adds to a fact of its own stays inside until
somebody writes it down here. Words like outcomes are plain text on purpose: a new one must not
stop the telling, and readers are asked to expect words they do not know.
"""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict


class PublicData(BaseModel):
    """The data of one public event."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class WorkloadSubmittedData(PublicData):
    """A workload was accepted."""

    workload_id: str
    name: str
    kind: str
    project: str
    user: str
    phases: tuple[str, ...]


class WorkloadRefusedData(PublicData):
    """A workload can never run as it stands."""

    workload_id: str
    name: str
    code: str
    reason: str


class WorkloadCancellingData(PublicData):
    """Somebody asked for a workload to end."""

    workload_id: str
    user: str


class WorkloadEndedData(PublicData):
    """All runs of a workload are over."""

    workload_id: str
    outcome: str
    """`succeeded failed cancelled preempted lost`."""
    reason: str


class LoopEndedData(PublicData):
    """A loop of a pipeline will not go round again."""

    loop: str
    iterations: int
    reason: str


class RunQueuedData(PublicData):
    """An attempt waits for GPUs."""

    run_id: str
    workload_id: str
    phase: str
    iteration: int
    attempt: int
    role: str | None
    reason: str
    resume_from_step: int | None


class PlacedMember(PublicData):
    """Where one member of a gang runs."""

    rank: int
    node_id: str
    gpus: tuple[int, ...]
    handover: bool
    """The run was already waiting when these GPUs were released."""


class RunPlacedData(PublicData):
    """An attempt has its GPUs."""

    run_id: str
    workload_id: str
    attempt: int
    gpu_type: str | None
    members: tuple[PlacedMember, ...]
    why: str
    simulated: bool | None
    """Whether any of the devices is simulated; null: not known."""


class FunnelStage(PublicData):
    """How many GPUs are left after one filter."""

    filter: str
    gpus: int


class WaitExplanation(PublicData):
    """Why a run waits, and what would start it now."""

    code: str
    sentence: str
    funnel: tuple[FunnelStage, ...]
    starts_if: tuple[str, ...]


class RunExplainedData(PublicData):
    """Why a run waits, whenever that changes."""

    run_id: str
    workload_id: str
    attempt: int
    explanation: WaitExplanation


class RunStartedData(PublicData):
    """All members of an attempt run."""

    run_id: str
    workload_id: str
    attempt: int


class RunStoppingData(PublicData):
    """An attempt's members were told to save and exit."""

    run_id: str
    workload_id: str
    attempt: int
    reason: str


class RunEndedData(PublicData):
    """An attempt is over."""

    run_id: str
    workload_id: str
    attempt: int
    outcome: str
    """`succeeded failed cancelled preempted lost`."""
    reason: str
    final: bool
    """False when another attempt follows."""
    metrics: Mapping[str, float]


class RunReportedData(PublicData):
    """A program reported progress or metrics."""

    run_id: str
    attempt: int
    rank: int
    step: int | None
    progress: float | None
    """Between 0 and 1."""
    metrics: Mapping[str, float]


class MemberRecordedData(PublicData):
    """A member's program was executed."""

    run_id: str
    workload_id: str
    attempt: int
    rank: int
    node_id: str
    handover_gap_ms: float | None
    resumed_from_step: int | None
    simulated: bool | None


class MemberReleasedData(PublicData):
    """A member is gone and gave its GPUs back."""

    run_id: str
    workload_id: str
    attempt: int
    rank: int
    node_id: str
    kind: str
    """`done saved do_not_retry failed stopped fenced timed_out never_started`."""
    exit_code: int | None
    signal: int | None
    reason: str
    last_step: int | None
    metrics: Mapping[str, float]
    simulated: bool | None


class CheckpointRecordedData(PublicData):
    """A checkpoint is complete and may be resumed from."""

    run_id: str
    workload_id: str
    attempt: int
    step: int
    safe: bool
    """It lies in a store that other nodes reach."""


class NodeJoinedData(PublicData):
    """A node and its GPUs belong to the fleet."""

    node_id: str
    gpus: Mapping[str, int]
    """GPU type → how many."""
    simulated: bool


class NodeLostData(PublicData):
    """A node is silent; nothing new starts there."""

    node_id: str
    incident: int
    silent_s: float
    simulated: bool | None


class NodeFencedData(PublicData):
    """No member can be alive on a lost node any more."""

    node_id: str
    incident: int
    fencing: str
    simulated: bool | None


class NodeReturnedData(PublicData):
    """A lost node may be used again."""

    node_id: str
    incident: int
    simulated: bool | None


EVENTS: Mapping[str, type[PublicData]] = {
    "workload.submitted": WorkloadSubmittedData,
    "workload.refused": WorkloadRefusedData,
    "workload.cancelling": WorkloadCancellingData,
    "workload.ended": WorkloadEndedData,
    "loop.ended": LoopEndedData,
    "run.queued": RunQueuedData,
    "run.placed": RunPlacedData,
    "run.explained": RunExplainedData,
    "run.started": RunStartedData,
    "run.stopping": RunStoppingData,
    "run.ended": RunEndedData,
    "run.reported": RunReportedData,
    "member.recorded": MemberRecordedData,
    "member.released": MemberReleasedData,
    "checkpoint.recorded": CheckpointRecordedData,
    "node.joined": NodeJoinedData,
    "node.lost": NodeLostData,
    "node.fenced": NodeFencedData,
    "node.returned": NodeReturnedData,
}
"""Every public event with its data."""
KINDS: Mapping[type[PublicData], str] = {data: kind for kind, data in EVENTS.items()}
