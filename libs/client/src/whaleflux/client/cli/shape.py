"""How WhaleFlux's things read in a line: GPUs, phases, progress; simulated ones always say so."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from whaleflux.client.cli.table import Row
from whaleflux.client.cli.terminal import between, duration

SIMULATED = " (simulated)"
ACTIVE_STATES = frozenset({"placed", "starting", "running", "stopping", "parking", "unparking"})
METRICS_SHOWN = 3


def device(type_: str | None, *, count: int | None, simulated: bool | None) -> str:
    """Return GPUs as `8×H100 (simulated)`; a dash where there are none."""
    if not type_:
        return "-"
    number = "" if count is None else f"{count}×"
    return f"{number}{type_}{SIMULATED if simulated else ''}"


def devices_word(row: Row) -> str:
    """Return whether a row's devices are simulated, in a word."""
    simulated = row.get("simulated")
    return "-" if simulated is None else "simulated" if simulated else "real"


def job_row(row: Row) -> Row:
    """Return a workload with the phases that are under way, or wait, as `active_phases`."""
    phases = _dicts(row.get("phases"))
    shown: list[str] = []
    if row.get("kind") == "pipeline" and row.get("ended_at") is None:
        active = [p for p in phases if p.get("state") in ACTIVE_STATES]
        waiting = [p for p in phases if p.get("state") == "queued"]
        shown = [phase_name(p) for p in active or waiting]
    return {**row, "active_phases": shown}


def run_row(row: Row) -> Row:
    """Return a run with the sum of its members as `gpu_count` and `node_ids`."""
    members = _dicts(row.get("members"))
    names = [str(m["node_id"]) for m in members if m.get("node_id")]
    count = sum(len(m.get("gpus") or ()) for m in members) if members else None
    return {**row, "gpu_count": count, "node_ids": list(dict.fromkeys(names))}


def node_row(row: Row) -> Row:
    """Return a node with its GPUs counted: `gpu_types`, `gpu_count` and `gpus_free`."""
    gpus = _dicts(row.get("gpus"))
    types: dict[str, int] = {}
    for gpu in gpus:
        name = str(gpu.get("type", "unknown"))
        types[name] = types.get(name, 0) + 1
    usable = row.get("state") == "ready"
    free = sum(1 for gpu in gpus if gpu.get("run_id") is None) if usable else 0
    return {**row, "gpu_types": types, "gpu_count": len(gpus), "gpus_free": free}


def run_gpus(row: Row) -> str:
    """Return the GPUs that a run holds or held."""
    count = run_row(row)["gpu_count"]
    return device(row.get("gpu_type"), count=count, simulated=row.get("simulated"))


def node_gpus(row: Row) -> str:
    """Return a node's GPUs by type."""
    types = row.get("gpu_types") or {}
    shown = ", ".join(f"{count}×{name}" for name, count in types.items())
    return f"{shown}{SIMULATED if row.get('simulated') else ''}" if shown else "-"


def run_name(row: Row) -> str:
    """Return a run by its phase and iteration."""
    return f"{row.get('phase', '-')} #{row.get('iteration', 0)}"


def phase_name(phase: Mapping[str, Any]) -> str:
    """Return a phase with the iteration it is in, counted as the events do."""
    return f"{phase.get('name')} #{phase.get('iteration', 0)}"


def progress(row: Row) -> str:
    """Return how far a run is: a share, or its step; a dash when it has not said."""
    share, step = row.get("progress"), row.get("step")
    if isinstance(share, int | float):
        return f"{share * 100:.0f}%"
    return "-" if step is None else f"step {step}"


def metrics(row: Row) -> str:
    """Return the first few metrics of a run."""
    found = row.get("metrics")
    if not isinstance(found, Mapping) or not found:
        return "-"
    shown = [f"{k}={number(v)}" for k, v in list(found.items())[:METRICS_SHOWN]]
    return " ".join(shown + (["…"] if len(found) > METRICS_SHOWN else []))


def number(value: float) -> str:
    """Return a measured value in four digits, or all that stand before the point."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def elapsed(row: Row, now: datetime, *, since: str, until: str = "ended_at") -> str:
    """Return the time from one of a row's moments to another, or to *now*."""
    return duration(between(row.get(since), row.get(until), now))


def _dicts(value: object) -> Sequence[Mapping[str, Any]]:
    return [v for v in value if isinstance(v, Mapping)] if isinstance(value, list | tuple) else []
