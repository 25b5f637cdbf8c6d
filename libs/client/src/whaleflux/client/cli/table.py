"""Tables of plain text: two spaces between columns, cut to a terminal's width and never else."""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from whaleflux.client.cli.terminal import bold, paint

Row: TypeAlias = Mapping[str, Any]
GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its stable key, its heading, and how a row's cell reads."""

    key: str
    heading: str
    cell: Callable[[Row], str]
    right: bool = False
    wide: bool = False
    """Only with `-o wide`."""
    least: int | None = None
    """How narrow it may be cut; None is never."""
    drops: int = 0
    """On a narrow terminal columns with a higher number are left out first; 0 is never."""
    style: Callable[[Row], Mapping[str, Any]] | None = None


def text(key: str) -> Callable[[Row], str]:
    """Return a cell that shows the value of *key*; a dash for None."""

    def cell(row: Row) -> str:
        value = row.get(key)
        if value is None or value == "" or value == []:
            return "-"
        if isinstance(value, list | tuple):
            return ",".join(str(v) for v in value)
        return str(value)

    return cell


def render(
    rows: Sequence[Row], columns: Sequence[Column], *, width: int | None, headings: bool
) -> list[str]:
    """Return the lines of a table; *width* None means that nothing is cut or left out."""
    cells = [[clean(column.cell(row)) for column in columns] for row in rows]
    widths = [
        max([cell_width(line[i]) for line in cells] + [cell_width(c.heading) if headings else 0])
        for i, c in enumerate(columns)
    ]
    if width is not None:
        kept = _kept(widths, columns, width)
        columns = [columns[i] for i in kept]
        cells = [[line[i] for i in kept] for line in cells]
        widths = _fit([widths[i] for i in kept], columns, width)
    lines: list[str] = []
    if headings:
        line = _line([c.heading for c in columns], columns, widths)
        lines.append(bold(line))
    for row, line_cells in zip(rows, cells, strict=True):
        styles = [{} if c.style is None else c.style(row) for c in columns]
        lines.append(_line(line_cells, columns, widths, styles))
    return lines


def clean(cell: str) -> str:
    """Return *cell* on one line and without control characters, which could move the cursor."""
    return "".join(" " if unicodedata.category(c) == "Cc" else c for c in cell)


def cell_width(cell: str) -> int:
    """Return how many columns *cell* takes on a terminal."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in ("W", "F") else 1
        for c in cell
    )


def cut(cell: str, room: int) -> str:
    """Return *cell* in at most *room* columns, with an ellipsis where something is missing."""
    if cell_width(cell) <= room:
        return cell
    kept = ""
    for character in cell:
        if cell_width(kept + character) > room - 1:
            break
        kept += character
    return kept + "…"


def _kept(widths: Sequence[int], columns: Sequence[Column], width: int) -> list[int]:
    """Return which columns stay so that the rest, cut as far as they may be, fits."""
    kept = list(range(len(columns)))
    leaving = sorted((i for i in kept if columns[i].drops), key=lambda i: -columns[i].drops)
    for i in leaving:
        if sum(_floor(widths[k], columns[k]) + len(GAP) for k in kept) - len(GAP) <= width:
            break
        kept.remove(i)
    return kept


def _floor(width: int, column: Column) -> int:
    if column.least is None:
        return width
    return min(width, max(column.least, cell_width(column.heading)))


def _fit(widths: Sequence[int], columns: Sequence[Column], width: int) -> list[int]:
    """Return *widths*, cut from the right until the table fits, as far as columns may be cut."""
    fitted = list(widths)
    too_much = sum(fitted) + len(GAP) * (len(fitted) - 1) - width
    for i in reversed(range(len(columns))):
        given = max(0, min(too_much, fitted[i] - _floor(fitted[i], columns[i])))
        fitted[i] -= given
        too_much -= given
    return fitted


def _line(
    cells: Sequence[str],
    columns: Sequence[Column],
    widths: Sequence[int],
    styles: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    pieces: list[str] = []
    for i, (cell, column, room) in enumerate(zip(cells, columns, widths, strict=True)):
        shown = cut(cell, room)
        padding = " " * (room - cell_width(shown))
        drawn = paint(shown, styles[i]) if styles is not None else shown
        pieces.append(padding + drawn if column.right else drawn + padding)
    return GAP.join(pieces).rstrip()
