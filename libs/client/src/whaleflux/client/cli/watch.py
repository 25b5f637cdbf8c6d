"""A list that goes on: redrawn on a terminal, only the changed rows elsewhere."""

import threading
from collections.abc import Callable, Iterable, Sequence

import click

from whaleflux.client.cli.table import Row
from whaleflux.client.cli.terminal import is_terminal

WATCH_S = 2.0
CLEAR = "\x1b[H\x1b[J"
"""To the corner, then clear what is below: less flicker than clearing first."""


def watch(
    fetch: Callable[[], Iterable[Row]],
    lines_of: Callable[[Sequence[Row]], Sequence[str]],
    *,
    identity: Callable[[Row], str],
    live: bool,
    line_of: Callable[[Row], str],
) -> None:
    """Show a list until the person ends it."""
    seen: dict[str, Row] = {}
    pause = threading.Event()
    redraw = live and is_terminal()
    while True:
        rows = list(fetch())
        if redraw:
            click.echo(CLEAR + "\n".join(lines_of(rows)))
        elif not seen and live:
            for line in lines_of(rows):
                click.echo(line)
        else:
            for row in rows:
                if seen.get(identity(row)) != row:
                    click.echo(line_of(row))
        seen = {identity(row): row for row in rows}
        pause.wait(WATCH_S)
