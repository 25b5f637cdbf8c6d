"""`whaleflux status`: each part with its process, its memory and its own word on how it is."""

import asyncio
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from whaleflux.common.errors import Unavailable
from whaleflux.local.health import Health, HealthProbe
from whaleflux.local.lock import is_held
from whaleflux.local.passwords import Passwords
from whaleflux.local.paths import StatePaths, default_state
from whaleflux.local.processes import ProcessRecord, is_alive, read_records, resident_mib
from whaleflux.local.stack import SERVICES, Addresses

AGENT_PREFIX = "agent-"


@dataclass(frozen=True, slots=True)
class PartStatus:
    """One row; None means unknown."""

    name: str
    pid: int
    running: bool
    healthy: bool | None
    detail: str
    resident_mib: float | None


def show_status(*, state: Path | None, output: str) -> int:
    """Print how the stack is; return 0 if every part is well, 1 otherwise."""
    paths = StatePaths((state or default_state()).absolute())
    addresses = Addresses.read(paths) if is_held(paths) else None
    parts = asyncio.run(_parts(paths, addresses)) if addresses else []
    well = bool(parts) and all(part.running and part.healthy is not False for part in parts)
    if output == "json":
        click.echo(json.dumps(_as_json(paths, addresses, parts, well=well)))
    elif addresses is None:
        click.echo(f"WhaleFlux is not up in {paths.root}; start it with: whaleflux up")
    else:
        _print_table(addresses, parts)
    return 0 if well else 1


async def _parts(paths: StatePaths, addresses: Addresses) -> list[PartStatus]:
    records = read_records(paths.processes)
    heard: dict[str, Health] = {}
    try:
        probe = await HealthProbe.connect(addresses.nats_url, Passwords.read(paths.secrets))
    except Unavailable as error:
        heard = {"nats-server": Health(False, error.message)}
    else:
        try:
            heard = await probe.all(SERVICES, addresses.nodes)
        finally:
            await probe.close()
    return [_part(process, heard.get(process.name)) for process in records]


def _part(process: ProcessRecord, health: Health | None) -> PartStatus:
    running = is_alive(process)
    return PartStatus(
        name=process.name,
        pid=process.pid,
        running=running,
        healthy=None if health is None else health.ok,
        detail="" if health is None else health.detail,
        resident_mib=resident_mib(process.pid) if running else None,
    )


def _as_json(
    paths: StatePaths, addresses: Addresses | None, parts: list[PartStatus], *, well: bool
) -> dict[str, object]:
    return {
        "up": addresses is not None,
        "healthy": well,
        "state": str(paths.root),
        "gateway_url": addresses.gateway_url if addresses else None,
        "metrics_url": addresses.metrics_url if addresses else None,
        "simulated": addresses.simulated if addresses else None,
        "parts": [asdict(part) for part in parts],
        "resident_mib_total": sum(part.resident_mib or 0.0 for part in parts) if parts else None,
    }


def _print_table(addresses: Addresses, parts: list[PartStatus]) -> None:
    click.echo(addresses.gateway_url + ("  (simulated GPUs)" if addresses.simulated else ""))
    click.echo(f"{addresses.metrics_url}  (Prometheus)")
    width = max(len(part.name) for part in parts)
    for part in parts:
        memory = "?" if part.resident_mib is None else f"{part.resident_mib:.0f} MiB"
        click.echo(
            f"{part.name:<{width}}  {part.pid:>8}  {_word(part):<8}  {memory:>8}  {part.detail}"
        )
    total = sum(part.resident_mib or 0.0 for part in parts)
    click.echo(f"{'in all':<{width}}  {'':>8}  {'':<8}  {total:>4.0f} MiB")


def _word(part: PartStatus) -> str:
    if not part.running:
        return "dead"
    if part.healthy is None:
        return "running"
    return "healthy" if part.healthy else "unwell"
