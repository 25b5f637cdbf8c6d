"""What /proc says about the processes of a stack: who lives, since when, how large."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

POLL_S = 0.02
"""How often /proc is asked whether a process that is not our child has gone."""
_PROC = Path("/proc")
_STATE_FIELD, _STARTED_FIELD = 0, 19
"""Positions in /proc/<pid>/stat after the command's closing parenthesis."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One process; pid and start time together are never reused."""

    name: str
    pid: int
    started_ticks: int
    """Clock ticks from boot to its start."""


def started_ticks(pid: int) -> int | None:
    """Return when *pid* started, in clock ticks since boot; None if it is gone or a zombie."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[_STATE_FIELD] in "ZX" else int(fields[_STARTED_FIELD])


def record(name: str, pid: int) -> ProcessRecord | None:
    """Return the record of a process that lives now, else None."""
    started = started_ticks(pid)
    return None if started is None else ProcessRecord(name, pid, started)


def is_alive(process: ProcessRecord) -> bool:
    """Tell whether exactly this process still runs."""
    return started_ticks(process.pid) == process.started_ticks


def resident_mib(pid: int) -> float | None:
    """Return the resident memory of *pid* in MiB, pages shared with others included."""
    return _memory_mib(pid, "status", "VmRSS:")


def proportional_mib(pid: int) -> float | None:
    """Return the memory of *pid* in MiB with every shared page divided by its sharers."""
    return _memory_mib(pid, "smaps_rollup", "Pss:")


def _memory_mib(pid: int, file: str, key: str) -> float | None:
    try:
        lines = (_PROC / str(pid) / file).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(key)), None)


def write_records(path: Path, records: Iterable[ProcessRecord]) -> None:
    """Replace the list of processes at *path*."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps([asdict(entry) for entry in records], indent=1))
    scratch.replace(path)


def read_records(path: Path) -> tuple[ProcessRecord, ...]:
    """Return the list of processes at *path*; empty when there is none to read."""
    try:
        return tuple(ProcessRecord(**entry) for entry in json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return ()


def of_state(root: Path) -> tuple[ProcessRecord, ...]:
    """Return all processes that were started for the state folder *root*.

    They are known by a `WHALEFLUX_…` variable that names a path in it, or as the shim of a member
    whose folder lies in it. The caller and its own ancestors are left out, whatever they say.
    """
    spared = _ancestry(os.getpid())
    marker = str(root.resolve()).encode()
    found: list[ProcessRecord] = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) in spared:
            continue
        told = [*_environment(entry).values(), *_shim_folder(entry)]
        if any(_names(value, marker) for value in told):
            process = record(_command(entry), int(entry.name))
            if process is not None:
                found.append(process)
    return tuple(found)


def _names(value: bytes, marker: bytes) -> bool:
    position = value.find(marker)
    return position >= 0 and value[position + len(marker) :][:1] in (b"", b"/")


def _environment(entry: Path) -> Mapping[bytes, bytes]:
    try:
        raw = (entry / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0"))
    return {key: value for key, _, value in pairs if key.startswith(b"WHALEFLUX_")}


def _shim_folder(entry: Path) -> list[bytes]:
    """Return the member's folder if the process is a shim; its environment says nothing."""
    try:
        words = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return []
    return words[-1:] if any(word.endswith(b"/shim.py") for word in words[1:-1]) else []


def _command(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    except OSError:
        return ""


def _ancestry(pid: int) -> frozenset[int]:
    line: set[int] = set()
    while pid > 0 and pid not in line:
        line.add(pid)
        try:
            stat = (_PROC / str(pid) / "stat").read_text()
        except OSError:
            break
        pid = int(stat.rpartition(")")[2].split()[1])
    return frozenset(line)


async def end(processes: Iterable[ProcessRecord], *, grace_s: float) -> None:
    """End *processes*: SIGTERM, then SIGKILL to those still there after *grace_s* seconds."""
    left = [process for process in processes if is_alive(process)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)
        left = await gone(left, within_s=grace_s)


async def gone(processes: Iterable[ProcessRecord], *, within_s: float) -> list[ProcessRecord]:
    """Wait until *processes* have ended, *within_s* seconds at most; return those that live on."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    left = [process for process in processes if is_alive(process)]
    while left and loop.time() < deadline:
        await asyncio.sleep(POLL_S)
        left = [process for process in left if is_alive(process)]
    return left
