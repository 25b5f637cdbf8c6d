"""Public events: told once and in order, resumed by cursor, rebuilt views after a lost Valkey."""

import asyncio
import json
from typing import Any

import pytest

from whaleflux.common.errors import Unavailable
from whaleflux.common.jetstream import JetStream
from whaleflux.gateway.shell.feed import Feed, Resync
from whaleflux.gateway.shell.projector import Teller
from whaleflux.gateway.shell.routes_events import _frames
from whaleflux.gateway.shell.sources import source_logs

pytestmark = pytest.mark.integration


async def told(js: JetStream) -> list[tuple[str, str]]:
    """Return (type, subject) of everything in PUB."""
    messages = await js.read("PUB", after_seq=0)
    return [(m.headers["ce-type"], m.headers["ce-subject"]) for m in messages]


async def work(world: Any, count: int, first: int = 0) -> None:
    """Submit small workloads and wait until they are told."""
    for n in range(first, first + count):
        await world.submit(f"key-{n}", name=f"w{n}")

    async def all_told() -> bool:
        submitted = [t for t, _ in await told(world.js) if t.endswith("workload.submitted.v1")]
        return len(submitted) == first + count

    await world.until(all_told)


async def test_every_fact_is_told_once_and_in_order(world: Any) -> None:
    await world.node()
    await work(world, 5)
    seen = await told(world.js)
    assert len(seen) == len(set(seen))
    submitted = [s for t, s in seen if t.endswith("workload.submitted.v1")]
    log = await world.js.read("EVT_SCHEDULER_c0", after_seq=0)
    decided = [m.subject.rsplit(".", 1)[1] for m in log if ".workload.submitted." in m.subject]
    assert submitted == decided


async def test_two_tellers_that_race_tell_everything_once(world: Any) -> None:
    rival = Teller(world.js, world.parts.views, source_logs("c0"), ("default",))
    await rival.restore()

    async def race() -> None:
        while True:
            await rival.tell_once()

    racing = world.tasks.create_task(race())
    await world.node()
    await work(world, 12)
    racing.cancel()
    seen = await told(world.js)
    assert len(seen) == len(set(seen))


async def test_a_teller_that_starts_anew_goes_on_where_the_last_one_was(world: Any) -> None:
    await work(world, 3)
    before = await told(world.js)
    fresh = Teller(world.js, world.parts.views, source_logs("c0"), ("default",))
    await fresh.restore()
    await fresh.tell_once()
    assert await told(world.js) == before


async def test_views_are_folded_anew_when_valkey_was_emptied(world: Any) -> None:
    await world.node()
    await work(world, 3)
    first = (await world.http.get("/v1/workloads")).json()["items"]
    await world.parts.views._cache.delete_prefix("view:")

    async def back() -> bool:
        items = (await world.http.get("/v1/workloads")).json()["items"]
        return bool(items == first)

    await world.until(back)
    await work(world, 1, first=3)


async def take(feed: Feed, count: int, after_seq: int | None) -> list[int]:
    """Follow until *count* events have come and return their sequences."""
    seqs: list[int] = []
    async with asyncio.timeout(10):
        async for event in feed.follow("default", after_seq=after_seq):
            seqs.append(event.seq)
            if len(seqs) == count:
                break
    return seqs


async def test_a_subscriber_resumes_without_a_gap_or_a_repeat(world: Any) -> None:
    await work(world, 6)
    total = (await world.js.stream_state("PUB")).last_seq
    every = await take(world.parts.feed, total, 0)
    assert every == list(range(1, total + 1))
    assert await take(world.parts.feed, total - 4, 4) == every[4:]


async def test_events_older_than_the_ring_come_from_the_stream(world: Any) -> None:
    await work(world, 6)
    total = (await world.js.stream_state("PUB")).last_seq
    late = Feed(world.runtime.bus, world.js)
    await late.open()
    world.tasks.create_task(late.run())
    following = asyncio.ensure_future(take(late, total + 3, 0))
    await work(world, 3, first=6)
    seqs = await following
    assert seqs == list(range(1, total + 4))


async def test_a_cursor_that_is_too_old_is_said_so_and_the_stream_goes_on(world: Any) -> None:
    await work(world, 4)
    await world.js.api("STREAM.PURGE.PUB", json.dumps({"seq": 5}).encode())
    late = Feed(world.runtime.bus, world.js)
    await late.open()
    with pytest.raises(Resync, match="too_old"):
        await late.page("default", after_seq=1, limit=10)
    frames = _frames(late, "default", 1, ())
    opening = await anext(frames)
    assert b"retry: 1000\nid: 1\n" in opening
    resync = await anext(frames)
    assert resync.startswith(b"id: 4\nevent: resync\n")
    assert b"id: 5\n" in await anext(frames)
    await frames.aclose()


