"""An account of who ran when that no part of WhaleFlux has a hand in.

Each program appends lines to `witness.jsonl` in its output folder, each by one write:

    {"event": "start", "attempt": 1, "rank": 0, "pid": 4711, "boot": "…", "boottime_s": 12.5}
    {"event": "step", …, "step": 3}
    {"event": "end", …}

`step` is the number of the step just done. The time is CLOCK_BOOTTIME, which never jumps and is
the same for all processes of a machine; `boot` names the machine's boot, for times of different
boots cannot be compared. A program that was killed has no end: its last line is its last sign
of life.
"""

import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = "witness.jsonl"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Witness:
    """Writes one program's own account."""

    def __init__(self, output: Path, *, attempt: int, rank: int) -> None:
        self._path = output / FILE
        boot = BOOT_ID.read_text(encoding="ascii").strip() if BOOT_ID.exists() else ""
        self._who = {"attempt": attempt, "rank": rank, "pid": os.getpid(), "boot": boot}

    def write(self, event: str, *, step: int | None = None) -> None:
        """Append one line."""
        line: dict[str, Any] = {"event": event, **self._who, "boottime_s": _boottime_s()}
        if step is not None:
            line["step"] = step
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, json.dumps(line).encode() + b"\n")
        finally:
            os.close(descriptor)


@dataclass
class Sighting:
    """One start of a program, from its first to its last sign of life."""

    run_id: str
    attempt: int
    rank: int
    pid: int
    boot: str
    from_s: float
    until_s: float
    steps: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Duplicate:
    """Two attempts of one run that were alive at the same time."""

    run_id: str
    attempts: tuple[int, int]
    both_alive_s: float


@dataclass(frozen=True)
class Account:
    """What all programs of a store wrote down."""

    sightings: list[Sighting]
    duplicates: list[Duplicate]
    lost_steps: dict[str, int]
    """Run → steps done more than once, all ranks together; runs with none are left out."""
    not_comparable: list[str]
    """Runs with attempts on different machines or boots: whether those overlapped is unknown."""


def read_account(store: Path) -> Account:
    """Return the account of every run in *store*; lines cut short are left out."""
    sightings = sorted(_sightings(store), key=lambda one: (one.run_id, one.from_s))
    duplicates: list[Duplicate] = []
    lost_steps: dict[str, int] = {}
    not_comparable: list[str] = []
    for run_id, group in itertools.groupby(sightings, key=lambda one: one.run_id):
        of_run = list(group)
        duplicates += _duplicates(of_run)
        lost = sum(_lost_steps(of_run, rank) for rank in {one.rank for one in of_run})
        if lost:
            lost_steps[run_id] = lost
        if any(a.attempt != b.attempt and a.boot != b.boot for a, b in _couples(of_run)):
            not_comparable.append(run_id)
    return Account(sightings, duplicates, lost_steps, not_comparable)


def _duplicates(of_run: list[Sighting]) -> Iterator[Duplicate]:
    overlaps: dict[tuple[int, int], float] = {}
    for one, other in _couples(of_run):
        both_s = min(one.until_s, other.until_s) - max(one.from_s, other.from_s)
        if one.attempt != other.attempt and one.boot == other.boot and both_s > 0:
            attempts = min(one.attempt, other.attempt), max(one.attempt, other.attempt)
            overlaps[attempts] = max(both_s, overlaps.get(attempts, 0.0))
    for attempts, both_s in sorted(overlaps.items()):
        yield Duplicate(of_run[0].run_id, attempts, both_s)


def _lost_steps(of_run: list[Sighting], rank: int) -> int:
    steps = [step for one in of_run if one.rank == rank for step in one.steps]
    return len(steps) - len(set(steps))


def _couples(of_run: list[Sighting]) -> Iterable[tuple[Sighting, Sighting]]:
    return itertools.combinations(of_run, 2)


def _sightings(store: Path) -> Iterator[Sighting]:
    for path in sorted(store.glob(f"runs/*/a*/output/{FILE}")):
        run_id = path.parents[2].name
        found: dict[tuple[int, int, str], Sighting] = {}
        for line in _lines(path):
            at_s = float(line["boottime_s"])
            key = int(line["rank"]), int(line["pid"]), str(line["boot"])
            rank, pid, boot = key
            if key not in found:
                found[key] = Sighting(run_id, int(line["attempt"]), rank, pid, boot, at_s, at_s)
            found[key].until_s = at_s
            if "step" in line:
                found[key].steps.append(int(line["step"]))
        yield from found.values()


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for raw in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield json.loads(raw)
        except ValueError:
            continue


def _boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
