"""What other services' facts mean here."""

from typing import assert_never

from whaleflux.common.contracts.agent import (
    AgentEvent,
    CheckpointRegistered,
    MemberExited,
    MemberStarted,
    NodeStarted,
    RunReported,
)
from whaleflux.common.contracts.failover import (
    FailoverEvent,
    NodeAdmitted,
    NodeFenced,
    NodeLost,
    NodeReturned,
)
from whaleflux.scheduler.core.command import (
    ClearNode,
    CloseNode,
    JoinNode,
    OpenNode,
    RecordCheckpoint,
    RecordExit,
    RecordStart,
    Thought,
)


def react(event: AgentEvent | FailoverEvent) -> Thought | None:
    """Return what *event* asks of the scheduler; None when it does not concern it."""
    match event:
        case NodeStarted() | MemberStarted() | MemberExited() | CheckpointRegistered():
            return _agent(event)
        case NodeLost():
            return CloseNode(event.node_id, f"silent for {event.silent_s:.0f} s")
        case NodeFenced():
            return ClearNode(event.node_id, event.fencing)
        case NodeReturned():
            return OpenNode(event.node_id)
        case NodeAdmitted() | RunReported():
            return None
        case _:
            assert_never(event)


def _agent(event: NodeStarted | MemberStarted | MemberExited | CheckpointRegistered) -> Thought:
    match event:
        case NodeStarted():
            return JoinNode(
                node_id=event.node_id,
                boot_id=event.boot_id,
                simulated=event.simulated,
                gpus=event.gpus,
                cpus=event.cpus,
                memory_mib=event.memory_mib,
                stores=event.stores,
            )
        case MemberStarted():
            return RecordStart(
                run_id=event.run_id,
                attempt=event.attempt,
                rank=event.rank,
                node_id=event.node_id,
                handover_gap_ms=event.handover_gap_ms,
                resumed_from=event.resumed_from,
            )
        case MemberExited():
            return RecordExit(
                run_id=event.run_id,
                attempt=event.attempt,
                rank=event.rank,
                node_id=event.node_id,
                kind=event.kind,
                exit_code=event.exit_code,
                signal=event.signal,
                reason=event.reason,
                last_step=event.last_step,
                metrics=event.metrics,
            )
        case CheckpointRegistered():
            return RecordCheckpoint(event.run_id, event.node_id, event.checkpoint)
        case _:
            assert_never(event)