async def test_a_cursor_of_another_stream_is_said_so_and_everything_kept_follows(
    world: Any,
) -> None:
    await work(world, 1)
    frames = _frames(world.parts.feed, "default", 5_000, ())
    await anext(frames)
    async with asyncio.timeout(10):
        resync = await anext(frames)
        assert resync.startswith(b"id: 0\nevent: resync\n")
        assert b"another stream" in resync
        assert b"id: 1\n" in await anext(frames)
    await frames.aclose()


async def test_a_silent_or_filtered_stream_shows_life_and_moves_the_cursor_on(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whaleflux.gateway.shell.routes_events.HEARTBEAT_S", 0.05)
    await work(world, 2)
    end = (await world.js.stream_state("PUB")).last_seq
    frames = _frames(world.parts.feed, "default", 0, ("nothing.*",))
    await anext(frames)
    async with asyncio.timeout(10):
        while (frame := await anext(frames)) != b": still here\nid: %d\n\n" % end:
            assert frame.startswith(b": still here\nid: ")
    await frames.aclose()


async def test_frames_are_filtered_by_type(world: Any) -> None:
    frames = _frames(world.parts.feed, "default", 0, ("workload.*",))
    await anext(frames)
    await work(world, 2)
    for _ in range(2):
        frame = await anext(frames)
        assert b"event: workload." in frame
    await frames.aclose()


async def test_another_tenants_events_are_not_followed(world: Any) -> None:
    await work(world, 2)
    assert await world.parts.feed.page("evil", after_seq=0, limit=100) == []


async def test_a_question_waits_for_the_next_event(world: Any) -> None:
    await work(world, 1)
    subject = "wf.qry.gateway.events.default"

    async def ask(**question: Any) -> dict[str, Any]:
        body = json.dumps(question).encode()
        answer = await world.runtime.bus.request(subject, body, timeout_s=15)
        found: dict[str, Any] = json.loads(answer.body)
        return found

    end = (await ask())["last"]
    waiting = asyncio.ensure_future(ask(after=end, wait_s=10))
    await work(world, 1, first=1)
    answer = await waiting
    assert answer["events"][0]["seq"] == end + 1
    assert (await ask(after=0, limit=2))["last"] == 2
    assert (await ask(after=-1))["error"] == "invalid_request"


async def test_many_can_wait_at_once(world: Any) -> None:
    end = (await world.js.stream_state("PUB")).last_seq
    body = json.dumps({"after": end, "wait_s": 2}).encode()
    subject = "wf.qry.gateway.events.default"
    asked = [world.runtime.bus.request(subject, body, timeout_s=10) for _ in range(30)]
    async with asyncio.timeout(8):
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert not [a for a in answers if isinstance(a, Unavailable)]


async def test_one_tenant_may_not_have_everybody_wait(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whaleflux.gateway.shell.questions.QUESTIONS_PER_TENANT_MAX", 3)
    ask = world.runtime.bus.request
    waits = json.dumps({"after": 0, "wait_s": 1}).encode()
    greedy = [
        asyncio.ensure_future(ask("wf.qry.gateway.events.greedy", waits, timeout_s=10))
        for _ in range(5)
    ]
    done, _ = await asyncio.wait(greedy, return_when=asyncio.FIRST_COMPLETED, timeout=3)
    assert json.loads(next(iter(done)).result().body) == {"error": "too_many", "limit": 3}
    other = json.dumps({"after": 0}).encode()
    assert "events" in json.loads(
        (await ask("wf.qry.gateway.events.default", other, timeout_s=3)).body
    )
    answers = [json.loads((await each).body) for each in greedy]
    assert sum("events" in answer for answer in answers) == 3
    again = json.loads((await ask("wf.qry.gateway.events.greedy", other, timeout_s=3)).body)
    assert again == {"events": [], "last": 0}


async def test_a_cursor_outside_of_the_stream_is_an_answer_on_nats_too(world: Any) -> None:
    await work(world, 1)
    body = json.dumps({"after": 9_999}).encode()
    answer = await world.runtime.bus.request("wf.qry.gateway.events.default", body, timeout_s=5)
    assert json.loads(answer.body) == {"error": "too_new", "first_seq": 1}
