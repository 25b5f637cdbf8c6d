"""Two gateways on one bus: one projects, both serve, and either may go."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from whaleflux.common.clock import SystemClock
from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.agent import RunReported
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


async def test_who_takes_over_without_views_tells_nothing_before_they_are_whole(
    world: Any, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("projector", "sources"):
        monkeypatch.setattr(f"whaleflux.gateway.shell.{module}.PROJECT_EVENTS_MAX", 2)
    await world.node()
    for n in range(5):
        id_ = (
            await world.submit(f"k{n}", name=f"w{n}", resources={"accelerators": "H100:1"})
        ).json()
    run_id = f"{id_['id']}-main-1"

    async def placed() -> bool:
        return ("io.whaleflux.run.placed.v1", run_id) in await told(world)

    await world.until(placed)
    await world.tasks.stop("Projector.run", "LeaderLease.keep")
    await world.parts.views._cache.delete_prefix("view:")
    event = RunReported(
        at=world.runtime.clock.now(), node_id="h100-0", run_id=run_id, attempt=1, rank=0, step=7
    )
    subject = subjects.agent_event(event.type, "h100-0", run_id)
    await world.js.publish(subject, event.model_dump_json().encode())

    async def reported() -> bool:
        return ("io.whaleflux.run.reported.v1", run_id) in await told(world)

    await second.until(reported)
    assert (await second.http.get(f"/v1/runs/{run_id}")).json()["step"] == 7


async def test_a_submission_is_woken_by_whoever_folds_and_does_not_look_by_itself(
    world: Any, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("DECISION_WAIT_S", "DECISION_LOOK_S"):
        monkeypatch.setattr(f"whaleflux.gateway.shell.submission.{limit}", 600.0)
    async with asyncio.timeout(10):
        for each in (world, second):
            answer = await each.submit(name="j")
            assert answer.status_code == 201


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
