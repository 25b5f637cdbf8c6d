"""`whaleflux up` and `whaleflux down`."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from whaleflux.common.errors import Refused, Unavailable, WhalefluxError
from whaleflux.local.context import write_context
from whaleflux.local.fleet import DEFAULT_FLEET, count_real_gpus, parse_fleet, real_fleet
from whaleflux.local.lock import is_held
from whaleflux.local.main import serve
from whaleflux.local.paths import StatePaths, default_state
from whaleflux.local.processes import ProcessRecord, end, gone, is_alive, of_state, read_records
from whaleflux.local.stack import Addresses, base_environment

STOP_TIMEOUT_S = 100.0
"""The three tiers' graces together, and a little more."""
SWEEP_GRACE_S = 12.0
"""A member's own grace and a little more."""


def bring_up(*, nodes: str | None, state: Path | None, real: bool, foreground: bool) -> int:
    """Bring a stack up, or say that it is up; return the exit code."""
    paths = StatePaths((state or default_state()).absolute())
    try:
        fleet = _fleet(paths, nodes, real=real)
        paths.prepare()
        if is_held(paths):
            return _already_up(paths)
        _write_fleet(paths, fleet, real=real)
        if foreground:
            asyncio.run(serve(paths, _nodes(fleet, real=real), on_ready=_say_ready))
        else:
            _say_ready(_detach(paths, fleet, real=real))
    except WhalefluxError as error:
        if error.code == "already_up":
            return _already_up(paths)
        click.echo(error.message, err=True)
        return 1
    return 0


def take_down(*, state: Path | None, purge: bool) -> int:
    """Take a stack down and leave no process of it; return the exit code."""
    paths = StatePaths((state or default_state()).absolute())
    was_up = is_held(paths)
    left = asyncio.run(_take_down(paths))
    if left:
        names = ", ".join(f"{process.name} ({process.pid})" for process in left)
        click.echo(f"These processes do not end: {names}.", err=True)
        return 1
    if purge and (paths.fleet.exists() or was_up):
        shutil.rmtree(paths.root, ignore_errors=True)
    click.echo("WhaleFlux is down." if was_up else "WhaleFlux was not up.")
    return 0


async def _take_down(paths: StatePaths) -> list[ProcessRecord]:
    records = read_records(paths.processes)
    supervisor = [process for process in records if process.name == "supervisor"]
    if is_held(paths):
        for process in supervisor:
            if is_alive(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, 15)
        await gone(supervisor, within_s=STOP_TIMEOUT_S)
    # What a killed supervisor or agent left behind: the shims, which end their members.
    await end([*records, *of_state(paths.root)], grace_s=SWEEP_GRACE_S)
    return [process for process in (*records, *of_state(paths.root)) if is_alive(process)]


def _fleet(paths: StatePaths, wanted: str | None, *, real: bool) -> str:
    """Return the fleet to bring up: the wanted one, else the one this state was made with."""
    known = _known_fleet(paths)
    fleet = "real" if real else wanted or (known if known not in (None, "real") else DEFAULT_FLEET)
    _nodes(str(fleet), real=real)
    if known is not None and known != fleet:
        raise Refused(
            f"The state in {paths.root} was made with the fleet {known!r}; name another folder "
            "with --state, or forget it with `whaleflux down --purge`.",
            code="other_fleet",
        )
    return str(fleet)


def _nodes(fleet: str, *, real: bool) -> Any:  # noqa: ANN401 - narrowed by its two callers
    return real_fleet() if real else parse_fleet(fleet)


def _known_fleet(paths: StatePaths) -> str | None:
    try:
        return str(json.loads(paths.fleet.read_text())["fleet"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_fleet(paths: StatePaths, fleet: str, *, real: bool) -> None:
    paths.fleet.write_text(json.dumps({"fleet": fleet, "real": real}))


def _detach(paths: StatePaths, fleet: str, *, real: bool) -> Addresses:
    command = [sys.executable, "-m", "whaleflux.local", "--state", str(paths.root)]
    command += ["--nodes", fleet, *(["--real"] if real else [])]
    with paths.log("supervisor").open("ab") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            env=base_environment(),
        )
    if process.stdout is None:
        raise Unavailable("The supervisor cannot be heard.", code="supervisor")
    with process.stdout as heard:
        line = heard.readline()
    body = _read_line(line)
    if body is None:
        raise Unavailable(
            f"The supervisor ended without a word; see {paths.log('supervisor')}.",
            code="supervisor",
        )
    if "error" in body:
        process.wait()
        raise Unavailable(str(body["error"]), code=str(body.get("code", "supervisor")))
    return Addresses(**{**body, "nodes": tuple(body["nodes"])})


def _read_line(line: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(line)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _already_up(paths: StatePaths) -> int:
    addresses = Addresses.read(paths)
    if addresses is None:
        click.echo(f"WhaleFlux is coming up in {paths.root} already.")
    else:
        click.echo(f"WhaleFlux is already up: {addresses.gateway_url}")
    return 0


def _say_ready(addresses: Addresses) -> None:
    write_context(addresses.gateway_url, Path(addresses.api_key_file))
    click.echo(f"WhaleFlux is up: {addresses.gateway_url}")
    kind = "simulated nodes" if addresses.simulated else "node"
    click.echo(f"  {len(addresses.nodes)} {kind}: {', '.join(addresses.nodes)}")
    click.echo(f"  API key in {addresses.api_key_file}; state in {addresses.state}")
    found = count_real_gpus()
    if addresses.simulated and found:
        click.echo(f"  Found {found} GPUs on this machine: add --real to use them.")
    click.echo("  Next: whaleflux demo, or whaleflux submit FILE; whaleflux down ends it.")
