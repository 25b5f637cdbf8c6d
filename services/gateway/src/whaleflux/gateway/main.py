"""Put the gateway together and run it."""

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import uvicorn

from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.gateway import GatewayEvent, read_gateway_event
from whaleflux.common.lease import LeaderLease
from whaleflux.common.nats_log import NatsLog
from whaleflux.common.runtime import Runtime, run
from whaleflux.common.streams import ensure_streams
from whaleflux.common.valkey_cache import ValkeyCache
from whaleflux.gateway.shell.blobs import Blobs
from whaleflux.gateway.shell.decisions import Decisions
from whaleflux.gateway.shell.feed import Feed
from whaleflux.gateway.shell.gate import Parts
from whaleflux.gateway.shell.http_api import build_app
from whaleflux.gateway.shell.keys import Keys
from whaleflux.gateway.shell.logs import Logs
from whaleflux.gateway.shell.projector import Projector
from whaleflux.gateway.shell.questions import Questions
from whaleflux.gateway.shell.settings import GatewaySettings
from whaleflux.gateway.shell.submission import Submission
from whaleflux.gateway.shell.view_store import ViewStore

SERVICE = "gateway"
STORE = "default"


def subject_of(event: GatewayEvent) -> str:
    """Return where *event* goes."""
    id_ = event.tenant if event.type == "gateway.tenant.created.v1" else event.key_id
    return subjects.event(event.type, id_)


async def serve(runtime: Runtime) -> None:
    """Open the way in and keep the views up."""
    settings = cast(GatewaySettings, runtime.settings)
    await ensure_streams(
        runtime.js,
        [
            subjects.stream_commands("scheduler"),
            subjects.stream_scheduler(settings.cell),
            subjects.STREAM_GATEWAY,
            subjects.STREAM_FAILOVER,
            subjects.STREAM_AGENT,
            subjects.STREAM_PUB,
            subjects.STREAM_LEASES,
        ],
        cell=settings.cell,
    )
    cache = await ValkeyCache.connect(settings.valkey_url)
    parts = await build_parts(runtime, settings, ViewStore(cache))
    start_projecting(runtime, settings, parts)
    await Questions(runtime.bus, parts.feed, runtime.group).open()
    try:
        await _serve_http(runtime, settings, parts)
    finally:
        await cache.close()


def start_projecting(runtime: Runtime, settings: GatewaySettings, parts: Parts) -> None:
    """Keep views, public events, the feed and the keys up in the background."""
    projector = Projector(
        bus=runtime.bus,
        js=runtime.js,
        views=parts.views,
        decisions=parts.decisions,
        cell=settings.cell,
        operators=(settings.tenant,),
        say=lambda ok, detail: runtime.health.set("projector", ok, detail),
    )
    lease = LeaderLease(
        runtime.js, runtime.clock, key="gateway-projector", holder=runtime.ids.new(SERVICE)
    )
    runtime.group.create_task(lease.keep())
    runtime.group.create_task(projector.run(lease))
    runtime.group.create_task(parts.feed.run())
    runtime.group.create_task(parts.keys.follow(runtime.bus))


async def build_parts(runtime: Runtime, settings: GatewaySettings, views: ViewStore) -> Parts:
    """Return what the routes are made of."""
    log: NatsLog[GatewayEvent] = NatsLog(
        runtime.js,
        stream=subjects.STREAM_GATEWAY,
        reader=read_gateway_event,
        subject_of=subject_of,
    )
    keys = Keys(log, runtime.clock, runtime.ids)
    await keys.open(bootstrap_file=settings.bootstrap_key_file, tenant=settings.tenant)
    feed = Feed(runtime.bus, runtime.js)
    await feed.open()
    decisions = Decisions(runtime.bus)
    await decisions.open()
    store = settings.stores.get(STORE)
    return Parts(
        bus=runtime.bus,
        keys=keys,
        views=views,
        submission=Submission(runtime.js, views, decisions),
        decisions=decisions,
        feed=feed,
        blobs=Blobs(store),
        logs=Logs(runtime.bus, store),
    )


async def _serve_http(runtime: Runtime, settings: GatewaySettings, parts: Parts) -> None:
    def healthy() -> dict[str, Any]:
        connected = runtime.bus.connected
        runtime.health.set("bus", connected, "" if connected else "not connected")
        return runtime.health.report()

    # The event loop switches Nagle's algorithm off only where the protocol is named; with it, each
    # answer on a kept connection waits 40 ms for the reader's delayed acknowledgement.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((settings.http_host, settings.http_port))
    port = listener.getsockname()[1]
    app = build_app(parts, healthy)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
    )
    server = _Server(config)
    url = f"http://{settings.http_host}:{port}"
    listener.listen(512)
    _write_address(Path(settings.state_dir), url)
    try:
        await server.serve(sockets=[listener])
    except asyncio.CancelledError:
        server.should_exit = True
        raise
    finally:
        listener.close()


class _Server(uvicorn.Server):
    """Leaves signals to the runtime, which stops all parts together."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def _write_address(state_dir: Path, url: str) -> None:
    state_dir.mkdir(parents=True, exist_ok=True)
    temporary = state_dir / ".gateway.json"
    temporary.write_text(json.dumps({"url": url, "pid": os.getpid()}), encoding="utf-8")
    temporary.replace(state_dir / "gateway.json")


def main() -> None:
    """Run until told to stop."""
    run(SERVICE, serve, GatewaySettings())
