"""Verbs that are imported only when they are used, some of them from other packages."""

from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

from whaleflux.client.cli import exit_codes
from whaleflux.client.cli.session import Session
from whaleflux.client.cli.terminal import say
from whaleflux.client.cli.verbs import ALIASES, SECTIONS, VERBS

ENTRY_POINTS = "whaleflux.commands"
"""Packages add verbs by entry points of this group; each is a click command."""
OTHERS = "This machine"


class LazyGroup(click.Group):
    """A group whose help needs no verb to be imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all verbs, those of other packages included."""
        return [*VERBS, *sorted(self._plugins())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb."""
        name = ALIASES.get(cmd_name, cmd_name)
        verb = VERBS.get(name)
        if verb is not None:
            module = import_module(f"whaleflux.client.cli.{verb.module}")
            command: click.Command = getattr(module, verb.attribute)
            return command
        plugin = self._plugins().get(name)
        return None if plugin is None else _load(plugin)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or say which one was probably meant."""
        name = args[0]
        command = self.get_command(ctx, name)
        if command is not None:
            return name, command, args[1:]
        if name.startswith("-"):
            return super().resolve_command(ctx, args)
        from whaleflux.common.contracts.explain import nearest

        meant = nearest(name, [*self.list_commands(ctx), *ALIASES])
        hint = f" Did you mean '{meant}'?" if meant else ""
        raise click.UsageError(f"There is no command '{name}'.{hint}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs by section, without importing those of this package."""
        for title, names in SECTIONS:
            _section(formatter, title, [(name, VERBS[name].help) for name in names])
        plugins = self._plugins()
        rows = [(name, _plugin_help(plugins[name])) for name in sorted(plugins)]
        if rows:
            _section(formatter, OTHERS, rows)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - whatever a verb returns
        """Run the verb; Ctrl-C only detaches, and that is said in words."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            session = ctx.obj
            if isinstance(session, Session):
                say(session.farewell or "Interrupted.")
                session.close()
            ctx.exit(exit_codes.INTERRUPTED)

    def _plugins(self) -> dict[str, EntryPoint]:
        found = entry_points(group=ENTRY_POINTS)
        return {point.name: point for point in found if point.name not in VERBS}


def _load(point: EntryPoint) -> click.Command:
    try:
        command = point.load()
    except Exception as error:
        raise click.ClickException(
            f"The command '{point.name}' comes from {point.value} and cannot be loaded: {error}"
        ) from error
    if not isinstance(command, click.Command):
        raise click.ClickException(f"{point.value} is no click command.")
    return command


def _plugin_help(point: EntryPoint) -> str:
    try:
        return _load(point).get_short_help_str(limit=90)
    except click.ClickException:
        return f"(cannot be loaded from {point.value})"


def _section(formatter: click.HelpFormatter, title: str, rows: Sequence[tuple[str, str]]) -> None:
    with formatter.section(title):
        formatter.write_dl(rows)
