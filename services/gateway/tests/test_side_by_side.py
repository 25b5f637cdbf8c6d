"""Two gateways on one bus: one projects, both serve, and either may go."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from whaleflux.common.clock import SystemClock
from whaleflux.common.ids import RandomIds
from whaleflux.common.jetstream import JetStream
from whaleflux.common.runtime import Health, Runtime
from whaleflux.common.testing.servers import NatsServer
from whaleflux.common.valkey_cache import ValkeyCache
from whaleflux.gateway.main import build_parts, start_projecting
from whaleflux.gateway.shell.settings import GatewaySettings
from whaleflux.gateway.shell.view_store import ViewStore

pytestmark = pytest.mark.integration


@pytest.fixture
async def second(
    world: Any, nats_server: NatsServer, valkey_server: str, tmp_path: Path
) -> AsyncIterator[Any]:
    """Return another gateway beside *world*, with connections and tasks of its own."""
    bus = await nats_server.connect()
    cache = await ValkeyCache.connect(valkey_server)
    settings = GatewaySettings(
        valkey_url=valkey_server,
        bootstrap_key_file=str(tmp_path / "key"),
        state_dir=str(tmp_path / "second"),
    )
    tasks = type(world.tasks)()
    runtime = Runtime(
        settings=settings,
        bus=bus,
        js=JetStream(bus),
        clock=SystemClock(),
        ids=RandomIds(),
        group=tasks,
        health=Health(),
    )
    parts = await build_parts(runtime, settings, ViewStore(cache))
    start_projecting(runtime, settings, parts)
    yield type(world)(runtime, parts, tasks, world.store)
    await tasks.end()
    await cache.close()
    await bus.close()


async def told(world: Any) -> list[tuple[str, str]]:
    """Return (type, subject) of everything in PUB."""
    messages = await world.js.read("PUB", after_seq=0)
    return [(m.headers["ce-type"], m.headers["ce-subject"]) for m in messages]


async def test_both_serve_and_one_projects(world: Any, second: Any) -> None:
    await world.node()
    for n in range(3):
        assert (await world.submit(f"a{n}", name=f"a{n}")).status_code == 201
        answer = await second.submit(f"b{n}", name=f"b{n}")
        assert answer.status_code == 201
        again = await world.submit(f"b{n}", name=f"b{n}")
        assert (again.status_code, again.json()["id"]) == (200, answer.json()["id"])
    assert second.runtime.health.report()["parts"]["projector"]["detail"] == (
        "another gateway projects"
    )
    listed = [(await each.http.get("/v1/workloads")).json() for each in (world, second)]
    assert listed[0] == listed[1]
    keys = await world.js.read("EVT_GATEWAY", after_seq=0)
    assert [m.subject.split(".")[3] for m in keys] == ["tenant", "key"]


async def test_the_second_takes_over_and_tells_everything_once(world: Any, second: Any) -> None:
    await world.node()
    await world.submit("before", name="before")
    await world.tasks.stop("Projector.run", "LeaderLease.keep")
    answer = await second.submit("after", name="after")
    assert answer.status_code in (201, 202)

    async def shown() -> bool:
        found = await second.http.get("/v1/workloads", params={"name": "after"})
        return bool(found.json()["items"])

    await second.until(shown)

    async def all_told() -> bool:
        names = [t for t, _ in await told(world) if t.endswith("workload.submitted.v1")]
        return len(names) == 2

    await second.until(all_told)
    seen = await told(world)
    assert len(seen) == len(set(seen))


async def test_a_lost_notice_makes_a_submission_later_and_not_lost(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(_ids: Any) -> None:
        """Say nothing."""

    monkeypatch.setattr(world.parts.decisions, "tell", silent)
    assert (await world.submit("quiet")).status_code == 201


async def test_who_stops_waiting_is_forgotten(world: Any) -> None:
    await world.submit("one")
    assert world.parts.decisions._expected == {}
