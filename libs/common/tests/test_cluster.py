"""Three servers: what a killed stream leader costs, and what it must never cost."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from whaleflux.common.bus import Bus
from whaleflux.common.clock import SystemClock
from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.gateway import GatewayEvent, TenantCreated, read_gateway_event
from whaleflux.common.decider import Decider
from whaleflux.common.errors import Unavailable
from whaleflux.common.jetstream import JetStream
from whaleflux.common.nats_log import NatsLog
from whaleflux.common.streams import ensure_streams
from whaleflux.common.testing import servers
from whaleflux.common.testing.servers import NatsServer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

AT = datetime(2031, 1, 1, tzinfo=UTC)
STREAM = subjects.STREAM_GATEWAY
TENANTS = 300
WITHIN_S = 60.0

Cluster = tuple[list[NatsServer], JetStream]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    with servers.nats_cluster(3) as members:
        bus = await Bus.connect(
            url=",".join(member.url for member in members), user="", password="", name="test"
        )
        js = JetStream(bus)
        async with asyncio.timeout(WITHIN_S):
            while True:
                try:
                    await ensure_streams(js, [STREAM], replicas=3)
                    break
                except Unavailable:
                    continue  # the members are still electing
        yield members, js
        await bus.close()


@dataclass
class Tenants:
    names: set[str] = field(default_factory=set)


def decide(state: Tenants, command: str, now: datetime) -> Sequence[GatewayEvent]:
    return () if command in state.names else (TenantCreated(at=AT, tenant=command),)


def evolve(state: Tenants, event: GatewayEvent, seq: int) -> None:
    assert isinstance(event, TenantCreated)
    state.names.add(event.tenant)


async def test_a_killed_stream_leader_costs_time_and_no_decision(cluster: Cluster) -> None:
    members, js = cluster
    log: NatsLog[GatewayEvent] = NatsLog(
        js,
        stream=STREAM,
        reader=read_gateway_event,
        subject_of=lambda event: subjects.event(event.type, event.tenant),
    )
    decider: Decider[Tenants, str, GatewayEvent] = Decider(
        log=log, clock=SystemClock(), new_state=Tenants, decide=decide, evolve=evolve
    )
    killed: NatsServer | None = None
    async with asyncio.timeout(WITHIN_S):
        for number in range(TENANTS):
            if number == TENANTS // 2:
                leader = (await js.api(f"STREAM.INFO.{STREAM}", b""))["cluster"]["leader"]
                killed = members[int(leader.removeprefix("n"))]
                killed.kill()
            while True:
                try:
                    await decider.cycle([f"t{number}"])
                    break
                except Unavailable:
                    continue  # what the service does: the command comes again
        assert killed is not None
        killed.start_again()
        await decider.restore()
    kept = [r.event.tenant for r in await log.read(after_seq=0)]
    assert kept == [f"t{number}" for number in range(TENANTS)]
    assert decider.state.names == set(kept)


async def test_a_stream_on_three_servers_is_not_taken_off_them(cluster: Cluster) -> None:
    _members, js = cluster
    await ensure_streams(js, [STREAM])
    assert (await js.api(f"STREAM.INFO.{STREAM}", b""))["config"]["num_replicas"] == 3
