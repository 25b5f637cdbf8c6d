"""What tenants may know: events of their own workloads, and the state of nodes.

This is a contract of its own (CloudEvents, versioned by the type's last part): internal facts can
change without it. Nothing internal leaks: no body hashes, commands, environment or paths.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from whaleflux.common.contracts.agent import AgentEvent, RunReported
from whaleflux.common.contracts.failover import FailoverEvent, NodeFenced, NodeLost, NodeReturned
from whaleflux.common.contracts.scheduler import (
    CheckpointRecorded,
    LoopEnded,
    MemberRecorded,
    MemberReleased,
    NodeJoined,
    RunEnded,
    RunExplained,
    RunPlaced,
    RunQueued,
    RunStarted,
    RunStopping,
    SchedulerEvent,
    WorkloadCancelling,
    WorkloadEnded,
    WorkloadRefused,
    WorkloadSubmitted,
)

TYPE_PREFIX = "io.whaleflux."
EVENTS: Mapping[str, str] = {
    "workload.submitted": "A workload was accepted.",
    "workload.refused": "A workload can never run as it stands.",
    "workload.cancelling": "Somebody asked for a workload to end.",
    "workload.ended": "All runs of a workload are over.",
    "loop.ended": "A loop of a pipeline will not go round again.",
    "run.queued": "An attempt waits for GPUs.",
    "run.placed": "An attempt has its GPUs.",
    "run.explained": "Why a run waits, whenever that changes.",
    "run.started": "All members of an attempt run.",
    "run.stopping": "An attempt's members were told to save and exit.",
    "run.ended": "An attempt is over.",
    "run.reported": "A program reported progress or metrics.",
    "member.recorded": "A member's program was executed.",
    "member.released": "A member is gone and gave its GPUs back.",
    "checkpoint.recorded": "A checkpoint is complete and may be resumed from.",
    "node.joined": "A node and its GPUs belong to the fleet.",
    "node.lost": "A node is silent; nothing new starts there.",
    "node.fenced": "No member can be alive on a lost node any more.",
    "node.returned": "A lost node may be used again.",
}
"""Every public event, with what it says."""
Internal: TypeAlias = SchedulerEvent | AgentEvent | FailoverEvent


@dataclass(frozen=True, slots=True)
class PublicEvent:
    """One event as a tenant reads it."""

    type: str
    """`run.placed`: entity and participle; the CloudEvents type adds prefix and version."""
    tenant: str
    subject: str
    """The workload, run or node it is about."""
    at: datetime
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Context:
    """What public events need beside the fact itself."""

    simulated: Callable[[str], bool | None]
    """Node → whether its devices are simulated; None when it is not known."""
    tenant_of: Callable[[str], str | None]
    """Run → tenant, for agents' reports, which do not know it."""
    operators: Iterable[str]
    """Tenants that see nodes."""


def publish(event: Internal, context: Context) -> list[PublicEvent]:
    """Return what tenants are told of *event*; often nothing."""
    match event:
        case WorkloadSubmitted() | WorkloadRefused() | WorkloadCancelling() | WorkloadEnded():
            return [_workload(event)]
        case LoopEnded():
            data = {"loop": event.loop, "iterations": event.iterations, "reason": event.reason}
            return [_public(event, "loop.ended", event.workload_id, event.tenant, data)]
        case RunReported():
            tenant = context.tenant_of(event.run_id)
            if tenant is None:
                return []
            data = event.model_dump(mode="json", exclude={"type", "at", "node_id"})
            return [_public(event, "run.reported", event.run_id, tenant, data)]
        case NodeJoined() | NodeLost() | NodeFenced() | NodeReturned():
            return _node(event, context)
        case (
            RunQueued()
            | RunPlaced()
            | RunExplained()
            | RunStarted()
            | RunStopping()
            | RunEnded()
            | MemberRecorded()
            | MemberReleased()
            | CheckpointRecorded()
        ):
            return [_run(event, context)]
        case _:
            return []


def _public(
    event: Internal, type_: str, subject: str, tenant: str, data: dict[str, Any]
) -> PublicEvent:
    return PublicEvent(type_, tenant, subject, event.at, data)


def _workload(
    event: WorkloadSubmitted | WorkloadRefused | WorkloadCancelling | WorkloadEnded,
) -> PublicEvent:
    data: dict[str, Any] = {"workload_id": event.workload_id}
    match event:
        case WorkloadSubmitted():
            kind = "workload.submitted"
            data |= {
                "name": event.spec.name,
                "kind": event.spec.kind.value,
                "project": event.spec.project,
                "user": event.user,
                "phases": [p.name for p in event.spec.phases],
            }
        case WorkloadRefused():
            kind = "workload.refused"
            data |= {"name": event.name, "code": event.code, "reason": event.reason}
        case WorkloadCancelling():
            kind = "workload.cancelling"
            data |= {"user": event.user}
        case WorkloadEnded():
            kind = "workload.ended"
            data |= {"outcome": event.outcome.value, "reason": event.reason}
    return _public(event, kind, event.workload_id, event.tenant, data)


_RunFact: TypeAlias = (
    RunQueued
    | RunPlaced
    | RunExplained
    | RunStarted
    | RunStopping
    | RunEnded
    | MemberRecorded
    | MemberReleased
    | CheckpointRecorded
)
_PRIVATE = {"type", "at", "tenant", "inputs", "resume_from", "checkpoint"}


def _run(event: _RunFact, context: Context) -> PublicEvent:
    data = event.model_dump(mode="json", exclude=_PRIVATE)
    match event:
        case RunQueued():
            data["resume_from_step"] = event.resume_from[0].step if event.resume_from else None
        case RunPlaced():
            data["simulated"] = _any(context.simulated(m.node_id) for m in event.members)
        case MemberRecorded() | MemberReleased():
            data["simulated"] = context.simulated(event.node_id)
        case CheckpointRecorded():
            kept = event.checkpoint
            data |= {"attempt": kept.attempt, "step": kept.step, "safe": kept.safe}
        case _:
            pass
    _service, entity, participle, _version = event.type.split(".")
    return _public(event, f"{entity}.{participle}", event.run_id, event.tenant, data)


def _any(flags: Iterable[bool | None]) -> bool | None:
    known = [flag for flag in flags if flag is not None]
    return any(known) if known else None


def _node(
    event: NodeJoined | NodeLost | NodeFenced | NodeReturned, context: Context
) -> list[PublicEvent]:
    data: dict[str, Any] = {"node_id": event.node_id}
    match event:
        case NodeJoined():
            kind = "node.joined"
            types: dict[str, int] = {}
            for gpu in event.gpus:
                types[gpu.type] = types.get(gpu.type, 0) + 1
            data |= {"gpus": types, "simulated": event.simulated}
        case NodeLost():
            kind = "node.lost"
            data |= {"incident": event.incident, "silent_s": event.silent_s}
        case NodeFenced():
            kind = "node.fenced"
            data |= {"incident": event.incident, "fencing": event.fencing.value}
        case NodeReturned():
            kind = "node.returned"
            data |= {"incident": event.incident}
    if not isinstance(event, NodeJoined):
        data["simulated"] = context.simulated(event.node_id)
    return [_public(event, kind, event.node_id, tenant, data) for tenant in context.operators]
