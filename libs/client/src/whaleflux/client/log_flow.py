"""Members' logs, read by byte cursor: all there is, or on and on until the workload has ended.

A pipeline is many runs; each of their attempts has a log of its own, and following a pipeline
means following each of them as it starts.
"""

from dataclasses import dataclass, field

from whaleflux.client.errors import NotFound, ServerProblem, Unreachable
from whaleflux.client.flows import NOT_FOUND, PAGE_SIZE, segment
from whaleflux.client.flows import run as get_run
from whaleflux.client.flows import workload as get_workload
from whaleflux.client.models import TERMINAL_STATES, LogPiece, RunView, WorkloadView
from whaleflux.client.wire import Call, Emit, Flow, Pause, Reply, query

POLL_FIRST_S = 0.2
POLL_GROWTH = 1.5
POLL_S_MAX = 1.0
"""A person reads along."""
STARTED_STATES = frozenset(
    {"starting", "running", "parking", "parked", "unparking", "stopping", *TERMINAL_STATES}
)
MISSING_POLLS_MAX = 5
"""How often a log of an ended attempt may be out of reach before it is given up: its tail reaches
the store a moment after its end."""


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Which members' logs; None means every phase and iteration, and the newest attempt."""

    phase: str | None = None
    iteration: int | None = None
    attempt: int | None = None
    rank: int = 0


@dataclass(slots=True)
class _Cursor:
    """How far one attempt's log has been read."""

    run: RunView
    attempt: int
    offset: int = 0
    ended: bool = False
    missed: int = 0


@dataclass(slots=True)
class _Reading:
    """Everything that is being read."""

    wanted: LogFilter
    cursors: dict[tuple[str, int], _Cursor] = field(default_factory=dict)

    def notice(self, run: RunView) -> None:
        """Begin to read a run's newest attempt once it has started."""
        wanted = self.wanted
        if wanted.phase not in (None, run.phase) or wanted.iteration not in (None, run.iteration):
            return
        attempt = run.attempt if wanted.attempt is None else wanted.attempt
        for cursor in self.cursors.values():
            if cursor.run.id == run.id:
                cursor.run = run
        if (run.id, attempt) in self.cursors:
            return
        if attempt < run.attempt or (run.state in STARTED_STATES and run.members):
            self.cursors[(run.id, attempt)] = _Cursor(run, attempt)

    @property
    def open(self) -> list[_Cursor]:
        return [c for c in self.cursors.values() if not c.ended]


def logs(id_or_name: str, *, wanted: LogFilter, offset: int, follow: bool) -> Flow[WorkloadView]:
    """Emit pieces of logs; return the workload as it stood at the end.

    *id_or_name* names a workload or one run. *offset* is the byte to begin at.
    """
    workload, only_run = yield from _target(id_or_name)
    reading = _Reading(wanted)
    pause_s = POLL_FIRST_S
    while True:
        # Asked before the logs are read: what was written before the end is then not missed.
        workload = yield from get_workload(workload.id)
        for run in (yield from _runs(workload.id)):
            if only_run in (None, run.id):
                reading.notice(run)
        said = False
        for cursor in reading.open:
            if cursor.offset == 0 and offset:
                cursor.offset = offset
            said = (yield from _read_on(workload.id, cursor, wanted.rank, follow=follow)) or said
        if not follow or (workload.ended and not reading.open) or _is_over(reading, only_run):
            return workload
        pause_s = POLL_FIRST_S if said else min(pause_s * POLL_GROWTH, POLL_S_MAX)
        yield Pause(pause_s)


def _is_over(reading: _Reading, only_run: str | None) -> bool:
    """Whether nothing more can come although the workload as a whole may go on."""
    wanted = reading.wanted
    narrow = only_run is not None or (wanted.phase is not None and wanted.iteration is not None)
    if not narrow or not reading.cursors or reading.open:
        return False
    return all(c.run.state in TERMINAL_STATES for c in reading.cursors.values())


