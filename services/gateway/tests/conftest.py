"""A gateway whose logs tests write: real streams and views, or memory where that is enough."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from whaleflux.common.clock import SystemClock
from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.agent import Gpu, NodeStarted, read_agent_event
from whaleflux.common.contracts.failover import read_failover_event
from whaleflux.common.contracts.scheduler import read_scheduler_command
from whaleflux.common.ids import RandomIds
from whaleflux.common.jetstream import JetStream
from whaleflux.common.runtime import Health, Runtime
from whaleflux.common.streams import ensure_streams
from whaleflux.common.testing.eventually import eventually_says
from whaleflux.common.testing.memory import MemoryCache
from whaleflux.common.testing.servers import NatsServer
from whaleflux.common.valkey_cache import ValkeyCache
from whaleflux.gateway.main import build_parts, start_projecting
from whaleflux.gateway.shell.gate import Parts
from whaleflux.gateway.shell.http_api import build_app
from whaleflux.gateway.shell.questions import Questions
from whaleflux.gateway.shell.settings import GatewaySettings
from whaleflux.gateway.shell.view_store import ViewStore
from whaleflux.scheduler import main as scheduler_main
from whaleflux.scheduler.shell.service import Read, Source, fact_reader
from whaleflux.sim.story import Story


@pytest.fixture
def story() -> Story:
    """Return a scheduler with one node of eight H100, whose log tests fold."""
    story = Story()
    story.join("h100-0", "H100", 8)
    return story


class Shown:
    """Views of a story's log."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.views = ViewStore(MemoryCache())
        self._position = 0

    async def catch_up(self) -> None:
        """Fold what the story has written since."""
        events = list(enumerate(self.story.log, start=1))[self._position :]
        if events:
            await self.views.project("EVT_SCHEDULER_c0", events, after_seq=self._position)
            self._position = len(self.story.log)

    async def workload(self, id_: str) -> dict[str, Any]:
        """Return a workload's document."""
        await self.catch_up()
        found = await self.views.document("workload", id_)
        assert found is not None
        return found

    async def run(self, id_: str) -> dict[str, Any]:
        """Return a run's document."""
        await self.catch_up()
        found = await self.views.document("run", id_)
        assert found is not None
        return found

    async def node(self, id_: str) -> dict[str, Any]:
        """Return a node's document."""
        await self.catch_up()
        found = await self.views.document("node", id_)
        assert found is not None
        return found


@pytest.fixture
async def shown(story: Story) -> AsyncIterator[Shown]:
    """Return the views of the story."""
    shown = Shown(story)
    await shown.views.prepare()
    yield shown


