"""`explain`: why work waits, and what the fields of a workload file mean."""

import textwrap
from collections.abc import Iterator

import click

from whaleflux.client.cli import shape
from whaleflux.client.cli.output import show_one
from whaleflux.client.cli.session import Session, pass_session
from whaleflux.client.cli.table import Row
from whaleflux.client.cli.terminal import bold, dim, paint, width
from whaleflux.common.errors import Refused

BAR_COLUMNS = 30
TEXT_COLUMNS = 78


@click.command()
@click.argument("what", metavar="ID", required=False)
@click.option("--field", is_flag=False, flag_value="", help="Describe a field of workload files.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table")
@click.option("--json", "as_json", is_flag=True, help="Short for -o json.")
@pass_session
def explain(
    session: Session, /, what: str | None, field: str | None, output: str, as_json: bool
) -> None:
    """Say why a workload or a run waits, or why it is where it is, and what would start it now.

    With --field, describe a field of workload files, for example
    'whaleflux explain --field resources.accelerators'.
    """
    output = "json" if as_json else output
    if field is not None:
        for line in field_lines(field):
            click.echo(line)
        return
    if what is None:
        raise click.UsageError("Name a workload or a run, or a field with --field.")
    found = session.client.explain(what).to_dict()
    show_one(found, output, name=what, text_lines=lambda: explanation_lines(found))


def explanation_lines(row: Row) -> Iterator[str]:
    """Return an explanation as people read it: the sentence, the funnel, what would help."""
    runs = row.get("runs")
    nested = [r for r in runs if isinstance(r, dict)] if isinstance(runs, list) else []
    if row.get("phase") and row.get("run_id"):
        yield f"{bold(shape.run_name(row))}  {dim(str(row['run_id']))}"
    sentence = row.get("sentence") or row.get("why") or row.get("reason")
    if sentence:
        yield from _wrapped(str(sentence))
    elif not nested:
        yield "Nothing to explain: it does not wait."
    yield from _funnel(row)
    starts_if = row.get("starts_if") or ()
    if starts_if:
        yield ""
        yield bold("It would start now if")
        for change in starts_if:
            yield from _wrapped(f"• {change}", hanging="  ")
    if row.get("code"):
        yield ""
        yield dim(f"code {row['code']}")
    for run in nested:
        yield ""
        yield bold(f"{shape.run_name(run)}  {run.get('state', '')}")
        inner = run.get("explanation") or run
        yield from explanation_lines({k: v for k, v in inner.items() if k != "runs"})


def _funnel(row: Row) -> Iterator[str]:
    steps = [s for s in row.get("funnel") or () if isinstance(s, dict)]
    if not steps:
        return
    yield ""
    yield bold("GPUs left after each filter")
    most = max([int(s.get("gpus", 0)) for s in steps] + [1])
    room = max(len(str(s.get("filter", ""))) for s in steps)
    digits = len(str(most))
    for step in steps:
        count = int(step.get("gpus", 0))
        bar = "█" * max(1 if count else 0, round(count / most * BAR_COLUMNS))
        colour = {"fg": "red"} if count == 0 else {"fg": "cyan"}
        name = str(step.get("filter", ""))
        yield f"  {name:<{room}}  {count:>{digits}}  {paint(bar, colour)}".rstrip()


def field_lines(path: str) -> Iterator[str]:
    """Return the help of the field at *path*; the list of fields for an empty one.

    Raises:
        Refused: There is no such field.

    """
    from whaleflux.client import spec_help

    if not path:
        yield bold("Fields of a workload file")
        yield from _children("")
        return
    found = spec_help.find(path)
    if found is None:
        meant = spec_help.meant(path)
        hint = f" Did you mean {meant!r}?" if meant else " Without a name, --field lists them."
        raise Refused(f"A workload file has no field {path!r}.{hint}", code="no_field")
    yield bold(path)
    yield from _wrapped(found.meaning, hanging="  ", first="  ")
    yield f"  {dim('takes')}    {found.takes}"
    if found.default:
        yield f"  {dim('default')}  {found.default}"
    if found.example:
        yield f"  {dim('example')}  {found.example}"
    below = spec_help.children(path)
    if below:
        yield ""
        yield from _children(path)


def _children(path: str) -> Iterator[str]:
    from whaleflux.client import spec_help

    names = spec_help.children(path)
    room = max(len(n) for n in names)
    for name in names:
        meaning = spec_help.FIELDS[name].meaning.split(". ")[0].rstrip(".")
        yield from _wrapped(f"{name:<{room}}  {meaning}", hanging=" " * (room + 4), first="  ")


def _wrapped(text: str, *, hanging: str = "", first: str = "") -> list[str]:
    room = width()
    if room is None:
        return [first + text]
    columns = min(room, TEXT_COLUMNS + 22)
    return textwrap.wrap(text, columns, initial_indent=first, subsequent_indent=hanging) or [""]
