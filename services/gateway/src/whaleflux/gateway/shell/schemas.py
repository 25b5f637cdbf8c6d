"""What the API shows, for its OpenAPI document. Views are stored as JSON and sent as they are."""

from typing import Any

from pydantic import BaseModel, ConfigDict

EXAMPLE_WORKLOAD: dict[str, Any] = {
    "name": "hello",
    "resources": {"accelerators": "H100:1"},
    "run": "python -c 'print(\"hello\")'",
}


class Out(BaseModel):
    """Something the API shows; more fields may follow."""

    model_config = ConfigDict(extra="allow")


class FunnelOut(Out):
    """How many GPUs are left after one filter."""

    filter: str
    gpus: int


class ExplanationOut(Out):
    """Why something waits or stands where it stands, and what would start it now."""

    code: str
    sentence: str
    funnel: list[FunnelOut] = []
    starts_if: list[str] = []


class MemberOut(Out):
    """One member of a gang."""

    rank: int
    node_id: str
    gpus: list[int]
    state: str
    handover_gap_ms: float | None = None


class MetricPoint(Out):
    """What a run reported at one moment."""

    at: str
    step: int | None
    metrics: dict[str, float]


class RunOut(Out):
    """One execution of a job or of one iteration of a phase; attempts that ended are listed."""

    id: str
    workload_id: str
    phase: str
    iteration: int
    attempt: int
    role: str | None
    state: str
    gpu_type: str | None
    members: list[MemberOut]
    queued_at: str
    started_at: str | None
    ended_at: str | None
    metrics: dict[str, float]
    step: int | None
    progress: float | None
    explanation: ExplanationOut | None
    simulated: bool | None
    history: list[MetricPoint] = []
    """At most 60 points of the newest attempt, only where one run is asked for."""


class RunPage(Out):
    """Some runs, and where the next ones are."""

    items: list[RunOut]
    next_cursor: str | None


class WorkloadOut(Out):
    """A job or pipeline."""

    id: str
    name: str
    kind: str | None
    tenant: str
    project: str | None
    user: str
    state: str
    created_at: str
    ended_at: str | None
    outcome: str | None
    reason: str | None
    simulated: bool | None


class WorkloadPage(Out):
    """Some workloads, and where the next ones are."""

    items: list[WorkloadOut]
    next_cursor: str | None


class Undecided(Out):
    """A submission that is safe but not decided yet."""

    id: str
    state: str


class ValidationOut(Out):
    """A workload that would be taken."""

    valid: bool
    name: str
    phases: list[str]


class LogOut(Out):
    """A piece of a log; ask again from `next_offset` until `ended`."""

    found: bool
    offset: int
    text: str
    next_offset: int
    ended: bool


class NodeOut(Out):
    """A machine with an agent."""

    id: str
    state: str
    simulated: bool
    cpus: int
    memory_mib: int


class NodePage(Out):
    """Some nodes, and where the next ones are."""

    items: list[NodeOut]
    next_cursor: str | None


class GpuOut(Out):
    """One accelerator: who holds it, and what it measures (null: unknown)."""

    node_id: str
    index: int
    uuid: str
    type: str
    memory_mib: int
    state: str
    simulated: bool
    run_id: str | None
    utilisation_pct: float | None
    memory_used_mib: int | None
    temperature_c: float | None
    power_w: float | None


class GpuPage(Out):
    """Some GPUs, and where the next ones are."""

    items: list[GpuOut]
    next_cursor: str | None


class BlobOut(Out):
    """An archive in the store."""

    sha256: str
    bytes: int


class Identity(Out):
    """Whose key this is."""

    key_id: str
    tenant: str
    user: str
    role: str
