"""What a program says about itself: JSON lines in the file `WHALEFLUX_REPORT` names."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

READ_BYTES = 1 << 20
"""Read in one look; the rest waits for the next, so that a talkative program delays nobody."""
LINE_BYTES_MAX = 65_536
METRICS_MAX = 200
CHECKPOINTS_MAX = 1_000
"""Announcements kept unregistered; the oldest is dropped, since newer ones replace it."""


@dataclass(slots=True)
class Reported:
    """The newest of everything the program has said."""

    step: int | None = None
    progress: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)


class ReportTail:
    """Follows one report file; what cannot be read is counted and skipped."""

    def __init__(self, path: Path) -> None:
        self.reported = Reported()
        self.announced: list[tuple[str, int]] = []
        """Name and step of checkpoints that await registration."""
        self.bad_lines = 0
        self.changes = 0
        """Lines that said something new; callers compare it with what they last saw."""
        self._path = path
        self._offset = 0
        self._rest = b""

    def look(self) -> bool:
        """Read what was added; True if there may be more."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                piece = file.read(READ_BYTES)
        except OSError:
            return False
        self._offset += len(piece)
        *lines, rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._take(line)
        self._rest = rest[: LINE_BYTES_MAX + 1]
        return len(piece) == READ_BYTES

    def finish(self) -> None:
        """Read to the end, a last line without its line feed included."""
        while self.look():
            pass
        self._take(self._rest)
        self._rest = b""

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            said = json.loads(line) if len(line) <= LINE_BYTES_MAX else None
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict) or not self._fold(said):
            self.bad_lines += 1
        else:
            self.changes += 1

    def _fold(self, said: dict[str, object]) -> bool:
        step, progress = _number(said.get("step")), _number(said.get("progress"))
        metrics, name = said.get("metrics"), said.get("checkpoint")
        good = False
        if step is not None and step >= 0 and step == int(step):
            self.reported.step, good = int(step), True
        if progress is not None and 0 <= progress <= 1:
            self.reported.progress, good = progress, True
        if isinstance(metrics, dict):
            good = self._fold_metrics(metrics) or good
        if isinstance(name, str) and name:
            self.announced.append((name, self.reported.step or 0))
            del self.announced[:-CHECKPOINTS_MAX]
            good = True
        return good

    def _fold_metrics(self, metrics: dict[str, object]) -> bool:
        good = False
        kept = self.reported.metrics
        for name, value in metrics.items():
            number = _number(value)
            if (
                number is not None
                and len(name) <= 100
                and (name in kept or len(kept) < METRICS_MAX)
            ):
                kept[name] = number
                good = True
        return good


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
