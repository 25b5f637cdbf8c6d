"""What the terminal can do, and how times, sizes and states look on it."""

import os
import shutil
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TextIO

import click

_COLOURS: Mapping[str, Mapping[str, Any]] = {
    "running": {"fg": "green"},
    "ready": {"fg": "green"},
    "healthy": {"fg": "green"},
    "held": {"fg": "green"},
    "free": {"dim": True},
    "succeeded": {"fg": "green", "dim": True},
    "queued": {"fg": "yellow"},
    "waiting": {"fg": "yellow"},
    "pending": {"fg": "yellow"},
    "reserved": {"fg": "yellow"},
    "placed": {"fg": "cyan"},
    "starting": {"fg": "cyan"},
    "stopping": {"fg": "cyan"},
    "cancelling": {"fg": "cyan"},
    "failed": {"fg": "red", "bold": True},
    "refused": {"fg": "red", "bold": True},
    "lost": {"fg": "red", "bold": True},
    "fenced": {"fg": "red"},
    "closed": {"fg": "red"},
    "suspect": {"fg": "yellow"},
    "cordoned": {"fg": "yellow"},
    "cancelled": {"dim": True},
    "preempted": {"fg": "magenta"},
}

ONE_UNIT_FROM = 100
"""Of a hundred days, nobody wants the hours."""


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether a person looks at *stream* (standard output when None)."""
    return (stream or sys.stdout).isatty()


def wants_colour() -> bool:
    """Whether standard output may have colours: a terminal that is not dumb, and no NO_COLOR."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_terminal()


def width() -> int | None:
    """Return the terminal's columns; None when nobody looks, and nothing may be cut."""
    return shutil.get_terminal_size().columns if is_terminal() else None


def state_style(state: str | None) -> Mapping[str, Any]:
    """Return how the word *state* is drawn."""
    return _COLOURS.get(state or "", {})


def paint(text: str, style: Mapping[str, Any]) -> str:
    """Return *text* in *style* where colours are wanted."""
    return click.style(text, **style) if style and wants_colour() else text


def bold(text: str) -> str:
    """Return *text* in bold where colours are wanted."""
    return paint(text, {"bold": True})


def dim(text: str) -> str:
    """Return *text* in the background where colours are wanted."""
    return paint(text, {"dim": True})


def duration(seconds: float | None) -> str:
    """Return *seconds* in at most two units; a dash for None."""
    if seconds is None:
        return "-"
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    left = max(0, int(seconds))
    units = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
    for index, (name, size) in enumerate(units):
        if left >= size:
            first, rest = divmod(left, size)
            if index == len(units) - 1:
                return f"{first}s"
            small_name, small = units[index + 1]
            second = rest // small
            if not second or first >= ONE_UNIT_FROM:
                return f"{first}{name}"
            return f"{first}{name}{second:02d}{small_name}"
    return "0s"


def moment(text: str | None) -> datetime | None:
    """Return an ISO 8601 time as a value; None for None and for what is none."""
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None


def between(since: str | None, until: str | None, now: datetime) -> float | None:
    """Return the seconds from *since* to *until* (to *now* when that is None)."""
    begin, end = moment(since), moment(until) or now
    return None if begin is None else max(0.0, (end - begin).total_seconds())


def gibibytes(mebibytes: float | None) -> str:
    """Return an amount of memory for people; a dash for None."""
    if mebibytes is None:
        return "-"
    value = mebibytes / 1024
    return f"{value:.0f} GiB" if value >= 10 or value == int(value) else f"{value:.1f} GiB"


def size(count: int) -> str:
    """Return *count* bytes for people."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def say(text: str) -> None:
    """Say something to the person; it is no data."""
    click.echo(text, err=True)