def _target(id_or_name: str) -> Flow[tuple[WorkloadView, str | None]]:
    try:
        return (yield from get_workload(id_or_name)), None
    except NotFound as missing:
        try:
            run = yield from get_run(id_or_name)
        except NotFound:
            raise missing from None
        return (yield from get_workload(run.workload_id)), run.id


def _runs(workload_id: str) -> Flow[list[RunView]]:
    found: list[RunView] = []
    cursor: str | None = None
    while True:
        reply: Reply = yield Call(
            "GET",
            f"/v1/workloads/{segment(workload_id)}/runs",
            params=query(limit=PAGE_SIZE, cursor=cursor),
        )
        body = reply.json()
        found += [RunView.model_validate(item) for item in body["items"]]
        following = body.get("next_cursor")
        if not following or following == cursor:
            return sorted(found, key=_order)
        cursor = str(following)


def _order(run: RunView) -> tuple[float, int, str]:
    began = run.queued_at or run.started_at
    return (0.0 if began is None else began.timestamp(), run.iteration, run.phase)


def _read_on(workload_id: str, cursor: _Cursor, rank: int, *, follow: bool) -> Flow[bool]:
    """Emit what one log has to say now; return whether it said anything."""
    said = False
    run = cursor.run
    while True:
        params = query(
            phase=run.phase or None,
            iteration=run.iteration,
            attempt=cursor.attempt,
            rank=rank,
            offset=cursor.offset,
        )
        path = f"/v1/workloads/{segment(workload_id)}/logs"
        try:
            reply: Reply = yield Call(
                "GET", path, params=params, accepted=NOT_FOUND, retried=not follow
            )
        except (ServerProblem, Unreachable) as problem:
            if isinstance(problem, Unreachable) and not follow:
                raise
            yield from _out_of_reach(cursor, rank, problem.message, follow=follow)
            return said
        body = {} if reply.status == 404 else reply.json()
        if not body.get("found", reply.status != 404):
            yield from _out_of_reach(cursor, rank, "its node does not have it", follow=follow)
            return said
        piece = _piece(cursor, rank, body)
        cursor.missed = 0
        if piece.text or piece.gap_bytes or piece.ended:
            yield Emit(piece)
        said = said or bool(piece.text)
        stalled = piece.next_offset <= cursor.offset
        cursor.offset = piece.next_offset
        cursor.ended = piece.ended
        if cursor.ended or stalled:
            return said


def _piece(cursor: _Cursor, rank: int, body: dict[str, object]) -> LogPiece:
    offset = body.get("offset")
    begins = offset if isinstance(offset, int) else cursor.offset
    gap = begins - cursor.offset
    return LogPiece.model_validate(
        {
            "next_offset": begins,
            **body,
            "run_id": cursor.run.id,
            "phase": cursor.run.phase,
            "iteration": cursor.run.iteration,
            "attempt": cursor.attempt,
            "rank": rank,
            "offset": begins,
            "gap_bytes": gap if gap > 0 else None,
        }
    )


def _out_of_reach(cursor: _Cursor, rank: int, why: str, *, follow: bool) -> Flow[None]:
    """Count a miss; say so and give the log up when its attempt is over or nobody waits."""
    cursor.missed += 1
    over = cursor.run.state in TERMINAL_STATES or cursor.run.attempt > cursor.attempt
    if follow and not (over and cursor.missed > MISSING_POLLS_MAX):
        return
    cursor.ended = True
    yield Emit(
        LogPiece(
            run_id=cursor.run.id,
            phase=cursor.run.phase,
            iteration=cursor.run.iteration,
            attempt=cursor.attempt,
            rank=rank,
            offset=cursor.offset,
            next_offset=cursor.offset,
            note=f"the log from byte {cursor.offset} on cannot be read: {why}",
            ended=True,
        )
    )
