"""What becomes of an attempt when its members start, save, end, or lose their node."""

from collections.abc import Sequence
from datetime import datetime
from typing import assert_never

from whaleflux.common.contracts.agent import ExitKind
from whaleflux.common.contracts.scheduler import (
    CheckpointRecorded,
    MemberPlacement,
    MemberRecorded,
    MemberReleased,
    NodeCleared,
    NodeClosed,
    NodeOpened,
    RunStarted,
    SchedulerEvent,
)
from whaleflux.scheduler.core.attempt import after_release
from whaleflux.scheduler.core.command import (
    ClearNode,
    CloseNode,
    OpenNode,
    RecordCheckpoint,
    RecordExit,
    RecordStart,
)
from whaleflux.scheduler.core.state import (
    Ended,
    Live,
    Node,
    Placed,
    Queued,
    Released,
    Run,
    State,
    left,
)


def _member_of(
    state: State, run: str, attempt: int, rank: int, node_id: str
) -> tuple[Run, Live, MemberPlacement] | None:
    """Return the live member that a node speaks of; None when it is stale or unknown."""
    known = state.runs.get(run)
    if known is None or isinstance(known.state, Queued | Ended):
        return None
    if known.state.attempt != attempt:
        return None
    for member in left(known.state):
        if member.rank == rank and member.node_id == node_id:
            return known, known.state, member
    return None


def record_start(state: State, command: RecordStart, now: datetime) -> list[SchedulerEvent]:
    """Write down that a member started; the last one makes the attempt running."""
    found = _member_of(state, command.run_id, command.attempt, command.rank, command.node_id)
    if found is None:
        return []
    run, live, _member = found
    if not isinstance(live, Placed) or command.rank in live.started:
        return []
    resumed = command.resumed_from
    events: list[SchedulerEvent] = [
        MemberRecorded(
            at=now,
            run_id=run.run_id,
            workload_id=run.workload_id,
            tenant=run.tenant,
            attempt=live.attempt,
            rank=command.rank,
            node_id=command.node_id,
            handover_gap_ms=command.handover_gap_ms,
            resumed_from_step=None if resumed is None else resumed.step,
        )
    ]
    if len(live.started) + 1 == len(live.placement):
        events.append(
            RunStarted(
                at=now,
                run_id=run.run_id,
                workload_id=run.workload_id,
                tenant=run.tenant,
                attempt=live.attempt,
            )
        )
    return events


def record_exit(state: State, command: RecordExit, now: datetime) -> list[SchedulerEvent]:
    """Release a member that is gone, and say what that means for its attempt."""
    found = _member_of(state, command.run_id, command.attempt, command.rank, command.node_id)
    if found is None:
        return []
    run, live, member = found
    released = MemberReleased(
        at=now,
        run_id=run.run_id,
        workload_id=run.workload_id,
        tenant=run.tenant,
        attempt=live.attempt,
        rank=member.rank,
        node_id=member.node_id,
        kind=command.kind,
        exit_code=command.exit_code,
        signal=command.signal,
        reason=command.reason,
        last_step=command.last_step,
        metrics=dict(command.metrics),
    )
    return [released, *_after(state, run, live, [released], now)]


def _after(
    state: State, run: Run, live: Live, released: Sequence[MemberReleased], now: datetime
) -> list[SchedulerEvent]:
    new = [Released(r.rank, r.kind, r.reason or _exit_text(r)) for r in released]
    metrics = dict(run.metrics)
    for fact in released:
        metrics = {**fact.metrics, **metrics}
    workload = state.workloads[run.workload_id]
    return after_release(workload, run, live, (*live.released, *new), metrics, now)


def _exit_text(released: MemberReleased) -> str:
    if released.signal is not None:
        return f"signal {released.signal}"
    if released.exit_code is not None:
        return f"exit code {released.exit_code}"
    return released.kind.value


def record_checkpoint(
    state: State, command: RecordCheckpoint, now: datetime
) -> list[SchedulerEvent]:
    """Remember a checkpoint, if the attempt that wrote it is the live one."""
    run = state.runs.get(command.run_id)
    if run is None or isinstance(run.state, Queued | Ended):
        return []
    if run.state.attempt != command.checkpoint.attempt or command.checkpoint in run.checkpoints:
        return []
    if all(m.node_id != command.node_id for m in run.state.placement):
        return []
    return [
        CheckpointRecorded(
            at=now,
            run_id=run.run_id,
            workload_id=run.workload_id,
            tenant=run.tenant,
            checkpoint=command.checkpoint,
        )
    ]


def judge_node(
    state: State, command: CloseNode | ClearNode | OpenNode, now: datetime
) -> list[SchedulerEvent]:
    """Take over failover's verdict on a node."""
    node = state.nodes.get(command.node_id)
    if node is None:
        return []
    match command:
        case CloseNode():
            if node.closed is not None:
                return []
            return [NodeClosed(at=now, node_id=node.node_id, reason=command.reason)]
        case OpenNode():
            return [] if node.closed is None else [NodeOpened(at=now, node_id=node.node_id)]
        case ClearNode():
            return _clear(state, node, command, now)
        case _:
            assert_never(command)


def _clear(state: State, node: Node, command: ClearNode, now: datetime) -> list[SchedulerEvent]:
    """Release every member that cannot be alive any more, run by run."""
    events: list[SchedulerEvent] = []
    for run_id_ in dict.fromkeys(run for run, _rank in node.members):
        run = state.runs[run_id_]
        live = run.state
        workload = state.workloads[run.workload_id]
        if isinstance(live, Queued | Ended) or workload.fencing(run.phase) is not command.fencing:
            continue
        released = [
            MemberReleased(
                at=now,
                run_id=run.run_id,
                workload_id=run.workload_id,
                tenant=run.tenant,
                attempt=live.attempt,
                rank=member.rank,
                node_id=node.node_id,
                kind=ExitKind.FENCED,
                reason=f"node {node.node_id} was fenced",
            )
            for member in left(live)
            if member.node_id == node.node_id
        ]
        events += [*released, *_after(state, run, live, released, now)]
    if not events:
        return []
    return [NodeCleared(at=now, node_id=node.node_id, fencing=command.fencing), *events]
