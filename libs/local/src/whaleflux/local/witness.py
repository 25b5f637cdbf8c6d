"""What the programs themselves wrote down: an account of attempts that no service had a hand in.

A program may append JSON lines to `witness.jsonl` in its output folder: `{"event": "start" | "step"
| "end", "pid": 1, "attempt": 1, "rank": 0, "boottime_s": 1.0, "step": 3}`, the time by
CLOCK_BOOTTIME. A program that was killed has no end; its last line is its last sign of life.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = "witness.jsonl"


@dataclass(slots=True)
class Sighting:
    """One start of a program, from its first to its last sign of life (CLOCK_BOOTTIME seconds)."""

    run_id: str
    rank: int
    attempt: int
    pid: int
    from_s: float
    until_s: float
    first_step: int | None = None
    last_step: int | None = None
    ended: bool = False
    """It said itself that it was done; False for one that was killed."""


@dataclass(slots=True)
class Witness:
    """All sightings of one store."""

    sightings: list[Sighting] = field(default_factory=list)

    @property
    def starts(self) -> int:
        """How many programs were started."""
        return len(self.sightings)

    @property
    def overlaps(self) -> list[str]:
        """Runs of which two programs of the same rank were alive at once."""
        found: list[str] = []
        for earlier, later in self._successions():
            if later.from_s < earlier.until_s:
                found.append(later.run_id)
        return found

    @property
    def lost_steps(self) -> int:
        """Steps that were done a second time."""
        return sum(
            max(0, earlier.last_step - later.first_step + 1)
            for earlier, later in self._successions()
            if earlier.last_step is not None and later.first_step is not None
        )

    def finished(self, run_id: str, attempt: int) -> bool | None:
        """Tell whether all programs of an attempt came to their own end; None if none was seen."""
        seen = [s for s in self.sightings if (s.run_id, s.attempt) == (run_id, attempt)]
        return all(sighting.ended for sighting in seen) if seen else None

    def _successions(self) -> Iterator[tuple[Sighting, Sighting]]:
        by_member: dict[tuple[str, int], list[Sighting]] = {}
        for sighting in sorted(self.sightings, key=lambda one: one.from_s):
            by_member.setdefault((sighting.run_id, sighting.rank), []).append(sighting)
        for line in by_member.values():
            yield from itertools.pairwise(line)


def read_witness(store: Path) -> Witness:
    """Return what the programs in *store* wrote down; torn last lines are left out."""
    sightings: list[Sighting] = []
    for path in sorted(store.glob(f"runs/*/a*/output/{FILE}")):
        run_id = path.parents[2].name
        by_pid: dict[int, Sighting] = {}
        for line in _lines(path):
            _see(by_pid, run_id, line)
        sightings += by_pid.values()
    return Witness(sightings)


def _see(by_pid: dict[int, Sighting], run_id: str, line: dict[str, Any]) -> None:
    pid, at_s = int(line["pid"]), float(line["boottime_s"])
    sighting = by_pid.get(pid)
    if sighting is None:
        sighting = by_pid[pid] = Sighting(
            run_id, int(line.get("rank", 0)), int(line["attempt"]), pid, at_s, at_s
        )
    sighting.until_s = max(sighting.until_s, at_s)
    sighting.ended = sighting.ended or line.get("event") == "end"
    if line.get("step") is not None:
        step = int(line["step"])
        sighting.last_step = step
        if sighting.first_step is None:
            sighting.first_step = step


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for raw in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(raw)
        except ValueError:
            continue
        if isinstance(line, dict) and "pid" in line and "boottime_s" in line:
            yield line
