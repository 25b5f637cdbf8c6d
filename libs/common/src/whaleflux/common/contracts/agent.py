"""What an agent says about its node. Handlers are idempotent by content."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from whaleflux.common.contracts.assignment import CheckpointRef
from whaleflux.common.contracts.base import Event, Part, Reader, Token


class Gpu(Part):
    """One accelerator, as its node found it."""

    index: int
    uuid: str
    type: str
    """`H200`, `H100`, `A100`, `RTX4090` …: the name users write in `accelerators`."""
    memory_mib: int


class ExitKind(StrEnum):
    """What the end of a member means."""

    DONE = "done"
    SAVED = "saved"
    """Exit code 85: stopped after saving; may be started again."""
    DO_NOT_RETRY = "do_not_retry"
    """Exit code 93."""
    FAILED = "failed"
    STOPPED = "stopped"
    """Ended because the assignment said so."""
    FENCED = "fenced"
    """Ended by its shim at the fence deadline."""
    TIMED_OUT = "timed_out"
    """Ran past `max_runtime_s`."""
    NEVER_STARTED = "never_started"
    """Could not be started; `reason` says why."""


class NodeStarted(Event):
    """An agent is up and says what its node has."""

    type: Literal["agent.node.started.v1"] = "agent.node.started.v1"
    node_id: Token
    boot_id: str
    agent_id: str
    """Drawn anew at each start of the agent."""
    simulated: bool
    gpus: tuple[Gpu, ...]
    cpus: int
    memory_mib: int
    stores: tuple[str, ...]
    """Names of the stores this node reaches, `local` not among them."""


class MemberStarted(Event):
    """A member's program has been executed."""

    type: Literal["agent.member.started.v1"] = "agent.member.started.v1"
    node_id: Token
    run_id: str
    attempt: int
    rank: int
    pid: int
    handover_gap_ms: float | None = None
    """From reaping the last process on these GPUs to exec, where work waited; else None."""
    resumed_from: CheckpointRef | None = None


class MemberExited(Event):
    """A member's last process is gone and its GPUs are empty."""

    type: Literal["agent.member.exited.v1"] = "agent.member.exited.v1"
    node_id: Token
    run_id: str
    attempt: int
    rank: int
    kind: ExitKind
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    last_step: int | None = None
    metrics: Mapping[str, float] = Field(default_factory=dict)
    """The newest value of each metric that the program reported."""


class CheckpointRegistered(Event):
    """A checkpoint is complete: its manifest is written and verifies."""

    type: Literal["agent.checkpoint.registered.v1"] = "agent.checkpoint.registered.v1"
    node_id: Token
    run_id: str
    checkpoint: CheckpointRef
    bytes: int


class RunReported(Event):
    """A program wrote to `WHALEFLUX_REPORT`; at most one a second and member."""

    type: Literal["agent.run.reported.v1"] = "agent.run.reported.v1"
    node_id: Token
    run_id: str
    attempt: int
    rank: int
    step: int | None = None
    progress: float | None = Field(default=None, ge=0, le=1)
    metrics: Mapping[str, float] = Field(default_factory=dict)


AgentEvent: TypeAlias = (
    NodeStarted | MemberStarted | MemberExited | CheckpointRegistered | RunReported
)
read_agent_event: Reader[AgentEvent] = Reader(Annotated[AgentEvent, Field(discriminator="type")])


class LogRequest(Part):
    """Ask an agent for a piece of a member's log, by byte cursor."""

    run_id: str
    attempt: int
    rank: int
    offset: int = Field(default=0, ge=0)
    limit_bytes: int = Field(default=65_536, ge=1, le=524_288)


class LogReply(Part):
    """A piece of a log. `found` is false when this node never ran the member."""

    found: bool
    text: str = ""
    next_offset: int = 0
    ended: bool = False
    """The member is gone and `next_offset` is the end of its log."""
