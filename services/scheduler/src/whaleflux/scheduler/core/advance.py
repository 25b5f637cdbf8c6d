"""How a workload moves on when something of it has ended."""

from datetime import datetime
from typing import assert_never

from whaleflux.common.contracts.assignment import output_folder
from whaleflux.common.contracts.scheduler import (
    LoopEnded,
    Outcome,
    RunQueued,
    SchedulerEvent,
    WorkloadEnded,
)
from whaleflux.common.ids import run_id
from whaleflux.scheduler.core.attempt import ended, stop
from whaleflux.scheduler.core.pipeline import Progress, Step, loop_ends, ready_steps
from whaleflux.scheduler.core.state import (
    Ended,
    Placed,
    Queued,
    Run,
    Running,
    State,
    Stopping,
    Workload,
)


def advance(state: State, workload: Workload, now: datetime) -> list[SchedulerEvent]:
    """Return the phases to queue, the loops that ended, or the end of the workload."""
    runs = list(state.runs_of(workload))
    live = [run for run in runs if not isinstance(run.state, Ended)]
    if workload.cancelled_by is not None or workload.failure is not None:
        return _wind_down(workload, live, now)
    loops_ended = dict(workload.loops_ended)
    progress = Progress(
        queued=workload.runs,
        done=workload.done,
        loops_ended=loops_ended,
        metrics={(run.phase.name, run.iteration): run.metrics for run in runs},
    )
    events: list[SchedulerEvent] = []
    for loop in loop_ends(workload.spec, progress):
        events.append(
            LoopEnded(
                at=now,
                workload_id=workload.workload_id,
                tenant=workload.tenant,
                loop=loop.loop,
                iterations=loop.iterations,
                reason=loop.reason,
            )
        )
        loops_ended[loop.loop] = loop.iterations
    steps = ready_steps(workload.spec, progress)
    events += [_queue(workload, step, now) for step in steps]
    if not steps and not live:
        events.append(_end(workload, Outcome.SUCCEEDED, "every phase done", now))
    return events


def _queue(workload: Workload, step: Step, now: datetime) -> RunQueued:
    inputs = {
        name: output_folder(run_id(workload.workload_id, *source), workload.done[source])
        for name, source in step.reads.items()
    }
    return RunQueued(
        at=now,
        run_id=run_id(workload.workload_id, step.phase.name, step.iteration),
        workload_id=workload.workload_id,
        tenant=workload.tenant,
        phase=step.phase.name,
        iteration=step.iteration,
        attempt=1,
        role=step.phase.role,
        reason=step.reason,
        inputs=inputs,
    )


def _wind_down(workload: Workload, live: list[Run], now: datetime) -> list[SchedulerEvent]:
    """End what waits, stop what runs, and end the workload once nothing is left."""
    if workload.cancelled_by is not None:
        outcome, reason = Outcome.CANCELLED, f"cancelled by {workload.cancelled_by}"
    else:
        outcome, reason = Outcome.FAILED, workload.failure or "failed"
    if not live:
        return [_end(workload, outcome, reason, now)]
    events: list[SchedulerEvent] = []
    for run in live:
        match run.state:
            case Queued(attempt=attempt):
                events.append(ended(run, attempt, Outcome.CANCELLED, reason, now=now))
            case Placed(attempt=attempt) | Running(attempt=attempt):
                events.append(stop(run, attempt, reason, now))
            case Stopping() | Ended():
                continue
            case _:
                assert_never(run.state)
    if all(isinstance(run.state, Queued) for run in live):
        events.append(_end(workload, outcome, reason, now))
    return events


def _end(workload: Workload, outcome: Outcome, reason: str, now: datetime) -> WorkloadEnded:
    return WorkloadEnded(
        at=now,
        workload_id=workload.workload_id,
        tenant=workload.tenant,
        outcome=outcome,
        reason=reason,
    )
