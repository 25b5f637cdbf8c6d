"""`config` and `completion`."""

import sys
from pathlib import Path

import click

from whaleflux.client.cli.output import show_one
from whaleflux.client.cli.session import Session, pass_session
from whaleflux.client.cli.table import Column, render, text
from whaleflux.client.cli.terminal import is_terminal, say, width
from whaleflux.client.contexts import (
    Context,
    Contexts,
    contexts_file,
    read_contexts,
    resolve,
    write_contexts,
)
from whaleflux.common.contracts.explain import nearest
from whaleflux.common.errors import Refused

KEY_SHOWN = 6
OTHERS_MAY_READ = 0o077


@click.group(invoke_without_command=True)
@click.pass_context
def config(context: click.Context, /) -> None:
    """Name gateways and choose between them.

    WHALEFLUX_URL and WHALEFLUX_API_KEY in the environment go before the current context;
    --context goes before both.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_)


@config.command("list")
@click.option("-o", "--output", type=click.Choice(["table", "json", "name"]), default="table")
def list_(output: str = "table") -> None:
    """List the gateways that are known."""
    known = _read()
    rows = [
        {"name": name, "url": c.url, "current": name == known.current, "api_key": _key_place(c)}
        for name, c in sorted(known.entries.items())
    ]
    if output == "name":
        for row in rows:
            click.echo(row["name"])
    elif output == "json":
        show_one({"contexts": rows, "current": known.current}, "json", name="", text_lines=list)
    elif not rows:
        say("No gateways are known. 'whaleflux up' starts one and notes it as 'local'.")
    else:
        for line in render(rows, _COLUMNS, width=width(), headings=True):
            click.echo(line)


@config.command()
@click.argument("name")
def use(name: str) -> None:
    """Make NAME the gateway that other commands talk to."""
    known = _read()
    _existing(known, name)
    write_contexts(contexts_file(), known.using(name))
    say(f"Now talking to {name}: {known.entries[name].url}")


@config.command("set")
@click.argument("name")
@click.option("--url", required=True, help="Address of the gateway.")
@click.option("--api-key-file", type=click.Path(path_type=Path), help="File that holds the key.")
@click.option("--api-key-stdin", is_flag=True, help="Read the key from standard input.")
@click.option("--use", "uses", is_flag=True, help="Make it the current one.")
def set_(name: str, url: str, api_key_file: Path | None, api_key_stdin: bool, uses: bool) -> None:
    """Add the gateway NAME, or change it. The key is asked for, never taken from the command."""
    resolve(url=url)
    key: str | None = None
    if api_key_file is None:
        if api_key_stdin or not sys.stdin.isatty():
            key = sys.stdin.readline().strip()
        else:
            key = click.prompt("API key", hide_input=True, err=True).strip()
        if not key:
            raise Refused("No API key was given.", code="no_api_key")
    file = None if api_key_file is None else str(api_key_file.expanduser().absolute())
    known = _read().with_context(name, Context(url=url.rstrip("/"), api_key=key, api_key_file=file))
    write_contexts(contexts_file(), known.using(name) if uses else known)
    say(f"Noted {name}: {url}")


@config.command()
@click.argument("name")
def remove(name: str) -> None:
    """Forget the gateway NAME."""
    known = _read()
    _existing(known, name)
    write_contexts(contexts_file(), known.without(name))
    say(f"Forgot {name}.")


@config.command()
@click.option("--check", is_flag=True, help="Ask the gateway whose key it is, too.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
@pass_session
def show(session: Session, /, check: bool, output: str) -> None:
    """Show which gateway is talked to, and why that one; keys are not shown."""
    target = resolve(context=session.context)
    row: dict[str, object] = {
        "url": target.url,
        "from": target.origin,
        "api_key": f"{target.api_key[:KEY_SHOWN]}…" if target.api_key else None,
        "file": str(contexts_file()),
    }
    if check:
        identity = session.client.whoami()
        row |= {"tenant": identity.tenant, "user": identity.user, "role": identity.role}
    room = max(len(name) for name in row)
    show_one(
        row,
        output,
        name=target.url,
        text_lines=lambda: [f"{k:<{room}}  {'-' if v is None else v}" for k, v in row.items()],
    )


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes words with Tab; load it in your shell's start file."""
    from click.shell_completion import get_completion_class

    from whaleflux.client.cli.main import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise Refused(f"There is no completion for {shell}.", code="no_completion")
    click.echo(kind(cli, {}, "whaleflux", "_WHALEFLUX_COMPLETE").source())
    if is_terminal():
        say(f'Load it with: eval "$(whaleflux completion {shell})"')


def _read() -> Contexts:
    path = contexts_file()
    if path.exists() and path.stat().st_mode & OTHERS_MAY_READ:
        say(f"Warning: others may read {path}; 'chmod 600 {path}' mends it.")
    return read_contexts(path)


def _existing(known: Contexts, name: str) -> None:
    if name not in known.entries:
        meant = nearest(name, known.entries)
        hint = f" Did you mean {meant!r}?" if meant else ""
        raise Refused(f"There is no context {name!r}.{hint}", code="no_context")


def _key_place(context: Context) -> str | None:
    if context.api_key_file is not None:
        return context.api_key_file
    return "in the contexts file" if context.api_key else None


_COLUMNS = (
    Column("current", "", lambda r: "*" if r["current"] else " "),
    Column("name", "NAME", text("name")),
    Column("url", "URL", text("url")),
    Column("api_key", "KEY", text("api_key"), least=12),
)
