"""What the scheduler does about a request or a fact. Never changes the state."""

from collections.abc import Sequence
from datetime import datetime
from typing import assert_never

from whaleflux.common.contracts.scheduler import (
    CancelWorkload,
    NodeJoined,
    RunExplained,
    RunPlaced,
    SchedulerEvent,
    SubmitWorkload,
    WorkloadCancelling,
    WorkloadRefused,
    WorkloadSubmitted,
)
from whaleflux.common.contracts.workload import PhaseSpec, WorkloadSpec
from whaleflux.scheduler.core.advance import advance
from whaleflux.scheduler.core.command import (
    Advance,
    ClearNode,
    CloseNode,
    JoinNode,
    OpenNode,
    Place,
    RecordCheckpoint,
    RecordExit,
    RecordStart,
    Thought,
)
from whaleflux.scheduler.core.explain import explain, never
from whaleflux.scheduler.core.member import (
    judge_node,
    record_checkpoint,
    record_exit,
    record_start,
)
from whaleflux.scheduler.core.placement import Found, Overlay, Request, find
from whaleflux.scheduler.core.state import Node, Queued, Run, State

STORE_DEFAULT = "default"
"""Name of the pool's store when the workload names none."""


def decide(state: State, command: Thought, now: datetime) -> Sequence[SchedulerEvent]:
    """Return the facts that follow from *command*; none when it is a repeat or stale."""
    match command:
        case SubmitWorkload():
            return _submit(state, command, now)
        case CancelWorkload():
            return _cancel(state, command, now)
        case JoinNode():
            return _join(state, command, now)
        case RecordStart():
            return record_start(state, command, now)
        case RecordExit():
            return record_exit(state, command, now)
        case RecordCheckpoint():
            return record_checkpoint(state, command, now)
        case CloseNode() | ClearNode() | OpenNode():
            return judge_node(state, command, now)
        case Advance():
            return [e for id_ in state.unsettled for e in advance(state, state.workloads[id_], now)]
        case Place():
            return _place(state, now)
        case _:
            assert_never(command)


def request_of(spec: WorkloadSpec, phase: PhaseSpec, queued_at: datetime) -> Request:
    """Return what one run of *phase* asks of the fleet."""
    return Request(
        accelerators=phase.resources.accelerators,
        num_nodes=phase.num_nodes,
        store=spec.store or STORE_DEFAULT,
        queued_at=queued_at,
    )


def _submit(state: State, command: SubmitWorkload, now: datetime) -> list[SchedulerEvent]:
    if command.workload_id in state.workloads or command.workload_id in state.refused:
        return []
    refusal = _refusal(state, command.spec, now)
    if refusal is not None:
        code, reason = refusal
        return [
            WorkloadRefused(
                at=now,
                workload_id=command.workload_id,
                tenant=command.tenant,
                user=command.user,
                body_hash=command.body_hash,
                name=command.spec.name,
                code=code,
                reason=reason,
            )
        ]
    return [
        WorkloadSubmitted(
            at=now,
            workload_id=command.workload_id,
            tenant=command.tenant,
            user=command.user,
            body_hash=command.body_hash,
            spec=command.spec,
        )
    ]


def _refusal(state: State, spec: WorkloadSpec, now: datetime) -> tuple[str, str] | None:
    for phase in spec.phases:
        request = request_of(spec, phase, now)
        found = never(state, request)
        if found is not None:
            code, sentence = found
            return code.value, f"Phase {phase.name!r} can never start. {sentence}"
    return None


def _cancel(state: State, command: CancelWorkload, now: datetime) -> list[SchedulerEvent]:
    workload = state.workloads.get(command.workload_id)
    if workload is None or workload.outcome is not None or workload.cancelled_by is not None:
        return []
    return [
        WorkloadCancelling(
            at=now, workload_id=workload.workload_id, tenant=workload.tenant, user=command.user
        )
    ]


def _join(state: State, command: JoinNode, now: datetime) -> list[SchedulerEvent]:
    known = state.nodes.get(command.node_id)
    if known is not None and _inventory(known) == _inventory(command):
        return []
    return [
        NodeJoined(
            at=now,
            node_id=command.node_id,
            boot_id=command.boot_id,
            simulated=command.simulated,
            gpus=command.gpus,
            cpus=command.cpus,
            memory_mib=command.memory_mib,
            stores=command.stores,
        )
    ]


def _inventory(node: Node | JoinNode) -> tuple[object, ...]:
    return (node.boot_id, node.simulated, node.gpus, node.cpus, node.memory_mib, node.stores)


def _place(state: State, now: datetime) -> list[SchedulerEvent]:
    overlay = Overlay(state)
    events: list[SchedulerEvent] = []
    for run in state.waiting():
        queued = run.state
        if not isinstance(queued, Queued):
            continue
        request = request_of(state.workloads[run.workload_id].spec, run.phase, queued.since)
        result = find(overlay, request)
        if isinstance(result, Found):
            overlay.take(result.members)
            events.append(_placed(run, queued, result, now))
            continue
        explanation = explain(overlay, request, result)
        if explanation != queued.explanation:
            events.append(
                RunExplained(
                    at=now,
                    run_id=run.run_id,
                    workload_id=run.workload_id,
                    tenant=run.tenant,
                    attempt=queued.attempt,
                    explanation=explanation,
                )
            )
    return events


def _placed(run: Run, queued: Queued, found: Found, now: datetime) -> RunPlaced:
    return RunPlaced(
        at=now,
        run_id=run.run_id,
        workload_id=run.workload_id,
        tenant=run.tenant,
        attempt=queued.attempt,
        gpu_type=found.gpu_type,
        members=found.members,
        why=found.why,
    )
