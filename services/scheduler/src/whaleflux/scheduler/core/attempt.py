"""How an attempt ends, and whether another one follows."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from whaleflux.common.contracts.agent import ExitKind
from whaleflux.common.contracts.assignment import CheckpointRef
from whaleflux.common.contracts.scheduler import (
    Outcome,
    RunEnded,
    RunQueued,
    RunStopping,
    SchedulerEvent,
)
from whaleflux.scheduler.core.state import Live, Released, Run, Stopping, Workload

STALLED_MAX = 3
"""Attempts in a row without a newer checkpoint after which trying again is a waste of GPUs."""
RESUME_CANDIDATES_MAX = 5
"""Checkpoints offered to the next attempt, newest first, should the newest be torn."""


def resume_candidates(run: Run) -> tuple[CheckpointRef, ...]:
    """Return the checkpoints another node can resume from, newest first."""
    safe = [c for c in run.checkpoints if c.safe]
    safe.sort(key=lambda c: (c.step, c.attempt), reverse=True)
    return tuple(safe[:RESUME_CANDIDATES_MAX])


def stop(run: Run, attempt: int, reason: str, now: datetime) -> RunStopping:
    """Return the fact that the attempt's members are told to save and exit."""
    return RunStopping(
        at=now,
        run_id=run.run_id,
        workload_id=run.workload_id,
        tenant=run.tenant,
        attempt=attempt,
        reason=reason,
    )


def after_release(
    workload: Workload,
    run: Run,
    live: Live,
    released: Sequence[Released],
    metrics: Mapping[str, float],
    now: datetime,
) -> list[SchedulerEvent]:
    """Return what follows once *released* (earlier ones included) are gone: stop the rest, or end.

    *metrics* is what all members reported last.
    """
    last = released[-1]
    if len(released) < len(live.placement):
        if last.kind is ExitKind.DONE or isinstance(live, Stopping):
            return []
        return [stop(run, live.attempt, f"member {last.rank} ended: {last.detail}", now)]
    outcome, reason = _verdict(workload, live, released)
    final, reason = _is_final(workload, run, released, outcome, reason)
    events: list[SchedulerEvent] = [
        ended(run, live.attempt, outcome, reason, now=now, final=final, metrics=metrics)
    ]
    if not final:
        events.append(requeue(run, live.attempt + 1, f"attempt {live.attempt} {reason}", now))
    return events


def ended(
    run: Run,
    attempt: int,
    outcome: Outcome,
    reason: str,
    *,
    now: datetime,
    final: bool = True,
    metrics: Mapping[str, float] | None = None,
) -> RunEnded:
    """Return the fact that an attempt is over."""
    return RunEnded(
        at=now,
        run_id=run.run_id,
        workload_id=run.workload_id,
        tenant=run.tenant,
        attempt=attempt,
        outcome=outcome,
        reason=reason,
        final=final,
        metrics=dict(metrics or {}),
    )


def requeue(run: Run, attempt: int, reason: str, now: datetime) -> RunQueued:
    """Return the next attempt of *run*, from its newest safe checkpoint."""
    return RunQueued(
        at=now,
        run_id=run.run_id,
        workload_id=run.workload_id,
        tenant=run.tenant,
        phase=run.phase.name,
        iteration=run.iteration,
        attempt=attempt,
        role=run.phase.role,
        reason=reason,
        inputs=dict(run.inputs),
        resume_from=resume_candidates(run),
    )


def _verdict(workload: Workload, live: Live, released: Sequence[Released]) -> tuple[Outcome, str]:
    kinds = {r.kind for r in released}
    if kinds == {ExitKind.DONE}:
        return Outcome.SUCCEEDED, "all members done"
    if workload.cancelled_by is not None:
        return Outcome.CANCELLED, f"cancelled by {workload.cancelled_by}"
    if workload.failure is not None:
        return Outcome.CANCELLED, "another phase of the workload failed"
    for kind, outcome, word in (
        (ExitKind.DO_NOT_RETRY, Outcome.FAILED, "failed and asked not to be retried"),
        (ExitKind.FAILED, Outcome.FAILED, "failed"),
        (ExitKind.TIMED_OUT, Outcome.FAILED, "ran longer than max_runtime_s"),
        (ExitKind.NEVER_STARTED, Outcome.FAILED, "could not start"),
        (ExitKind.FENCED, Outcome.LOST, "lost its node"),
    ):
        guilty = next((r for r in released if r.kind is kind), None)
        if guilty is not None:
            return outcome, f"{word}: member {guilty.rank}, {guilty.detail}"
    reason = live.reason if isinstance(live, Stopping) else "saved and exited"
    return Outcome.PREEMPTED, reason


def _is_final(
    workload: Workload, run: Run, released: Sequence[Released], outcome: Outcome, reason: str
) -> tuple[bool, str]:
    """Return whether no attempt follows, with the reason completed."""
    if outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED):
        return True, reason
    if outcome is Outcome.LOST:
        return False, reason
    if any(r.kind is ExitKind.DO_NOT_RETRY for r in released):
        return True, reason
    limit = workload.retry(run.phase).max_attempts
    if outcome is Outcome.FAILED and run.failures + 1 >= limit:
        return True, f"{reason} (attempt limit of {limit} reached)"
    progressed = run.best_step > run.best_step_at_start
    if not progressed and run.stalled + 1 >= STALLED_MAX:
        return True, f"{reason} ({STALLED_MAX} attempts in a row made no progress)"
    return False, reason