class Tasks:
    """Stands in for the service's task group; a task that failed fails the test."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []

    def create_task(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Start *work*."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        return task

    async def stop(self, *names: str) -> None:
        """Cancel the tasks of these coroutines, as the end of their process would."""
        chosen = [t for t in self._tasks if getattr(t.get_coro(), "__qualname__", "") in names]
        assert len(chosen) == len(names)
        for task in chosen:
            task.cancel()
        await asyncio.wait(chosen, timeout=10)

    async def end(self) -> None:
        """Cancel what runs and raise what had failed."""
        failed = [t for t in self._tasks if t.done() and not t.cancelled() and t.exception()]
        for task in self._tasks:
            task.cancel()
        _, stuck = await asyncio.wait(self._tasks, timeout=10)
        assert not stuck, [task.get_stack() for task in stuck]
        for task in failed:
            raise task.exception() or AssertionError


class World:
    """A gateway in this process on real servers, with a real scheduler beside it."""

    def __init__(self, runtime: Runtime, parts: Parts, tasks: Tasks, store: Path) -> None:
        self.runtime = runtime
        self.js = runtime.js
        self.parts = parts
        self.tasks = tasks
        self.store = store
        app = build_app(parts, runtime.health.report)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(
            transport=transport,
            base_url="http://gateway",
            headers={"authorization": f"Bearer {SECRET}"},
        )

    async def node(self, node_id: str = "h100-0", gpus: int = 8) -> None:
        """Let an agent say that its node is there, and wait until the view shows it."""
        event = NodeStarted(
            at=datetime.now(UTC),
            node_id=node_id,
            boot_id="b",
            agent_id="a",
            simulated=True,
            gpus=tuple(
                Gpu(index=i, uuid=f"SIM-{node_id}-{i}", type="H100", memory_mib=81_920)
                for i in range(gpus)
            ),
            cpus=64,
            memory_mib=1 << 20,
            stores=("default",),
        )
        subject = subjects.agent_event(event.type, node_id, node_id)
        await self.js.publish(subject, event.model_dump_json().encode())

        async def there() -> bool:
            return await self.parts.views.document("node", node_id) is not None

        await self.until(there)

    async def until(self, happened: Callable[[], Awaitable[bool]]) -> None:
        """Wait until something has happened, 20 s at most."""
        await eventually_says(happened, timeout_s=20)

    async def submit(self, key: str | None = None, **spec: Any) -> httpx.Response:
        """Submit a workload over HTTP."""
        headers = {} if key is None else {"idempotency-key": key}
        body = {"name": "j", "run": "true", **spec}
        return await self.http.post("/v1/workloads", json=body, headers=headers)


SECRET = "wf_live_test"
STREAMS = (
    "CMD_SCHEDULER",
    "EVT_SCHEDULER_c0",
    "EVT_GATEWAY",
    "EVT_FAILOVER",
    "EVT_AGENT",
    "ASSIGNMENTS",
    "PUB",
    "LEASES",
    "DLQ",
)


@pytest.fixture
async def world(
    nats_server: NatsServer, valkey_server: str, tmp_path: Path
) -> AsyncIterator[World]:
    """Return a whole gateway and a scheduler on streams of their own."""
    async with open_world(nats_server, valkey_server, tmp_path) as world:
        yield world


@pytest.fixture
def opened() -> Any:
    """Return what runs a gateway on servers of a test's own."""
    return open_world


@asynccontextmanager
async def open_world(
    nats_server: NatsServer, valkey_server: str, tmp_path: Path
) -> AsyncIterator[World]:
    """Run a gateway and a scheduler; the streams and views are empty before and gone after."""
    bus = await nats_server.connect()
    js = JetStream(bus)
    await ensure_streams(js, STREAMS)
    (tmp_path / "key").write_text(SECRET)
    (tmp_path / "store").mkdir()
    settings = GatewaySettings(
        valkey_url=valkey_server,
        stores={"default": str(tmp_path / "store")},
        bootstrap_key_file=str(tmp_path / "key"),
        state_dir=str(tmp_path),
    )
    tasks = Tasks()
    group: Any = tasks
    runtime = Runtime(
        settings=settings,
        bus=bus,
        js=js,
        clock=SystemClock(),
        ids=RandomIds(),
        group=group,
        health=Health(),
    )
    cache = await ValkeyCache.connect(valkey_server)
    await cache.delete_prefix("view:")
    parts = await build_parts(runtime, settings, ViewStore(cache))
    start_projecting(runtime, settings, parts)
    await Questions(bus, parts.feed, group).open()
    scheduler = scheduler_main.build(runtime)
    await scheduler.take_over()
    inboxes = await scheduler_main.open_inboxes(runtime)
    readers: tuple[Read, ...] = (
        read_scheduler_command,
        fact_reader(read_agent_event),
        fact_reader(read_failover_event),
    )
    sources = [Source(inbox, read) for inbox, read in zip(inboxes, readers, strict=True)]
    tasks.create_task(scheduler.run(sources))
    world = World(runtime, parts, tasks, tmp_path / "store")
    yield world
    await world.http.aclose()
    await tasks.end()
    for inbox in inboxes:
        await inbox.close()
    for stream in STREAMS:
        await js.api(f"STREAM.DELETE.{stream}", b"")
    await cache.close()
    await bus.close()
