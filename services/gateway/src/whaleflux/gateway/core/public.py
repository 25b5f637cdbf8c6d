"""What tenants are told of a fact: events of their own workloads, and the state of nodes.

Nothing internal leaks: no body hashes, commands, environment or paths. What an event holds is
written down in `public_data`, field by field.
"""

from collections import Counter
from collections.abc import Callable, Iterable
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
from whaleflux.gateway.core import public_data as data

TYPE_PREFIX = "io.whaleflux."
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
        case (
            WorkloadSubmitted()
            | WorkloadRefused()
            | WorkloadCancelling()
            | WorkloadEnded()
            | LoopEnded()
        ):
            return [_public(event, event.workload_id, event.tenant, _workload(event))]
        case RunReported():
            tenant = context.tenant_of(event.run_id)
            return [] if tenant is None else [_public(event, event.run_id, tenant, _report(event))]
        case NodeJoined() | NodeLost() | NodeFenced() | NodeReturned():
            told = _node(event, context)
            return [_public(event, event.node_id, tenant, told) for tenant in context.operators]
        case RunQueued() | RunPlaced() | RunExplained() | RunStarted() | RunStopping() | RunEnded():
            return [_public(event, event.run_id, event.tenant, _run(event, context))]
        case MemberRecorded() | MemberReleased() | CheckpointRecorded():
            return [_public(event, event.run_id, event.tenant, _member(event, context))]
        case _:
            return []


def _public(event: Internal, subject: str, tenant: str, told: data.PublicData) -> PublicEvent:
    kind = data.KINDS[type(told)]
    return PublicEvent(kind, tenant, subject, event.at, told.model_dump(mode="json"))


def _workload(
    event: WorkloadSubmitted | WorkloadRefused | WorkloadCancelling | WorkloadEnded | LoopEnded,
) -> data.PublicData:
    id_ = event.workload_id
    match event:
        case WorkloadSubmitted():
            return data.WorkloadSubmittedData(
                workload_id=id_,
                name=event.spec.name,
                kind=event.spec.kind.value,
                project=event.spec.project,
                user=event.user,
                phases=tuple(phase.name for phase in event.spec.phases),
            )
        case WorkloadRefused():
            return data.WorkloadRefusedData(
                workload_id=id_, name=event.name, code=event.code, reason=event.reason
            )
        case WorkloadCancelling():
            return data.WorkloadCancellingData(workload_id=id_, user=event.user)
        case WorkloadEnded():
            return data.WorkloadEndedData(
                workload_id=id_, outcome=event.outcome.value, reason=event.reason
            )
        case LoopEnded():
            return data.LoopEndedData(
                loop=event.loop, iterations=event.iterations, reason=event.reason
            )


def _run(
    event: RunQueued | RunPlaced | RunExplained | RunStarted | RunStopping | RunEnded,
    context: Context,
) -> data.PublicData:
    about: dict[str, Any] = {
        "run_id": event.run_id,
        "workload_id": event.workload_id,
        "attempt": event.attempt,
    }
    match event:
        case RunQueued():
            return data.RunQueuedData(
                **about,
                phase=event.phase,
                iteration=event.iteration,
                role=event.role,
                reason=event.reason,
                resume_from_step=event.resume_from[0].step if event.resume_from else None,
            )
        case RunPlaced():
            return _placed(event, context, about)
        case RunExplained():
            return data.RunExplainedData(**about, explanation=_explanation(event))
        case RunStarted():
            return data.RunStartedData(**about)
        case RunStopping():
            return data.RunStoppingData(**about, reason=event.reason)
        case RunEnded():
            return data.RunEndedData(
                **about,
                outcome=event.outcome.value,
                reason=event.reason,
                final=event.final,
                metrics=event.metrics,
            )


def _placed(event: RunPlaced, context: Context, about: dict[str, Any]) -> data.PublicData:
    return data.RunPlacedData(
        **about,
        gpu_type=event.gpu_type,
        members=tuple(
            data.PlacedMember(rank=m.rank, node_id=m.node_id, gpus=m.gpus, handover=m.handover)
            for m in event.members
        ),
        why=event.why,
        simulated=_any(context.simulated(m.node_id) for m in event.members),
    )


def _any(flags: Iterable[bool | None]) -> bool | None:
    known = [flag for flag in flags if flag is not None]
    return any(known) if known else None


def _explanation(event: RunExplained) -> data.WaitExplanation:
    said = event.explanation
    return data.WaitExplanation(
        code=said.code.value,
        sentence=said.sentence,
        funnel=tuple(data.FunnelStage(filter=step.filter, gpus=step.gpus) for step in said.funnel),
        starts_if=said.starts_if,
    )


def _report(event: RunReported) -> data.PublicData:
    return data.RunReportedData(
        run_id=event.run_id,
        attempt=event.attempt,
        rank=event.rank,
        step=event.step,
        progress=event.progress,
        metrics=event.metrics,
    )


def _member(
    event: MemberRecorded | MemberReleased | CheckpointRecorded, context: Context
) -> data.PublicData:
    about: dict[str, Any] = {"run_id": event.run_id, "workload_id": event.workload_id}
    if isinstance(event, CheckpointRecorded):
        kept = event.checkpoint
        return data.CheckpointRecordedData(
            **about, attempt=kept.attempt, step=kept.step, safe=kept.safe
        )
    about |= {
        "attempt": event.attempt,
        "rank": event.rank,
        "node_id": event.node_id,
        "simulated": context.simulated(event.node_id),
    }
    if isinstance(event, MemberRecorded):
        return data.MemberRecordedData(
            **about,
            handover_gap_ms=event.handover_gap_ms,
            resumed_from_step=event.resumed_from_step,
        )
    return data.MemberReleasedData(
        **about,
        kind=event.kind.value,
        exit_code=event.exit_code,
        signal=event.signal,
        reason=event.reason,
        last_step=event.last_step,
        metrics=event.metrics,
    )


def _node(
    event: NodeJoined | NodeLost | NodeFenced | NodeReturned, context: Context
) -> data.PublicData:
    id_ = event.node_id
    if isinstance(event, NodeJoined):
        types = Counter(gpu.type for gpu in event.gpus)
        return data.NodeJoinedData(node_id=id_, gpus=types, simulated=event.simulated)
    simulated = context.simulated(id_)
    match event:
        case NodeLost():
            return data.NodeLostData(
                node_id=id_,
                incident=event.incident,
                silent_s=event.silent_s,
                simulated=simulated,
            )
        case NodeFenced():
            return data.NodeFencedData(
                node_id=id_,
                incident=event.incident,
                fencing=event.fencing.value,
                simulated=simulated,
            )
        case NodeReturned():
            return data.NodeReturnedData(node_id=id_, incident=event.incident, simulated=simulated)
