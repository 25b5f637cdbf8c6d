"""`get` and `cancel`."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import click

from whaleflux.client.cli import shape
from whaleflux.client.cli.output import show_one
from whaleflux.client.cli.session import Session, pass_session
from whaleflux.client.cli.table import Column, Row, render, text
from whaleflux.client.cli.terminal import bold, dim, moment, paint, state_style, width
from whaleflux.common.clock import SystemClock

ONE_FORMATS = ("table", "wide", "json", "jsonl", "yaml", "name")
METRICS_INDENT = "  "


@click.command()
@click.argument("what", metavar="ID")
@click.option("-o", "--output", type=click.Choice(ONE_FORMATS), default="table")
@click.option("--json", "as_json", is_flag=True, help="Short for -o json.")
@pass_session
def get(session: Session, /, what: str, output: str, as_json: bool) -> None:
    """Show a workload (its id or unique name) or a run (its id)."""
    from whaleflux.client.errors import NotFound

    now = SystemClock().now()
    output = "json" if as_json else output
    try:
        row = session.client.workload(what).to_dict()
    except NotFound as missing:
        try:
            run = session.client.run(what).to_dict()
        except NotFound:
            raise missing from None
        show_one(run, output, name=run["id"], text_lines=lambda: run_lines(run, now))
        return

    def lines() -> Iterator[str]:
        yield from workload_lines(row, now)
        if row["state"] in ("queued", "running"):
            yield from _waiting_lines(session, row["id"])

    show_one(row, output, name=row["id"], text_lines=lines)


@click.command()
@click.argument("workload", metavar="ID")
@click.option("--wait", "waits", is_flag=True, help="Return only when it has ended.")
@click.option("--timeout", type=float, help="Wait at most so many seconds.")
@pass_session
def cancel(session: Session, /, workload: str, waits: bool, timeout: float | None) -> None:
    """Ask for a workload to end; its programs get their grace to save."""
    found = session.client.cancel(workload)
    if found.ended and found.state != "cancelled":
        session.note(f"{found.name} had ended already: {found.state}.")
    elif found.ended:
        session.note(f"{found.name} is cancelled.")
    else:
        session.note(f"{found.name} is being cancelled.")
    if waits and not found.ended:
        found = session.client.wait(found.id, timeout_s=timeout)
        session.note(f"{found.name}: {found.state}.")
    click.echo(found.id)


def workload_lines(row: Row, now: datetime) -> Iterator[str]:
    """Return what people read about a workload."""
    yield _title(str(row.get("name") or row["id"]), row)
    pairs = [
        ("id", row["id"]),
        ("kind", row.get("kind")),
        ("project", row.get("project")),
        ("user", row.get("user")),
        ("priority", row.get("priority")),
        ("created", _moment(row.get("created_at"), now)),
        ("ended", _moment(row.get("ended_at"), now)),
        ("took" if row.get("ended_at") else "age", shape.elapsed(row, now, since="created_at")),
        ("gpus", None if row.get("simulated") is None else shape.devices_word(row)),
        ("reason", row.get("reason")),
    ]
    yield from _pairs(pairs)
    phases = [p for p in row.get("phases") or () if isinstance(p, Mapping)]
    if phases and row.get("kind") == "pipeline":
        yield ""
        yield from render(phases, PHASE_COLUMNS, width=width(), headings=True)
    for loop in row.get("loops") or ():
        yield from _loop_lines(loop)


def run_lines(row: Row, now: datetime) -> Iterator[str]:
    """Return what people read about a run."""
    yield _title(f"{row.get('phase')} #{row.get('iteration')}, attempt {row.get('attempt')}", row)
    pairs = [
        ("id", row["id"]),
        ("workload", row.get("workload_id")),
        ("role", row.get("role")),
        ("gpus", shape.run_gpus(row)),
        ("queued", _moment(row.get("queued_at"), now)),
        ("started", _moment(row.get("started_at"), now)),
        ("ended", _moment(row.get("ended_at"), now)),
        ("ran", shape.elapsed(row, now, since="started_at") if row.get("started_at") else None),
        ("progress", _none_for_dash(shape.progress(row))),
        ("why here", row.get("why")),
        ("reason", row.get("reason")),
    ]
    yield from _pairs(pairs)
    members = [m for m in row.get("members") or () if isinstance(m, Mapping)]
    if members:
        yield ""
        yield from render(members, MEMBER_COLUMNS, width=width(), headings=True)
    found = row.get("metrics") or {}
    if found:
        yield ""
        yield bold("METRICS")
        room = max(len(name) for name in found)
        yield from (f"{METRICS_INDENT}{name:<{room}}  {value:g}" for name, value in found.items())
    explanation = row.get("explanation")
    if isinstance(explanation, Mapping) and explanation.get("sentence"):
        yield ""
        yield str(explanation["sentence"])


def _waiting_lines(session: Session, workload_id: str) -> Iterator[str]:
    """Say why something waits, if anything does."""
    for run in session.client.runs(workload_id):
        if run.state == "queued" and run.explanation is not None and run.explanation.sentence:
            yield ""
            yield f"{bold('Waiting')} {run.phase} #{run.iteration}: {run.explanation.sentence}"
            yield dim(f"  whaleflux explain {run.id}")


def _loop_lines(loop: Mapping[str, Any]) -> Iterator[str]:
    done = loop.get("iterations")
    until = f", until {loop['until']}" if loop.get("until") else ""
    yield ""
    yield f"{bold('Loop')} {loop.get('name')}: at most {loop.get('max')} iterations{until}"
    if done is not None:
        yield f"  ended after {done}: {loop.get('reason') or 'no reason given'}"


def _title(name: str, row: Row) -> str:
    state = str(row.get("state", "unknown"))
    marked = shape.SIMULATED if row.get("simulated") else ""
    return f"{bold(name)}  {paint(state, state_style(state))}{dim(marked)}"


def _pairs(pairs: list[tuple[str, object]]) -> Iterator[str]:
    said = [(name, value) for name, value in pairs if value not in (None, "", "-")]
    room = max(len(name) for name, _ in said)
    for name, value in said:
        yield f"  {dim(f'{name:<{room}}')}  {value}"


def _moment(value: str | None, now: datetime) -> str | None:
    at = moment(value)
    if at is None:
        return None
    shown = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    ago = shape.elapsed({"at": value}, now, since="at")
    return f"{shown} ({ago} ago)"


def _none_for_dash(value: str) -> str | None:
    return None if value == "-" else value


def _exit(row: Row) -> str:
    if row.get("signal") is not None:
        return f"signal {row['signal']}"
    return "-" if row.get("exit_code") is None else f"code {row['exit_code']}"


def _gap(row: Row) -> str:
    value = row.get("handover_gap_ms")
    return "-" if value is None else f"{value:.0f} ms"


def _phase_state(row: Row) -> Mapping[str, Any]:
    return state_style(row.get("state"))


PHASE_COLUMNS = (
    Column("name", "PHASE", text("name")),
    Column("role", "ROLE", text("role"), drops=1),
    Column("state", "STATE", text("state"), style=_phase_state),
    Column("iteration", "ITER", text("iteration"), right=True),
    Column("needs", "NEEDS", text("needs"), drops=2),
    Column("metrics", "METRICS", shape.metrics, least=20),
)

MEMBER_COLUMNS = (
    Column("rank", "RANK", text("rank"), right=True),
    Column("node_id", "NODE", text("node_id")),
    Column("gpus", "GPU INDEX", text("gpus")),
    Column("state", "STATE", text("state"), style=_phase_state),
    Column("handover_gap_ms", "HAND-OVER", _gap, right=True),
    Column("exit_code", "EXIT", _exit),
    Column("detail", "DETAIL", text("detail"), least=16),
)
