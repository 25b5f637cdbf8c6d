"""The verbs `up`, `down`, `status` and `demo` of the command line.

Only click is imported here, so that the command line starts fast; each verb loads its own part.
"""

from pathlib import Path

import click

_STATE = click.option(
    "--state",
    "state",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder that keeps everything of this stack (default: ~/.local/state/whaleflux/default).",
)


@click.command()
@click.option("--nodes", "nodes", default=None, metavar="FLEET", help="For example 2xH200x8.")
@_STATE
@click.option("--real", is_flag=True, help="Use this machine's own GPUs.")
@click.option("--foreground", is_flag=True, help="Stay attached; Ctrl-C takes the stack down.")
def up(nodes: str | None, state: Path | None, real: bool, foreground: bool) -> None:
    """Bring the whole product up on this machine."""
    from whaleflux.local.updown import bring_up

    raise SystemExit(bring_up(nodes=nodes, state=state, real=real, foreground=foreground))


@click.command()
@_STATE
@click.option("--purge", is_flag=True, help="Delete the state folder as well.")
def down(state: Path | None, purge: bool) -> None:
    """Take the stack down; workloads keep their state and go on at the next `up`."""
    from whaleflux.local.updown import take_down

    raise SystemExit(take_down(state=state, purge=purge))


@click.command()
@_STATE
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def status(state: Path | None, output: str) -> None:
    """Say how each part of the stack is."""
    from whaleflux.local.status import show_status

    raise SystemExit(show_status(state=state, output=output))


@click.command()
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on stdout.")
@click.option("--kill", "kill", default=None, metavar="NAME", help="`agent`: lose a busy node.")
@click.option("--real", is_flag=True, help="Use this machine's own GPUs.")
@click.option("--keep", is_flag=True, help="Keep the state folder with its artefacts and logs.")
@click.option(
    "--pipeline",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    help="Another workload file than the one that comes with WhaleFlux.",
)
@click.option("--nodes", "nodes", default=None, metavar="FLEET", help="For example 2xH200x8.")
def demo(
    as_json: bool,
    kill: str | None,
    real: bool,
    keep: bool,
    pipeline: Path | None,
    nodes: str | None,
) -> None:
    """Run a reinforcement fine-tuning pipeline on a fleet of its own and show what happens."""
    from whaleflux.local.demo import DemoOptions, run_demo

    raise SystemExit(
        run_demo(
            DemoOptions(
                as_json=as_json, kill=kill, real=real, keep=keep, pipeline=pipeline, fleet=nodes
            )
        )
    )
