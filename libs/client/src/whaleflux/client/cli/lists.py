"""`jobs`, `runs`, `nodes` and `gpus`."""

from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any

import click

from whaleflux.client.cli import shape
from whaleflux.client.cli.output import ListOptions, list_options, show_list
from whaleflux.client.cli.session import Session, pass_session
from whaleflux.client.cli.table import Column, Row, text
from whaleflux.client.cli.terminal import dim, gibibytes, state_style
from whaleflux.common.clock import SystemClock


@click.command()
@click.option("--state", help="Only those in this state: queued, running, succeeded, failed, …")
@click.option("--kind", type=click.Choice(["job", "pipeline"]), help="Only this kind.")
@click.option("--name", help="Only those with this name.")
@list_options
@pass_session
def jobs(
    session: Session,
    /,
    options: ListOptions,
    state: str | None,
    kind: str | None,
    name: str | None,
) -> None:
    """List workloads, the newest first."""
    now = SystemClock().now
    show_list(
        lambda: (
            shape.job_row(w.to_dict())
            for w in session.client.workloads(
                state=state, kind=kind, name=name, limit=options.fetched
            )
        ),
        job_columns(now()),
        options,
        identity=itemgetter("id"),
        empty="No workloads. Hand one in with 'whaleflux submit FILE'."
        if not (state or kind or name)
        else "No workloads like that.",
    )


@click.command()
@click.argument("workload")
@click.option("--state", help="Only those in this state.")
@click.option("--phase", help="Only this phase.")
@list_options
@pass_session
def runs(
    session: Session,
    /,
    options: ListOptions,
    workload: str,
    state: str | None,
    phase: str | None,
) -> None:
    """List the runs of WORKLOAD (its id or unique name)."""
    now = SystemClock().now
    narrowed = state is not None or phase is not None
    show_list(
        lambda: (
            shape.run_row(r.to_dict())
            for r in session.client.runs(workload, limit=None if narrowed else options.fetched)
            if state in (None, r.state) and phase in (None, r.phase)
        ),
        run_columns(now()),
        options,
        identity=itemgetter("id"),
        empty="No runs like that." if narrowed else "No runs yet.",
    )


@click.command()
@click.option("--state", help="Only those in this state: ready, closed, lost, fenced.")
@list_options
@pass_session
def nodes(session: Session, /, options: ListOptions, state: str | None) -> None:
    """List the nodes of the fleet."""
    show_list(
        lambda: (
            shape.node_row(n.to_dict()) for n in session.client.nodes() if state in (None, n.state)
        ),
        NODE_COLUMNS,
        options,
        identity=itemgetter("id"),
        empty="No nodes." if state is None else f"No node is {state}.",
    )


@click.command()
@click.option("--state", help="Only those in this state.")
@click.option("--type", "type_", help="Only this type, for example H100.")
@click.option("--node", help="Only those of this node.")
@click.option("--free", is_flag=True, help="Only those that nobody holds.")
@list_options
@pass_session
def gpus(
    session: Session,
    /,
    options: ListOptions,
    state: str | None,
    type_: str | None,
    node: str | None,
    free: bool,
) -> None:
    """List the GPUs of the fleet and who holds them."""
    show_list(
        lambda: (
            g.to_dict()
            for g in session.client.gpus()
            if state in (None, g.state)
            and type_ in (None, g.type)
            and node in (None, g.node_id)
            and not (free and g.state != "free")
        ),
        GPU_COLUMNS,
        options,
        identity=lambda row: f"{row['node_id']}/{row['index']}",
        empty="No GPUs like that.",
        summary=_gpu_summary,
    )


def _state_cell(row: Row) -> dict[str, Any]:
    return dict(state_style(row.get("state")))


def _quiet(_row: Row) -> dict[str, Any]:
    return {"dim": True}


def job_columns(now: datetime) -> Sequence[Column]:
    """Return the columns of workloads, with ages as of *now*."""
    return (
        Column("id", "ID", text("id"), style=_quiet),
        Column("name", "NAME", text("name"), least=12),
        Column("kind", "KIND", text("kind"), drops=3),
        Column("state", "STATE", text("state"), style=_state_cell),
        Column("active_phases", "PHASE", text("active_phases"), least=10, drops=2),
        Column(
            "created_at", "TIME", lambda r: shape.elapsed(r, now, since="created_at"), right=True
        ),
        Column("simulated", "DEVICES", shape.devices_word),
        Column("project", "PROJECT", text("project"), wide=True),
        Column("user", "USER", text("user"), wide=True),
        Column("priority", "PRIORITY", text("priority"), right=True, wide=True),
        Column("created_at", "CREATED", lambda r: _when(r.get("created_at")), wide=True),
        Column("ended_at", "ENDED", lambda r: _when(r.get("ended_at")), wide=True),
        Column("reason", "REASON", text("reason"), wide=True, least=20),
    )


