"""Which phases of a workload are ready, and when its loops end.

Loops unroll lazily: iteration i of a looped phase exists only once iteration i - 1 of the whole
loop is done. Phases outside wait for the loops they need to end and then read the last iteration.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from whaleflux.common.contracts.workload import UNTIL, LoopSpec, PhaseSpec, WorkloadSpec

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a workload has come."""

    queued: Mapping[tuple[str, int], str]
    """(phase, iteration) → run, of everything that was ever ready."""
    done: Mapping[tuple[str, int], int]
    """(phase, iteration) → the attempt that succeeded."""
    loops_ended: Mapping[str, int]
    """Loop → iterations it took."""
    metrics: Mapping[tuple[str, int], Mapping[str, float]]
    """(phase, iteration) → what its run reported last."""


@dataclass(frozen=True, slots=True)
class Step:
    """A phase that has become ready."""

    phase: PhaseSpec
    iteration: int
    reads: Mapping[str, tuple[str, int]]
    """Input name → the (phase, iteration) whose output it is."""
    reason: str


@dataclass(frozen=True, slots=True)
class LoopEnd:
    """A loop that will not go round again."""

    loop: str
    iterations: int
    reason: str


def loop_ends(spec: WorkloadSpec, progress: Progress) -> list[LoopEnd]:
    """Return the loops that are over but not yet said to be."""
    found: list[LoopEnd] = []
    for loop in spec.loops:
        if loop.name in progress.loops_ended:
            continue
        finished = _finished(loop, progress)
        if finished == 0:
            continue
        reason = _end_reason(loop, finished, progress)
        if reason is not None:
            found.append(LoopEnd(loop.name, finished, reason))
    return found


def ready_steps(spec: WorkloadSpec, progress: Progress) -> list[Step]:
    """Return the phases that can be queued now, in the order the file names them."""
    return [
        step
        for phase in spec.phases
        for step in _next_step(spec, phase, progress)
        if (step.phase.name, step.iteration) not in progress.queued
    ]


def _finished(loop: LoopSpec, progress: Progress) -> int:
    iterations = 0
    while all((name, iterations + 1) in progress.done for name in loop.phases):
        iterations += 1
    return iterations


def _end_reason(loop: LoopSpec, finished: int, progress: Progress) -> str | None:
    if loop.until is not None:
        match = UNTIL.fullmatch(loop.until.strip())
        if match is not None:
            value = progress.metrics.get((match["phase"], finished), {}).get(match["metric"])
            if value is not None and _COMPARE[match["op"]](value, float(match["bound"])):
                return f"{loop.until} holds after iteration {finished} ({value:.6g})"
    if finished >= loop.max:
        return f"{finished} of {loop.max} iterations done"
    return None


def _next_step(spec: WorkloadSpec, phase: PhaseSpec, progress: Progress) -> Iterator[Step]:
    loop = spec.loop_of(phase.name)
    iteration = 1
    if loop is not None:
        if loop.name in progress.loops_ended:
            return
        iteration = _finished(loop, progress) + 1
        if iteration > loop.max:
            return
    reads: dict[str, tuple[str, int]] = {}
    for need in phase.needs:
        source = _source(spec, loop, need, iteration, progress)
        if source is None or source not in progress.done:
            return
        reads[need] = source
    if iteration > 1:
        reads |= {name: (name, iteration - 1) for name in phase.previous}
    if loop is not None and iteration > 1 and not phase.needs:
        reason = f"iteration {iteration} of loop {loop.name!r} begins"
    elif phase.needs:
        reason = f"{', '.join(phase.needs)} done"
    else:
        reason = "nothing to wait for"
    yield Step(phase, iteration, reads, reason)


def _source(
    spec: WorkloadSpec, loop: LoopSpec | None, need: str, iteration: int, progress: Progress
) -> tuple[str, int] | None:
    other = spec.loop_of(need)
    if other is None:
        return (need, 1)
    if loop is not None and other.name == loop.name:
        return (need, iteration)
    last = progress.loops_ended.get(other.name)
    return None if last is None else (need, last)
