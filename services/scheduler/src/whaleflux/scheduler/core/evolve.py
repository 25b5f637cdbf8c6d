"""How a fact changes what the scheduler knows. Never refuses, never decides."""

from dataclasses import replace
from typing import assert_never

from whaleflux.common.contracts.scheduler import (
    CheckpointRecorded,
    LoopEnded,
    MemberRecorded,
    MemberReleased,
    NodeCleared,
    NodeClosed,
    NodeJoined,
    NodeOpened,
    Outcome,
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
from whaleflux.scheduler.core.state import (
    Ended,
    Node,
    Placed,
    Queued,
    Released,
    Run,
    Running,
    State,
    Stopping,
    Workload,
    left,
)


def evolve(state: State, event: SchedulerEvent, seq: int) -> None:
    """Fold one event into *state*; *seq* is its sequence in the log."""
    match event:
        case WorkloadSubmitted() | WorkloadRefused() | WorkloadCancelling() | WorkloadEnded():
            _workload(state, event)
        case LoopEnded():
            state.workloads[event.workload_id].loops_ended[event.loop] = event.iterations
        case NodeJoined() | NodeClosed() | NodeCleared() | NodeOpened():
            _node(state, event, seq)
        case RunQueued():
            _queued(state, event, seq)
        case RunPlaced():
            _placed(state, event, seq)
        case MemberReleased():
            _released(state, event, seq)
        case RunEnded():
            _ended(state, event)
        case RunExplained() | MemberRecorded() | RunStarted() | RunStopping():
            _moved(state, event, seq)
        case CheckpointRecorded():
            _checkpoint(state, event)
        case _:
            assert_never(event)


def _workload(
    state: State,
    event: WorkloadSubmitted | WorkloadRefused | WorkloadCancelling | WorkloadEnded,
) -> None:
    id_ = event.workload_id
    match event:
        case WorkloadSubmitted():
            state.workloads[id_] = Workload(
                workload_id=id_,
                tenant=event.tenant,
                user=event.user,
                body_hash=event.body_hash,
                spec=event.spec,
            )
            state.unsettled[id_] = None
            state.live_workloads += 1
        case WorkloadRefused():
            state.refused[id_] = event.body_hash
        case WorkloadCancelling():
            state.workloads[id_].cancelled_by = event.user
            state.unsettled[id_] = None
        case WorkloadEnded():
            state.workloads[id_].outcome = event.outcome
            state.live_workloads -= 1
            state.unsettled.pop(id_, None)
        case _:
            assert_never(event)


def _node(
    state: State, event: NodeJoined | NodeClosed | NodeCleared | NodeOpened, seq: int
) -> None:
    if isinstance(event, NodeJoined):
        before = state.nodes.get(event.node_id)
        held = before.holders if before is not None else {}
        state.nodes[event.node_id] = Node(
            node_id=event.node_id,
            boot_id=event.boot_id,
            simulated=event.simulated,
            gpus=event.gpus,
            cpus=event.cpus,
            memory_mib=event.memory_mib,
            stores=event.stores,
            holders={gpu.index: held.get(gpu.index) for gpu in event.gpus},
            released_at=before.released_at if before is not None else {},
            members=before.members if before is not None else {},
            closed=before.closed if before is not None else None,
            version=seq,
        )
        return
    node = state.nodes[event.node_id]
    match event:
        case NodeClosed():
            node.closed = event.reason
        case NodeCleared():
            node.version = seq
        case NodeOpened():
            node.closed = None
        case _:
            assert_never(event)


def _queued(state: State, event: RunQueued, seq: int) -> None:
    workload = state.workloads[event.workload_id]
    run = state.runs.get(event.run_id)
    queued = Queued(event.attempt, event.at, event.reason, event.resume_from)
    if run is None:
        run = Run(
            run_id=event.run_id,
            workload_id=event.workload_id,
            tenant=event.tenant,
            phase=workload.spec.phase(event.phase),
            iteration=event.iteration,
            priority=workload.spec.priority,
            inputs=dict(event.inputs),
            queued_seq=seq,
            state=queued,
        )
        state.runs[event.run_id] = run
        workload.runs[(event.phase, event.iteration)] = event.run_id
    run.state = queued
    run.best_step_at_start = run.best_step
    run.metrics = {}
    state.queue[event.run_id] = None
    state.unsettled.pop(event.workload_id, None)


def _placed(state: State, event: RunPlaced, seq: int) -> None:
    run = state.runs[event.run_id]
    resume_from = run.state.resume_from if isinstance(run.state, Queued) else ()
    run.state = Placed(event.attempt, event.gpu_type, event.members, resume_from)
    state.queue.pop(event.run_id, None)
    for member in event.members:
        node = state.nodes[member.node_id]
        node.version = seq
        node.members[(event.run_id, member.rank)] = event.attempt
        for index in member.gpus:
            node.holders[index] = event.run_id


def _released(state: State, event: MemberReleased, seq: int) -> None:
    run = state.runs[event.run_id]
    if isinstance(run.state, Queued | Ended):
        return
    member = next((m for m in left(run.state) if m.rank == event.rank), None)
    if member is None:
        return
    released = (*run.state.released, Released(event.rank, event.kind, _detail(event)))
    run.state = replace(run.state, released=released)
    for name, value in event.metrics.items():
        run.metrics.setdefault(name, value)
    node = state.nodes[member.node_id]
    node.version = seq
    node.members.pop((event.run_id, event.rank), None)
    for index in member.gpus:
        if index in node.holders:
            node.holders[index] = None
            node.released_at[index] = event.at


def _detail(event: MemberReleased) -> str:
    if event.reason:
        return event.reason
    if event.signal is not None:
        return f"signal {event.signal}"
    if event.exit_code is not None:
        return f"exit code {event.exit_code}"
    return event.kind.value


def _ended(state: State, event: RunEnded) -> None:
    run = state.runs[event.run_id]
    workload = state.workloads[event.workload_id]
    state.queue.pop(event.run_id, None)
    own_fault = event.outcome is Outcome.FAILED
    if own_fault:
        run.failures += 1
    if event.outcome in (Outcome.FAILED, Outcome.PREEMPTED):
        run.stalled = 0 if run.best_step > run.best_step_at_start else run.stalled + 1
    run.state = Ended(event.attempt, event.outcome, event.reason, event.final)
    run.metrics = dict(event.metrics)
    if not event.final:
        return
    state.unsettled[event.workload_id] = None
    if event.outcome is Outcome.SUCCEEDED:
        workload.done[(run.phase.name, run.iteration)] = event.attempt
    elif workload.failure is None and workload.cancelled_by is None:
        workload.failure = f"phase {run.phase.name!r}, iteration {run.iteration}: {event.reason}"


_Move = RunExplained | MemberRecorded | RunStarted | RunStopping


def _moved(state: State, event: _Move, seq: int) -> None:
    run = state.runs[event.run_id]
    now = run.state
    match event:
        case RunExplained():
            if isinstance(now, Queued):
                run.state = replace(now, explanation=event.explanation)
        case MemberRecorded():
            if isinstance(now, Placed) and event.rank not in now.started:
                run.state = replace(now, started=(*now.started, event.rank))
        case RunStarted():
            if isinstance(now, Placed):
                run.state = Running(
                    now.attempt, now.gpu_type, now.placement, now.resume_from, now.released
                )
        case RunStopping():
            if isinstance(now, Placed | Running):
                run.state = Stopping(
                    now.attempt,
                    now.gpu_type,
                    now.placement,
                    now.resume_from,
                    event.reason,
                    now.released,
                )
                for member in left(now):
                    state.nodes[member.node_id].version = seq
        case _:
            assert_never(event)


def _checkpoint(state: State, event: CheckpointRecorded) -> None:
    run = state.runs[event.run_id]
    run.checkpoints.append(event.checkpoint)
    run.best_step = max(run.best_step, event.checkpoint.step)
