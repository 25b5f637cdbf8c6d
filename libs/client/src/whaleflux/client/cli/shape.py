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


def run_gpus(row: Row) -> str:
    """Return the GPUs that a run holds or held."""
    members = _dicts(row.get("members"))
    count = sum(len(m.get("gpus") or ()) for m in members)
    return device(row.get("gpu_type"), count=count, simulated=row.get("simulated"))


def run_nodes(row: Row) -> str:
    """Return the nodes that a run's members are on, each once."""
    names = [str(m["node_id"]) for m in _dicts(row.get("members")) if m.get("node_id")]
    return ",".join(dict.fromkeys(names)) or "-"


def node_gpus(row: Row) -> str:
    """Return a node's GPUs by type."""
    types: dict[str, int] = {}
    for gpu in _dicts(row.get("gpus")):
        name = str(gpu.get("type", "unknown"))
        types[name] = types.get(name, 0) + 1
    shown = ", ".join(f"{count}×{name}" for name, count in types.items())
    return f"{shown}{SIMULATED if row.get('simulated') else ''}" if shown else "-"


def node_free(row: Row) -> str:
    """Return how many of a node's GPUs nobody holds."""
    gpus = _dicts(row.get("gpus"))
    return str(sum(1 for gpu in gpus if gpu.get("run_id") is None)) if gpus else "-"


def phase_now(row: Row) -> str:
    """Return the phases of a workload that are under way, with their iteration."""
    phases = _dicts(row.get("phases"))
    if row.get("kind") != "pipeline" or row.get("ended_at") is not None:
        return "-"
    active = [p for p in phases if p.get("state") in ACTIVE_STATES]
    waiting = [p for p in phases if p.get("state") == "queued"]
    shown = ", ".join(phase_name(p) for p in active or waiting)
    return shown or "-"


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
    shown = [f"{k}={v:.4g}" for k, v in list(found.items())[:METRICS_SHOWN]]
    return " ".join(shown + (["…"] if len(found) > METRICS_SHOWN else []))


def elapsed(row: Row, now: datetime, *, since: str, until: str = "ended_at") -> str:
    """Return the time from one of a row's moments to another, or to *now*."""
    return duration(between(row.get(since), row.get(until), now))


def _dicts(value: object) -> Sequence[Mapping[str, Any]]:
    return [v for v in value if isinstance(v, Mapping)] if isinstance(value, list | tuple) else []
