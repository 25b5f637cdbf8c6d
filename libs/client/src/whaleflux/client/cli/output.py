"""Every list in every format: `-o table|wide|json|jsonl|yaml|csv|name`."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import click

from whaleflux.client.cli.table import Column, Row, render, text
from whaleflux.client.cli.terminal import is_terminal, say, width
from whaleflux.client.cli.watch import watch

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = ("table", "wide", "json", "jsonl", "yaml", "csv", "name")
ROWS_ON_TERMINAL = 50
"""Without `--limit`, a person gets the newest rows; a program gets all of them."""


@dataclass(frozen=True, slots=True)
class ListOptions:
    """How a list is wanted."""

    output: str = "table"
    fields: tuple[str, ...] = ()
    headings: bool = True
    limit: int | None = None
    watched: bool = False

    @property
    def for_people(self) -> bool:
        """Whether the list is a table."""
        return self.output in ("table", "wide")

    @property
    def fetched(self) -> int | None:
        """How many rows to ask for; one more than shown tells whether there are more."""
        if self.limit is not None:
            return self.limit or None
        return ROWS_ON_TERMINAL + 1 if self.for_people and is_terminal() else None


def list_options(function: F) -> F:
    """Add the options that every list has; they arrive as one `ListOptions` called `options`."""

    def gather(**given: Any) -> Any:  # noqa: ANN401 - whatever the verb takes and returns
        as_json = given.pop("as_json")
        options = ListOptions(
            output="json" if as_json else given.pop("output"),
            fields=tuple(f.strip() for f in (given.pop("fields") or "").split(",") if f.strip()),
            headings=not given.pop("no_headers"),
            limit=given.pop("limit"),
            watched=given.pop("watched"),
        )
        given.pop("output", None)
        return function(options=options, **given)

    gather.__name__ = function.__name__
    gather.__doc__ = function.__doc__
    vars(gather)["__click_params__"] = list(getattr(function, "__click_params__", []))
    for option in (
        click.option("-w", "--watch", "watched", is_flag=True, help="Go on and show what changes."),
        click.option(
            "--limit",
            type=click.IntRange(min=0),
            help=f"At most so many rows; 0 is all of them. On a terminal {ROWS_ON_TERMINAL}.",
        ),
        click.option("--no-headers", is_flag=True, help="Leave the headings out."),
        click.option("--fields", metavar="KEY,…", help="Only these keys, in this order."),
        click.option("--json", "as_json", is_flag=True, help="Short for -o json."),
        click.option(
            "-o",
            "--output",
            type=click.Choice(FORMATS),
            default="table",
            show_default=True,
            help="How to write it.",
        ),
    ):
        gather = option(gather)
    return cast(F, gather)


def show_list(
    fetch: Callable[[], Iterable[Row]],
    columns: Sequence[Column],
    options: ListOptions,
    *,
    identity: Callable[[Row], str],
    empty: str,
    summary: Callable[[Sequence[Row]], str] | None = None,
) -> None:
    """Write a list to standard output; *fetch* is called again and again when it is watched."""
    if options.watched:
        watch(
            fetch,
            lambda rows: _lines(rows, columns, options, identity),
            identity=identity,
            live=options.for_people,
            line_of=lambda row: _streamed(row, columns, options, identity),
        )
        return
    if options.output == "jsonl":
        for row in fetch():
            click.echo(json.dumps(_picked(row, options.fields), ensure_ascii=False))
        return
    rows = list(fetch())
    more = options.limit is None and options.fetched is not None and len(rows) == options.fetched
    rows = rows[:ROWS_ON_TERMINAL] if more else rows
    if not rows and options.for_people:
        say(empty)
        return
    for line in _lines(rows, columns, options, identity):
        click.echo(line)
    if more:
        say(f"The first {ROWS_ON_TERMINAL}; --limit 0 shows all.")
    elif summary is not None and options.for_people and is_terminal():
        say(summary(rows))


def show_one(row: Row, output: str, *, name: str, text_lines: Callable[[], Iterable[str]]) -> None:
    """Write one thing: as data, by its *name*, or as the lines people read."""
    match output:
        case "json":
            click.echo(json.dumps(row, indent=2, ensure_ascii=False))
        case "jsonl":
            click.echo(json.dumps(row, ensure_ascii=False))
        case "yaml":
            click.echo(_yaml(row), nl=False)
        case "name":
            click.echo(name)
        case _:
            for line in text_lines():
                click.echo(line)


def _lines(
    rows: Sequence[Row],
    columns: Sequence[Column],
    options: ListOptions,
    identity: Callable[[Row], str],
) -> list[str]:
    match options.output:
        case "name":
            return [identity(row) for row in rows]
        case "json":
            picked = [_picked(row, options.fields) for row in rows]
            return json.dumps(picked, indent=2, ensure_ascii=False).splitlines()
        case "jsonl":
            return [json.dumps(_picked(r, options.fields), ensure_ascii=False) for r in rows]
        case "yaml":
            return _yaml([dict(_picked(r, options.fields)) for r in rows]).splitlines()
        case "csv":
            return _csv(rows, _keys(columns, options), headings=options.headings)
        case _:
            shown = _columns(columns, options)
            return render(rows, shown, width=width(), headings=options.headings)


def _streamed(
    row: Row, columns: Sequence[Column], options: ListOptions, identity: Callable[[Row], str]
) -> str:
    """Return one changed row of a watched list; JSON comes as one object a line."""
    if options.output in ("json", "jsonl"):
        return json.dumps(_picked(row, options.fields), ensure_ascii=False)
    if options.output == "yaml":
        return "---\n" + _yaml(_picked(row, options.fields)).rstrip()
    bare = ListOptions(options.output, options.fields, headings=False)
    return "\n".join(_lines([row], columns, bare, identity))


def _columns(columns: Sequence[Column], options: ListOptions) -> list[Column]:
    if options.fields:
        known = {c.key: c for c in columns}
        return [known.get(key) or Column(key, key.upper(), text(key)) for key in options.fields]
    return [c for c in columns if options.output == "wide" or not c.wide]


def _keys(columns: Sequence[Column], options: ListOptions) -> list[str]:
    return list(options.fields) or list(dict.fromkeys(c.key for c in columns))


def _picked(row: Row, fields: Sequence[str]) -> Row:
    return {key: row.get(key) for key in fields} if fields else row


def _csv(rows: Sequence[Row], keys: Sequence[str], *, headings: bool) -> list[str]:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if headings:
        writer.writerow(keys)
    for row in rows:
        writer.writerow([_csv_cell(row.get(key)) for key in keys])
    return out.getvalue().splitlines()


def _csv_cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and not any(isinstance(v, dict | list) for v in value):
        return " ".join(str(v) for v in value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _yaml(value: Mapping[str, Any] | list[Any]) -> str:
    from whaleflux.client.yaml_document import write_document

    return write_document(value)
