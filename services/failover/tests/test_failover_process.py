"""Real failover processes on a real NATS: restarts, take-overs, outages."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from whaleflux.common.bus import Bus, BusMessage
from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.base import UnknownEvent
from whaleflux.common.contracts.failover import (
    FailoverEvent,
    LeaseAnswer,
    LeaseReply,
    LeaseRequest,
    NodeFenced,
    read_failover_event,
)
from whaleflux.common.errors import Unavailable
from whaleflux.common.ids import RandomIds
from whaleflux.common.jetstream import JetStream
from whaleflux.common.testing import servers
from whaleflux.common.testing.servers import NatsServer
from whaleflux.failover.shell.holder import Holder

pytestmark = pytest.mark.integration

DEADLINE_S = 30.0


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    """A server of this test's own, to be killed at will."""
    with servers.nats_server() as server:
        yield server


@pytest.fixture
async def bus(nats: NatsServer) -> AsyncIterator[Bus]:
    bus = await nats.connect()
    yield bus
    await bus.close()


Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(nats: NatsServer, tmp_path: Path) -> Iterator[Start]:
    """Start a failover process with a state folder of the given name."""
    started: list[subprocess.Popen[bytes]] = []

    def start_one(folder: str) -> "subprocess.Popen[bytes]":
        env = {
            **os.environ,
            "WHALEFLUX_NATS_URL": nats.url,
            "WHALEFLUX_STATE_DIR": str(tmp_path / folder),
        }
        with (tmp_path / f"{folder}.log").open("ab") as log:
            command = [sys.executable, "-m", "whaleflux.failover"]
            started.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()
        process.wait()


def question(node: str, *, clean: bool = False, boot: str = "b0") -> tuple[str, bytes]:
    request = LeaseRequest(node_id=node, boot_id=boot, agent_id="a", clean=clean)
    where = subjects.question("failover", "lease", of=node)
    return where, request.model_dump_json().encode()


async def ask(bus: Bus, node: str, *, clean: bool = False) -> LeaseAnswer | None:
    try:
        reply = await bus.request(*question(node, clean=clean), timeout_s=1.0)
    except Unavailable:
        return None
    return LeaseReply.model_validate_json(reply.body).answer


async def until_granted(bus: Bus, node: str) -> float:
    """Ask until granted; return how long that took."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with asyncio.timeout(DEADLINE_S):
        while await ask(bus, node) is not LeaseAnswer.GRANTED:
            await asyncio.sleep(0.1)
    return loop.time() - began_s


async def facts(bus: Bus) -> list[FailoverEvent]:
    """Return what other services read: the terms of leaders are of an unknown type to them."""
    stored = await JetStream(bus).read(subjects.STREAM_FAILOVER, after_seq=0)
    events = [read_failover_event(message.body) for message in stored]
    for message, event in zip(stored, events, strict=True):
        if not isinstance(event, UnknownEvent):
            assert message.subject == subjects.event(event.type, event.node_id)
    return [event for event in events if not isinstance(event, UnknownEvent)]


async def test_a_node_is_admitted_and_a_clean_stop_hands_over_at_once(
    bus: Bus, start: Start
) -> None:
    first = start("one")
    await until_granted(bus, "n0")
    second = start("two")
    first.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(first.wait, 10) == 0
    assert await until_granted(bus, "n0") < 10
    assert second.poll() is None
    assert [event.type for event in await facts(bus)] == ["failover.node.admitted.v1"]


async def test_a_killed_process_started_again_answers_before_fast_members_end(
    bus: Bus, start: Start
) -> None:
    process = start("one")
    await until_granted(bus, "n0")
    process.kill()
    process.wait()
    start("one")
    assert await until_granted(bus, "n0") < 10
    assert len(await facts(bus)) == 1


async def test_a_restart_of_the_bus_costs_no_node_anything(
    nats: NatsServer, bus: Bus, start: Start
) -> None:
    start("one")
    await until_granted(bus, "n0")
    nats.kill()
    nats.start_again()
    await until_granted(bus, "n0")
    await until_granted(bus, "n1")
    assert [event.type for event in await facts(bus)] == ["failover.node.admitted.v1"] * 2


@pytest.mark.slow
async def test_a_silent_node_is_fenced_in_real_time(bus: Bus, start: Start) -> None:
    start("one")
    await until_granted(bus, "n0")
    began_s = asyncio.get_running_loop().time()
    async with asyncio.timeout(2 * DEADLINE_S):
        while not any(isinstance(event, NodeFenced) for event in await facts(bus)):
            await until_granted(bus, "n1")
            await asyncio.sleep(0.5)
    assert 25 <= asyncio.get_running_loop().time() - began_s < 30
    assert await ask(bus, "n0") is LeaseAnswer.FENCED
    assert await ask(bus, "n0", clean=True) is LeaseAnswer.GRANTED


@pytest.mark.slow
async def test_a_leader_that_was_frozen_past_its_lease_says_nothing_when_it_wakes(
    bus: Bus, start: Start
) -> None:
    old = start("one")
    await until_granted(bus, "n0")
    start("two")
    old.send_signal(signal.SIGSTOP)
    try:
        assert await until_granted(bus, "n0") < 20
    finally:
        old.send_signal(signal.SIGCONT)
    replies: list[bytes] = []

    async def collect(message: BusMessage) -> None:
        replies.append(message.body)

    inbox = bus.new_inbox()
    await bus.subscribe(inbox, collect)
    for count in range(1, 21):
        where, body = question("n0")
        await bus.publish(where, body, reply=inbox)
        async with asyncio.timeout(DEADLINE_S):
            while len(replies) < count:
                await asyncio.sleep(0.05)
    # The old one is awake for two seconds now; each question had one answer.
    await asyncio.sleep(0.5)
    assert len(replies) == 20
    assert {LeaseReply.model_validate_json(r).answer for r in replies} == {LeaseAnswer.GRANTED}
    assert len(await facts(bus)) == 1


def test_two_living_processes_never_have_the_same_name(tmp_path: Path) -> None:
    first = Holder(tmp_path, RandomIds())
    second = Holder(tmp_path, RandomIds())
    assert first.name != second.name
    name = first.name
    del first
    assert Holder(tmp_path, RandomIds()).name == name
