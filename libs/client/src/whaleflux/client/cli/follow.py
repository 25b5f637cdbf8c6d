"""`logs`, `events` and `wait`: what goes on until it ends or the person leaves."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from whaleflux.client.cli import exit_codes, shape
from whaleflux.client.cli.session import Session, pass_session
from whaleflux.client.cli.terminal import between, bold, dim, duration, moment, paint, state_style
from whaleflux.common.clock import SystemClock
from whaleflux.common.errors import Refused

if TYPE_CHECKING:
    from whaleflux.client.models import LogPiece, PublicEvent

JOB_PHASE = "main"
"""The phase that a job consists of: its lines need no name in front."""
TYPE_PREFIX = "io.whaleflux."
PHASE_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_cyan", "bright_magenta")
DURATION_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@click.command()
@click.argument("what", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the workload has ended.")
@click.option("--phase", help="Only this phase of a pipeline.")
@click.option("--iteration", type=int, help="Only this iteration.")
@click.option("--attempt", type=int, help="This attempt instead of the newest.")
@click.option("--rank", type=int, default=0, show_default=True, help="Which member of a gang.")
@click.option("--offset", type=int, default=0, help="Begin at this byte.")
@click.option("-o", "--output", type=click.Choice(["text", "jsonl"]), default="text")
@pass_session
def logs(session: Session, /, what: str, follow: bool, output: str, **given: Any) -> int:  # noqa: ANN401 - click's options
    """Read what a workload or a run wrote.

    With -f it waits for the start, survives lost connections, and ends with the workload's result
    and exit code.
    """
    from whaleflux.client.log_flow import LogFilter

    wanted = LogFilter(given["phase"], given["iteration"], given["attempt"], given["rank"])
    session.farewell = f"Detached; {what} goes on. 'whaleflux cancel {what}' ends it."
    writer = LogWriter(session.note)
    for piece in session.client.logs(what, wanted, offset=given["offset"], follow=follow):
        if output == "jsonl":
            click.echo(json.dumps(piece.to_dict(), ensure_ascii=False))
        else:
            writer.write(piece)
    writer.finish()
    if not follow:
        return exit_codes.OK
    return _end(session, what)


class LogWriter:
    """Writes pieces of several logs so that every line says whose it is."""

    def __init__(self, note: Callable[[str], None]) -> None:
        """Gaps and ends go to *note*."""
        self._note = note
        self._rests: dict[str, str] = {}
        self._sources: list[str] = []

    def write(self, piece: "LogPiece") -> None:
        """Write a piece; with one log it goes out as it came, with several line by line."""
        source = f"{piece.phase} #{piece.iteration}"
        if piece.attempt > 1:
            source += f" attempt {piece.attempt}"
        if source not in self._sources:
            self._sources.append(source)
            if len(self._sources) > 1 and piece.phase == JOB_PHASE:
                self._note(dim(f"--- {source} ---"))
        if piece.gap_bytes:
            self._note(f"--- {piece.gap_bytes} bytes of {source} are missing here ---")
        text = self._rests.pop(source, "") + piece.text
        lines, newline, rest = text.rpartition("\n")
        if piece.ended and rest:
            lines, newline, rest = text, "\n", ""
        if newline:
            self._lines(source, piece.phase, lines)
        if rest:
            self._rests[source] = rest
        if piece.note:
            self._note(f"--- {source}: {piece.note} ---")

    def finish(self) -> None:
        """Write the unfinished last lines."""
        for source, rest in self._rests.items():
            self._lines(source, source.split(" ", 1)[0], rest)
        self._rests.clear()

    def _lines(self, source: str, phase: str, lines: str) -> None:
        if phase == JOB_PHASE:
            click.echo(lines)
            return
        phases = list(dict.fromkeys(s.split(" ", 1)[0] for s in self._sources))
        colour = PHASE_COLOURS[phases.index(phase) % len(PHASE_COLOURS)]
        prefix = paint(f"{source} |", {"fg": colour})
        for line in lines.split("\n"):
            click.echo(f"{prefix} {line}")


@click.command()
@click.argument("workload", metavar="ID")
@click.option("--timeout", type=float, help="At most so many seconds; exit code 8 after them.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
@click.option("--json", "as_json", is_flag=True, help="Short for -o json.")
@pass_session
def wait(
    session: Session, /, workload: str, timeout: float | None, output: str, as_json: bool
) -> int:
    """Wait until a workload has ended, in whatever way; the exit code says how."""
    session.farewell = f"Detached; {workload} goes on. 'whaleflux cancel {workload}' ends it."
    found = session.client.wait(workload, timeout_s=timeout)
    if as_json or output == "json":
        click.echo(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
    else:
        click.echo(found.state)
    return _tell_end(session, found.name, found.to_dict())


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on as things happen.")
@click.option(
    "--since",
    metavar="SEQ|AGE|TIME",
    help="After this sequence, from 2h ago, or from an ISO 8601 time; with -f: from now on.",
)
@click.option("--type", "types", multiple=True, help="Only this type, for example run.placed.")
@click.option("--subject", help="Only about this workload, run or node (or a workload's runs).")
@click.option("-o", "--output", type=click.Choice(["table", "json", "jsonl"]), default="table")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@pass_session
def events(
    session: Session,
    /,
    follow: bool,
    since: str | None,
    types: tuple[str, ...],
    subject: str | None,
    output: str,
    as_json: bool,
) -> None:
    """Show what happened; the first column is the cursor to go on from with --since."""
    session.farewell = "Stopped listening."
    cursor, begin = _since(since)
    for event in session.client.events(since=cursor, follow=follow):
        if begin is not None and event.time is not None and event.time < begin:
            continue
        if types and _short(event.type) not in types and event.type not in types:
            continue
        if subject and not (event.subject or "").startswith(subject):
            continue
        if as_json or output != "table":
            click.echo(json.dumps(event.to_dict(), ensure_ascii=False))
        else:
            click.echo(_event_line(event))


def _end(session: Session, what: str) -> int:
    from whaleflux.client.errors import NotFound

    try:
        found = session.client.workload(what)
    except NotFound:
        run = session.client.run(what)
        return _tell_end(session, f"{run.phase} #{run.iteration}", run.to_dict())
    return _tell_end(session, found.name, found.to_dict())


def _tell_end(session: Session, name: str, row: dict[str, Any]) -> int:
    state = str(row["state"])
    began = row.get("created_at") or row.get("queued_at")
    took = between(began, row.get("ended_at"), SystemClock().now())
    after = f" after {duration(took)}" if took is not None and row.get("ended_at") else ""
    why = f": {row['reason']}" if row.get("reason") else ""
    session.note(f"{bold(name)} {paint(state, state_style(state))}{after}{why}")
    return exit_codes.of_state(state)


def _since(text: str | None) -> tuple[int | None, datetime | None]:
    """Return the cursor or the moment that *text* means."""
    if text is None:
        return None, None
    if text.isdigit():
        return int(text), None
    now = SystemClock().now()
    if text == "today":
        return 0, now.replace(hour=0, minute=0, second=0, microsecond=0)
    if text[:-1].isdigit() and text[-1] in DURATION_UNITS_S:
        return 0, now - timedelta(seconds=int(text[:-1]) * DURATION_UNITS_S[text[-1]])
    at = moment(text)
    if at is None:
        raise Refused(
            f"--since {text!r}: write a sequence (1234), an age (2h) or a time in ISO 8601.",
            code="bad_since",
        )
    return 0, at if at.tzinfo else at.replace(tzinfo=now.tzinfo)


def _short(type_: str) -> str:
    named = type_.removeprefix(TYPE_PREFIX)
    head, _, version = named.rpartition(".")
    return head if head and version[:1] == "v" and version[1:].isdigit() else named


def _event_line(event: "PublicEvent") -> str:
    at = "-" if event.time is None else f"{event.time:%H:%M:%S}"
    type_ = _short(event.type)
    word = str(event.data.get("outcome") or type_.rpartition(".")[2])
    simulated = event.simulated or event.data.get("simulated")
    marked = dim("  (simulated)") if simulated else ""
    shown = paint(f"{type_:<20}", state_style(word))
    detail = _detail(event)
    return f"{event.sequence:>7}  {dim(at)}  {shown}  {event.subject or '-'}{detail}{marked}"


def _detail(event: "PublicEvent") -> str:
    data = event.data
    explained = data.get("explanation")
    if isinstance(explained, dict):
        return f"  {explained.get('sentence', '')}"
    said = [str(data[key]) for key in ("name", "outcome", "why", "reason", "code") if data.get(key)]
    if not said:
        metrics = data.get("metrics")
        shown = metrics.items() if isinstance(metrics, dict) else ()
        said = [f"step {data['step']}"] if data.get("step") is not None else []
        said += [f"{name}={shape.number(value)}" for name, value in list(shown)[:3]]
    return f"  {', '.join(said)}" if said else ""
