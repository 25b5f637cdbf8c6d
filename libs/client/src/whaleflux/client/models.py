"""What the gateway answers, as typed values.

Fields that this release does not know are kept as they came (a dump shows them) and never refused:
a newer gateway stays readable. What is unknown is None, never zero.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

TERMINAL_STATES: Final = frozenset(
    {"succeeded", "failed", "cancelled", "preempted", "lost", "refused"}
)
"""A workload in one of these will never run again."""


class View(BaseModel):
    """Something the gateway shows."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def to_dict(self) -> dict[str, Any]:
        """Return the view as JSON-able values, fields unknown to this release included."""
        return self.model_dump(mode="json")


class FunnelStepView(View):
    """How many GPUs are left after one filter."""

    filter: str
    gpus: int


class ExplanationView(View):
    """Why something waits or why it is where it is, and what would start it now."""

    code: str | None = None
    sentence: str = ""
    funnel: tuple[FunnelStepView, ...] = ()
    starts_if: tuple[str, ...] = ()


class MemberView(View):
    """A process group of a run on one node."""

    rank: int
    node_id: str | None = None
    gpus: tuple[int, ...] = ()


class RunView(View):
    """One execution of a job or of one iteration of a phase."""

    id: str
    workload_id: str = ""
    phase: str = ""
    iteration: int = 0
    attempt: int = 1
    role: str | None = None
    state: str = "unknown"
    gpu_type: str | None = None
    members: tuple[MemberView, ...] = ()
    queued_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    metrics: Mapping[str, float] = Field(default_factory=dict)
    step: int | None = None
    progress: float | None = None
    explanation: ExplanationView | None = None
    reason: str | None = None
    simulated: bool | None = None


class WorkloadView(View):
    """A job or a pipeline."""

    id: str
    name: str = ""
    kind: str | None = None
    tenant: str | None = None
    project: str | None = None
    user: str | None = None
    state: str = "unknown"
    created_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: str | None = None
    reason: str | None = None

    @property
    def ended(self) -> bool:
        """Whether it is over, one way or another."""
        return self.state in TERMINAL_STATES


class GpuView(View):
    """One accelerator and who holds it."""

    node_id: str
    index: int
    uuid: str | None = None
    type: str = "unknown"
    memory_mib: int | None = None
    state: str | None = None
    simulated: bool | None = None
    run_id: str | None = None
    """Who holds it, where that is the caller's own; `state` says whether it is held at all."""
    workload_id: str | None = None
    phase: str | None = None
    utilisation_pct: float | None = None
    memory_used_mib: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None


class NodeView(View):
    """A machine with an agent."""

    id: str
    state: str | None = None
    simulated: bool | None = None
    cpus: int | None = None
    memory_mib: int | None = None
    stores: tuple[str, ...] = ()


class PublicEvent(View):
    """Something that happened, as tenants may see it; `sequence` is the cursor to go on from."""

    sequence: int
    type: str
    subject: str | None = None
    time: datetime | None = None
    data: Mapping[str, Any] = Field(default_factory=dict)
    simulated: bool | None = None


class LogPiece(View):
    """A piece of one member's log, or word of a gap or an end."""

    run_id: str
    phase: str = ""
    iteration: int = 0
    attempt: int = 1
    rank: int = 0
    offset: int = 0
    next_offset: int = 0
    text: str = ""
    gap_bytes: int | None = None
    """Bytes before *offset* that are gone for ever; None when nothing is missing."""
    note: str | None = None
    """A sentence about the log, for example why its rest cannot be had."""
    ended: bool = False


class ValidationReport(View):
    """What the gateway thinks of a workload without taking it."""

    valid: bool = True


class Identity(View):
    """Whose API key this is and what it may do."""

    tenant: str | None = None
    user: str | None = None
    role: str | None = None
