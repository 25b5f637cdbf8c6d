"""Leader leases: who believes to lead, and when that ends."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from whaleflux.common import lease as lease_module
from whaleflux.common.clock import SystemClock
from whaleflux.common.contracts import subjects
from whaleflux.common.errors import Unavailable
from whaleflux.common.jetstream import JetStream, PubAck
from whaleflux.common.lease import (
    LOOK_EVERY_S,
    MARGIN_S,
    RENEW_EVERY_S,
    REQUEST_TIMEOUT_S,
    TTL_S,
    LeaderLease,
)
from whaleflux.common.streams import ensure_streams
from whaleflux.common.testing import servers
from whaleflux.common.testing.eventually import eventually
from whaleflux.common.testing.servers import NatsServer

ELECTION_S_WORST = 9.0
"""How long a stream whose leader was killed takes no writes, measured."""


def test_a_lease_outlives_the_worst_election_of_its_stream() -> None:
    assert TTL_S - MARGIN_S - RENEW_EVERY_S >= ELECTION_S_WORST
    assert RENEW_EVERY_S + 2 * (REQUEST_TIMEOUT_S + LOOK_EVERY_S) < TTL_S - MARGIN_S


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with servers.nats_server() as server:
        yield server


@pytest.fixture
async def js(server: NatsServer) -> AsyncIterator[JetStream]:
    bus = await server.connect()
    js = JetStream(bus)
    await ensure_streams(js, [subjects.STREAM_LEASES])
    yield js
    await bus.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TTL_S", 2.0), ("MARGIN_S", 0.5), ("LOOK_EVERY_S", 0.05)):
        monkeypatch.setattr(lease_module, name, value)


def candidate(js: JetStream, holder: str) -> LeaderLease:
    return LeaderLease(js, SystemClock(), key="k", holder=holder)


@pytest.mark.integration
@pytest.mark.usefixtures("short")
async def test_a_holder_that_vanished_has_stopped_believing_before_the_next_one_leads(
    js: JetStream,
) -> None:
    first, second = candidate(js, "first"), candidate(js, "second")
    assert await first._try()
    keeping = asyncio.ensure_future(second.keep())
    async with asyncio.timeout(10):
        await second.wait_held()
    assert not first.held
    assert not await first._try()
    keeping.cancel()
    await asyncio.wait({keeping})


@pytest.mark.integration
async def test_a_free_lease_is_acquired_at_once_and_given_back_at_once(js: JetStream) -> None:
    first, second = candidate(js, "first"), candidate(js, "second")
    keeping = asyncio.ensure_future(first.keep())
    async with asyncio.timeout(1):
        await first.wait_held()
    assert not await second._try()
    keeping.cancel()
    await asyncio.wait({keeping})
    assert await second._try()


@pytest.mark.integration
async def test_a_renewal_whose_answer_was_lost_does_not_cost_the_lease(
    js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = candidate(js, "one")
    assert await holder._try()
    publish = js.publish

    async def forgetful(subject: str, body: bytes, **more: object) -> PubAck:
        await publish(subject, body, **more)  # type: ignore[arg-type]  # passed on as they came
        raise Unavailable("the answer was lost", code="timeout")

    monkeypatch.setattr(js, "publish", forgetful)
    assert not await holder._try()
    assert holder.held
    monkeypatch.undo()
    assert await holder._try()
    assert holder.held


@pytest.mark.integration
async def test_who_waits_for_the_end_hears_at_once_that_the_lease_was_taken(js: JetStream) -> None:
    holder = candidate(js, "one")
    assert await holder._try()
    waiting = asyncio.ensure_future(holder.wait_lost())
    await js.publish(subjects.lease("k"), b"another")
    assert not await holder._try()
    async with asyncio.timeout(1):
        await waiting


@pytest.mark.integration
@pytest.mark.usefixtures("short")
async def test_who_waits_for_the_end_hears_it_when_no_renewal_comes(
    server: NatsServer, js: JetStream
) -> None:
    holder = candidate(js, "one")
    assert await holder._try()
    server.kill()
    async with asyncio.timeout(5):
        await holder.wait_lost()
    assert not holder.held


@pytest.mark.integration
async def test_the_server_frees_the_lease_and_keeps_only_the_newest(js: JetStream) -> None:
    holder = candidate(js, "one")
    assert await holder._try()
    assert await holder._try()
    state = await js.stream_state(subjects.STREAM_LEASES)
    assert (state.messages, state.last_seq) == (1, 2)
    (message,) = [await js.last_from_leader(subjects.STREAM_LEASES, subjects.lease("k"))]
    assert message is not None and message.headers["Nats-TTL"] == f"{TTL_S:.0f}s"
    await eventually(lambda: holder.held)