def run_columns(now: datetime) -> Sequence[Column]:
    """Return the columns of runs, with times as of *now*."""
    return (
        Column("phase", "PHASE", text("phase")),
        Column("iteration", "ITER", text("iteration"), right=True),
        Column("attempt", "TRY", text("attempt"), right=True),
        Column("state", "STATE", text("state"), style=_state_cell),
        Column("gpu_type", "GPUS", shape.run_gpus),
        Column("node_ids", "NODES", text("node_ids"), least=8, drops=1),
        Column("progress", "PROGRESS", shape.progress, right=True),
        Column(
            "started_at", "RAN", lambda r: shape.elapsed(r, now, since="started_at"), right=True
        ),
        Column("id", "ID", text("id"), drops=2, style=_quiet),
        Column("role", "ROLE", text("role"), wide=True),
        Column(
            "queued_at",
            "WAITED",
            lambda r: shape.elapsed(r, now, since="queued_at", until=_end_of_wait(r)),
            right=True,
            wide=True,
        ),
        Column("metrics", "METRICS", shape.metrics, wide=True, least=20),
        Column("reason", "REASON", text("reason"), wide=True, least=20),
    )


def _end_of_wait(row: Row) -> str:
    return "started_at" if row.get("started_at") else "ended_at"


NODE_COLUMNS = (
    Column("id", "NODE", text("id")),
    Column("state", "STATE", text("state"), style=_state_cell),
    Column("gpu_types", "GPUS", shape.node_gpus),
    Column("gpus_free", "FREE", text("gpus_free"), right=True),
    Column("cpus", "CPUS", text("cpus"), right=True),
    Column("memory_mib", "MEMORY", lambda r: gibibytes(r.get("memory_mib")), right=True),
    Column("stores", "STORES", text("stores"), drops=2),
    Column("reason", "REASON", text("reason"), least=14),
)


def _share(row: Row) -> str:
    value = row.get("utilisation_pct")
    return "-" if value is None else f"{value:.0f}%"


def _memory(row: Row) -> str:
    used, total = row.get("memory_used_mib"), row.get("memory_mib")
    return gibibytes(total) if used is None else f"{used / 1024:.1f}/{gibibytes(total)}"


def _number(key: str, unit: str) -> Column:
    def cell(row: Row) -> str:
        value = row.get(key)
        return "-" if value is None else f"{value:.0f} {unit}"

    heading = {"power_w": "POWER", "temperature_c": "TEMP"}[key]
    return Column(key, heading, cell, right=True)


def _holder(row: Row) -> str:
    if row.get("run_id") is not None:
        return str(row["run_id"])
    return "(another tenant)" if row.get("state") == "held" else "-"


GPU_COLUMNS = (
    Column("node_id", "NODE", text("node_id")),
    Column("index", "GPU", text("index"), right=True),
    Column(
        "type",
        "TYPE",
        lambda r: shape.device(r.get("type"), count=None, simulated=r.get("simulated")),
    ),
    Column("state", "STATE", text("state"), style=_state_cell),
    Column("utilisation_pct", "UTIL", _share, right=True),
    Column("memory_mib", "MEMORY", _memory, right=True),
    _number("power_w", "W"),
    _number("temperature_c", "C"),
    Column("phase", "PHASE", text("phase")),
    Column("run_id", "RUN", _holder, drops=1),
    Column("uuid", "UUID", text("uuid"), wide=True),
)


def _gpu_summary(rows: Sequence[Row]) -> str:
    held = sum(1 for row in rows if row.get("state") == "held")
    free = sum(1 for row in rows if row.get("state") == "free")
    simulated = sum(1 for row in rows if row.get("simulated"))
    marked = f"; {simulated} simulated" if simulated else ""
    return dim(f"{len(rows)} GPUs: {held} held, {free} free{marked}")


def _when(value: str | None) -> str:
    return "-" if value is None else value.replace("+00:00", "Z")[:19].replace("T", " ") + "Z"
