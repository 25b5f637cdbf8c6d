"""A service process: how it starts, says how it is, and stops."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from whaleflux.common.runtime import Health
from whaleflux.common.testing.servers import NatsServer

RESIDENT_MIB_MAX = 60.0
"""An agent's budget; a service that does nothing must leave room in it."""

SERVICE = """
import asyncio
from whaleflux.common.runtime import Runtime, run
from whaleflux.common.settings import ServiceSettings

class Settings(ServiceSettings):
    node_id: str | None = None

async def serve(runtime: Runtime) -> None:
    runtime.health.set("core", True, "idle")
    runtime.group.create_task(asyncio.Event().wait())
    {then}

run("test", serve, Settings())
"""


def test_a_service_is_well_when_all_its_parts_are() -> None:
    health = Health()
    health.set("a", True)
    assert health.ok
    health.set("b", False, "no cache")
    assert not health.ok
    assert health.report()["parts"] == {
        "a": {"ok": True, "detail": ""},
        "b": {"ok": False, "detail": "no cache"},
    }


@asynccontextmanager
async def service(
    url: str, *, then: str = "await asyncio.Event().wait()", more: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SERVICE.format(then=then),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "WHALEFLUX_NATS_URL": url, **(more or {})},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def line(process: asyncio.subprocess.Process, message: str) -> dict[str, object]:
    """Return the first log line that says *message*."""
    assert process.stdout is not None
    async with asyncio.timeout(20):
        while raw := await process.stdout.readline():
            found: dict[str, object] = json.loads(raw)
            if found["message"] == message:
                return found
    raise AssertionError(f"the service never said {message!r}")


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_service_cleanly(
    nats_server: NatsServer, number: signal.Signals
) -> None:
    async with service(nats_server.url) as process:
        await line(process, "started")
        process.send_signal(number)
        await line(process, "stopped")
        async with asyncio.timeout(10):
            assert await process.wait() == 0


@pytest.mark.integration
async def test_a_service_says_how_it_is_and_is_small(nats_server: NatsServer) -> None:
    bus = await nats_server.connect()
    async with service(nats_server.url) as process:
        await line(process, "started")
        answer = await bus.request("wf.qry.test.health", b"", timeout_s=5)
        report = json.loads(answer.body)
        assert report["ok"] is True
        assert report["parts"] == {"core": {"ok": True, "detail": "idle"}}
        assert report["pid"] == process.pid
        assert report["version"]
        assert 0 < report["resident_mib"] < RESIDENT_MIB_MAX
    await bus.close()


@pytest.mark.integration
async def test_an_agent_answers_below_its_own_node(nats_server: NatsServer) -> None:
    bus = await nats_server.connect()
    async with service(nats_server.url, more={"WHALEFLUX_NODE_ID": "n7"}) as process:
        await line(process, "started")
        answer = await bus.request("wf.qry.agent.n7.health", b"", timeout_s=5)
        assert json.loads(answer.body)["pid"] == process.pid
    await bus.close()


@pytest.mark.integration
async def test_a_task_that_fails_ends_the_service_with_its_reason(nats_server: NatsServer) -> None:
    async with service(nats_server.url, then="raise ValueError('boom')") as process:
        failed = await line(process, "failed")
        assert "ValueError: boom" in str(failed["error"])
        async with asyncio.timeout(10):
            assert await process.wait() == 1


@pytest.mark.integration
async def test_a_service_that_is_stopped_while_it_waits_for_the_bus_ends_cleanly() -> None:
    async with service("nats://127.0.0.1:1") as process:
        await line(process, "bus client reports")
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await process.wait() == 0


@pytest.mark.integration
async def test_what_an_idle_service_does_not_need_is_not_loaded(nats_server: NatsServer) -> None:
    then = (
        'import sys; print(\'{{"message": "loaded", "names": "\' + \' \'.join(m for m in'
        " ('redis', 'opentelemetry', 'prometheus_client', 'nats.js.client') if m in sys.modules)"
        " + '\"}}', flush=True); await asyncio.Event().wait()"
    )
    async with service(nats_server.url, then=then.format()) as process:
        found = await line(process, "loaded")
        assert "redis" not in str(found["names"])
        assert "opentelemetry" not in str(found["names"])
        assert "prometheus_client" not in str(found["names"])
