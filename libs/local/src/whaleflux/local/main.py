"""The process that holds an embedded stack up until it is told to stop."""

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from whaleflux.common.errors import WhalefluxError
from whaleflux.common.observe import configure_logging
from whaleflux.local.fleet import Node, parse_fleet, real_fleet
from whaleflux.local.lifetime import one_error, until_signalled
from whaleflux.local.paths import StatePaths
from whaleflux.local.session import running_stack
from whaleflux.local.stack import Addresses


async def serve(
    paths: StatePaths, nodes: Sequence[Node], *, on_ready: Callable[[Addresses], None]
) -> None:
    """Hold a stack up until a signal, then take it down.

    Raises:
        Refused: A stack is up there already, or something is missing.
        Unavailable: A part does not come up.

    """
    async with until_signalled(), one_error(), running_stack(paths, nodes) as session:
        on_ready(session.addresses)
        await asyncio.Event().wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as `python -m whaleflux.local`; its only line on stdout is JSON: ready, or why not."""
    parser = argparse.ArgumentParser(prog="python -m whaleflux.local")
    parser.add_argument("--state", required=True)
    parser.add_argument("--nodes", required=True)
    parser.add_argument("--real", action="store_true")
    options = parser.parse_args(arguments)

    caller = sys.stdout

    def tell(body: dict[str, object]) -> None:
        caller.write(json.dumps(body) + "\n")
        caller.flush()

    # Whoever started us reads stdout; the log goes where the errors go.
    with contextlib.redirect_stdout(sys.stderr):
        configure_logging("supervisor", log_format="json")
        try:
            nodes = real_fleet() if options.real else parse_fleet(options.nodes)
            paths = StatePaths(Path(options.state))
            asyncio.run(serve(paths, nodes, on_ready=lambda ready: tell(asdict(ready))))
        except WhalefluxError as error:
            tell({"error": error.message, "code": error.code})
            return 1
    return 0
