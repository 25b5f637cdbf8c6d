"""The entry point: which verbs there are, and what becomes of errors."""

import os
import sys
from collections.abc import Sequence
from typing import Any, cast

import click

from whaleflux.client.cli import exit_codes
from whaleflux.client.cli.lazy_group import LazyGroup
from whaleflux.client.cli.session import Session

# httpx loads a command line of its own (with rich and pygments) when it is imported: 130 ms that
# no verb needs. It copes with the module not being there.
cast(dict[str, Any], sys.modules).setdefault("httpx._main", None)

EPILOG = """\b
Exit codes: 0 ok, 1 error, 2 usage, 3 not found, 4 not allowed, 5 conflict, 6 unreachable,
8 timed out, 10 workload failed, 11 cancelled, 12 preempted or lost, 130 interrupted."""


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EPILOG,
)
@click.option("--context", metavar="NAME", help="Which gateway to talk to; see 'config'.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but data and errors.")
@click.option("-v", "--verbose", is_flag=True, help="Show where an unexpected error came from.")
@click.version_option(package_name="whaleflux-client", prog_name="whaleflux")
@click.pass_context
def cli(context: click.Context, /, quiet: bool, verbose: bool, **named: str | None) -> None:
    """Keep a mixed GPU fleet busy with the right work."""
    context.obj = Session(context=named["context"], quiet=quiet, verbose=verbose)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    from whaleflux.client.cli.failure import report

    try:
        result = cli.main(args=argv, prog_name="whaleflux", standalone_mode=False)
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.PIPE_CLOSED
    except Exception as error:
        return report(error, verbose="-v" in sys.argv or "--verbose" in sys.argv)
    return result if isinstance(result, int) else exit_codes.OK
