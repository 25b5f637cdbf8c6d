"""A gateway outlives servers that are gone for a while, and readers who do not read."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from whaleflux.common.errors import Unavailable
from whaleflux.common.testing import servers
from whaleflux.common.testing.eventually import eventually, eventually_says
from whaleflux.common.testing.servers import NatsServer
from whaleflux.gateway.shell.http_api import build_app

pytestmark = pytest.mark.integration

BIG_EVENTS = 60
"""Twelve megabytes: more than a system keeps for a reader who does not read."""


class Outage:
    """Lets reads of `PUB` fail, as they do while its leader is elected."""

    def __init__(self, world: Any) -> None:
        self.on = False
        self.hits = 0
        self._js = world.js
        self._read, self._state = world.js.read, world.js.stream_state
        self._js.read, self._js.stream_state = self.read, self.state

    async def read(self, stream: str, **more: Any) -> Any:
        self._look(stream)
        return await self._read(stream, **more)

    async def state(self, stream: str) -> Any:
        self._look(stream)
        return await self._state(stream)

    def _look(self, stream: str) -> None:
        if self.on and stream == "PUB":
            self.hits += 1
            raise Unavailable("no leader")


def ended(world: Any) -> list[Any]:
    """Return the tasks that ended, each of which would have ended the service."""
    return [task for task in world.tasks._tasks if task.done() and task.exception()]


async def test_events_are_late_and_nothing_ends_while_their_stream_has_no_leader(
    world: Any,
) -> None:
    outage = Outage(world)
    await world.submit("before")
    outage.on = True
    await eventually(lambda: outage.hits > 1)
    world.parts.feed._begins = 1_000
    body = json.dumps({"after": 0}).encode()
    answer = await world.runtime.bus.request("wf.qry.gateway.events.default", body, timeout_s=5)
    assert json.loads(answer.body)["error"] == "unavailable"
    outage.on = False
    world.parts.feed._begins = 0

    async def told() -> bool:
        events = await world.parts.feed.page("default", after_seq=0, limit=100)
        return any(event.type == "workload.submitted" for event in events)

    await eventually_says(told)
    assert not ended(world)


@pytest.fixture
def own_server() -> Any:
    """Return a nats-server that a test may kill."""
    with servers.nats_server() as server:
        yield server


async def test_it_goes_on_after_its_bus_was_gone(
    own_server: NatsServer, valkey_server: str, tmp_path: Path, opened: Any
) -> None:
    async with opened(own_server, valkey_server, tmp_path) as world:
        await world.node()
        assert (await world.submit("one")).status_code == 201
        own_server.kill()
        answer = await world.http.post("/v1/workloads", json={"name": "x", "run": "y"})
        assert (answer.status_code, answer.headers["content-type"]) == (
            503,
            "application/problem+json",
        )
        assert (await world.http.get("/v1/workloads")).status_code == 200
        own_server.start_again()

        async def taken() -> bool:
            return bool((await world.submit("two", name="two")).status_code in (200, 201))

        await eventually_says(taken, timeout_s=30)
        assert not ended(world)


@contextlib.asynccontextmanager
async def served(world: Any) -> AsyncIterator[int]:
    """Serve *world* by a real web server; yield its port."""
    app = build_app(world.parts, world.runtime.health.report)
    config = uvicorn.Config(
        app, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    task = asyncio.ensure_future(server.serve())
    await eventually(lambda: server.started)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def test_who_does_not_read_is_let_go_and_others_are_served_on(
    world: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("whaleflux.gateway.shell.stream_out.SLOW_CLIENT_S", 0.5)
    caplog.set_level("INFO", logger="whaleflux.gateway")
    await world.submit("one")
    before = (await world.js.stream_state("PUB")).last_seq
    big = json.dumps({"fill": "x" * 200_000}).encode()
    for _ in range(BIG_EVENTS):
        await world.js.publish("wf.pub.default.run.explained.r", big)
    secret = world.http.headers["authorization"]
    async with served(world) as port:
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(lazy, ("127.0.0.1", port))
            head = f"GET /v1/events?since=0 HTTP/1.1\r\nhost: x\r\nauthorization: {secret}\r\n\r\n"
            await loop.sock_sendall(lazy, head.encode())
            assert await read_along(port, secret, before) == BIG_EVENTS
            await eventually(lambda: "reader dropped" in caplog.text)


async def read_along(port: int, secret: str, since: int) -> int:
    """Follow events and return how many big ones came."""
    seen = 0
    async with (
        asyncio.timeout(20),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
        client.stream(
            "GET", "/v1/events", params={"since": since}, headers={"authorization": secret}
        ) as stream,
    ):
        async for line in stream.aiter_lines():
            seen += line.startswith("event: run.explained")
            if seen == BIG_EVENTS:
                break
    return seen
