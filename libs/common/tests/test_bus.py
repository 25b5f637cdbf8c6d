"""The bus on a real server: questions, lost servers, clients that closed for good, accounts."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest

from whaleflux.common.accounts import Login, Logins, nats_accounts
from whaleflux.common.bus import Bus, BusMessage
from whaleflux.common.clock import SystemClock
from whaleflux.common.contracts import subjects
from whaleflux.common.errors import Refused, Unavailable
from whaleflux.common.jetstream import JetStream
from whaleflux.common.lease import LeaderLease
from whaleflux.common.streams import ConsumerSpec, ensure_streams
from whaleflux.common.testing import servers
from whaleflux.common.testing.servers import NatsServer

pytestmark = pytest.mark.integration

LOGINS = Logins(
    core=Login("core", "c"),
    system=Login("system", "s"),
    nodes={"n1": Login("node-n1", "1"), "n2": Login("node-n2", "2")},
    tenants={"acme": Login("tenant-acme", "a"), "evil": Login("tenant-evil", "e")},
)


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    bus = await nats_server.connect()
    yield bus
    await bus.close()


async def test_a_question_is_answered(bus: Bus) -> None:
    async def echo(message: BusMessage) -> bytes:
        return message.body[::-1]

    await bus.answer("wf.qry.test.echo", echo)
    assert (await bus.request("wf.qry.test.echo", b"abc", timeout_s=2)).body == b"cba"


async def test_a_refusal_travels_to_the_asker(bus: Bus) -> None:
    async def refuse(_message: BusMessage) -> bytes:
        raise Refused("no such thing", code="not_found")

    await bus.answer("wf.qry.test.refuse", refuse)
    with pytest.raises(Refused, match="no such thing") as caught:
        await bus.request("wf.qry.test.refuse", b"", timeout_s=2)
    assert caught.value.code == "not_found"


async def test_a_question_nobody_hears_fails_at_once(bus: Bus) -> None:
    with pytest.raises(Unavailable) as caught:
        await bus.request("wf.qry.test.nobody", b"", timeout_s=30)
    assert caught.value.code == "no_responders"


async def test_a_question_nobody_answers_times_out(bus: Bus) -> None:
    async def silent(_message: BusMessage) -> None:
        await asyncio.Event().wait()

    await bus.subscribe("wf.qry.test.silent", silent)
    with pytest.raises(Unavailable) as caught:
        await bus.request("wf.qry.test.silent", b"", timeout_s=0.1)
    assert caught.value.code == "timeout"


async def test_who_is_told_to_stop_while_publishing_stops(bus: Bus) -> None:
    """The client swallows a cancellation that comes while it flushes."""

    async def publish_for_ever() -> None:
        while True:
            await bus.publish("wf.test.stop", b"x" * 1000)

    for ticks in range(60):
        task = asyncio.ensure_future(publish_for_ever())
        for _ in range(ticks % 12):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=5)
        assert done and task.cancelled()


async def test_who_is_told_to_stop_while_subscribing_stops(bus: Bus) -> None:
    async def ignore(_message: BusMessage) -> None:
        return

    async def subscribe_for_ever() -> None:
        while True:
            stop = await bus.subscribe("wf.test.stop", ignore)
            await stop()

    for ticks in range(150):
        task = asyncio.ensure_future(subscribe_for_ever())
        for _ in range(ticks % 31):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=5)
        assert done and task.cancelled()
    await bus.answer("wf.qry.test.after", echoed)
    assert (await bus.request("wf.qry.test.after", b"alive", timeout_s=5)).body == b"alive"


async def echoed(message: BusMessage) -> bytes:
    return message.body


async def test_nobody_listening_is_said_at_connect() -> None:
    with pytest.raises(Unavailable, match="cannot connect"):
        await Bus.connect(
            url="nats://127.0.0.1:1", user="", password="", name="t", connect_timeout_s=0.5
        )


@pytest.fixture
def own_server() -> Iterator[NatsServer]:
    with servers.nats_server(nats_accounts(LOGINS)) as server:
        yield server


async def test_a_killed_server_loses_nothing_acknowledged(own_server: NatsServer) -> None:
    bus = await own_server.connect("core", "c")
    js = JetStream(bus)
    await ensure_streams(js, [subjects.STREAM_AGENT])
    acknowledged: list[int] = []

    async def write() -> None:
        for n in range(10_000):
            ack = await js.publish(f"wf.evt.agent.node.started.n1.{n}", b"x", timeout_s=1.0)
            acknowledged.append(ack.seq)

    writing = asyncio.ensure_future(write())
    async with asyncio.timeout(20):
        while len(acknowledged) < 200:
            await asyncio.wait({writing}, timeout=0.01)
    own_server.kill()
    with pytest.raises(Unavailable):
        await writing
    own_server.start_again()
    await bus.wait_connected(10)
    kept = {m.seq for m in await js.read(subjects.STREAM_AGENT, after_seq=0)}
    assert set(acknowledged) <= kept
    await bus.close()


async def test_a_client_that_closed_for_good_is_rebuilt_with_its_subscriptions(
    own_server: NatsServer,
) -> None:
    bus = await own_server.connect("core", "c")
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def hear(message: BusMessage) -> None:
        heard.put_nowait(message.body)

    await bus.subscribe("wf.test.hear", hear)
    await bus._client.close()
    async with asyncio.timeout(10):
        while heard.empty():
            try:
                await bus.wait_connected(5)
                await bus.publish("wf.test.hear", b"again")
            except Unavailable:
                continue
            await asyncio.wait({asyncio.ensure_future(heard.join())}, timeout=0.1)
    assert heard.get_nowait() == b"again"
    await bus.close()


@pytest.fixture
async def world(own_server: NatsServer) -> AsyncIterator[tuple[NatsServer, JetStream]]:
    core = await own_server.connect("core", "c")
    js = JetStream(core)
    await ensure_streams(
        js,
        [
            subjects.STREAM_AGENT,
            subjects.STREAM_ASSIGNMENTS,
            subjects.STREAM_SAMPLES,
            subjects.STREAM_LEASES,
            "CMD_SCHEDULER",
            "EVT_SCHEDULER_c0",
        ],
    )
    for node in ("n1", "n2"):
        await js.ensure_consumer(
            ConsumerSpec(
                stream=subjects.STREAM_ASSIGNMENTS,
                durable=node,
                filters=(subjects.assignment(node),),
                ack="none",
                deliver="last_per_subject",
            )
        )
    yield own_server, js
    await core.close()


World = tuple[NatsServer, JetStream]


async def test_an_agent_reports_for_its_own_node_and_no_other(world: World) -> None:
    server, js = world
    agent = await server.connect("node-n1", "1", inbox_prefix="_INBOX_n1")
    await JetStream(agent).publish("wf.evt.agent.member.exited.n1.r", b"{}", msg_id="m")
    with pytest.raises(Unavailable):
        await JetStream(agent).publish("wf.evt.agent.member.exited.n2.r", b"{}", timeout_s=0.5)
    assert (await js.stream_state(subjects.STREAM_AGENT)).messages == 1
    await agent.close()


FORGED = [
    "wf.asg.n1",
    "wf.asg.n2",
    "wf.cmd.scheduler.workload.cancel",
    "wf.evt.scheduler.run.ended.r",
    "wf.lease.scheduler-c0",
]


@pytest.mark.parametrize("target", FORGED)
async def test_an_agent_cannot_forge_by_a_reply_subject(world: World, target: str) -> None:
    server, js = world
    agent = await server.connect("node-n1", "1", inbox_prefix="_INBOX_n1")
    await agent.publish("wf.smp.n1", b"forged", reply=target)
    await agent.publish("wf.evt.agent.node.started.n1.n1", b"forged", reply=target)
    pull = json.dumps({"batch": 1, "no_wait": True}).encode()
    await agent.publish("$JS.API.CONSUMER.MSG.NEXT.ASSIGNMENTS.n1", pull, reply=target)
    # A round trip on the same connection: whatever was forged has arrived by now.
    await JetStream(agent).publish("wf.evt.agent.node.started.n1.n1", b"{}")
    for stream in ("ASSIGNMENTS", "CMD_SCHEDULER", "EVT_SCHEDULER_c0", "LEASES"):
        assert (await js.stream_state(stream)).messages == 0
    await agent.close()


async def test_within_one_account_permissions_would_not_stop_the_forger() -> None:
    """Why agents have accounts of their own; and the test above would notice."""
    permissions = {"publish": ["wf.smp.n1"], "subscribe": ["_INBOX_n1.>"]}
    users = [
        {"user": "core", "password": "c"},
        {"user": "n1", "password": "1", "permissions": permissions},
    ]
    with servers.nats_server({"authorization": {"users": users}}) as server:
        core = await server.connect("core", "c")
        js = JetStream(core)
        await ensure_streams(js, [subjects.STREAM_SAMPLES, "CMD_SCHEDULER"])
        agent = await server.connect("n1", "1", inbox_prefix="_INBOX_n1")
        await agent.publish("wf.smp.n1", b"x", reply="wf.cmd.scheduler.workload.cancel")
        await JetStream(agent).publish("wf.smp.n1", b"x")
        assert (await js.stream_state("CMD_SCHEDULER")).messages == 1
        await agent.close()
        await core.close()


async def gets_nothing(bus: Bus, subject: str) -> bool:
    """Whether nobody answers, or only the server to say that this account has no streams."""
    try:
        answer = await bus.request(subject, b"{}", timeout_s=0.5)
    except Unavailable:
        return True
    return int(json.loads(answer.body)["error"]["err_code"]) == NO_STREAMS_HERE


NO_STREAMS_HERE = 10039


async def test_an_agent_reads_its_own_assignment_and_no_other(world: World) -> None:
    server, js = world
    for node in ("n1", "n2"):
        await js.publish(subjects.assignment(node), f"for {node}".encode())
    agent = await server.connect("node-n1", "1", inbox_prefix="_INBOX_n1")
    own = "$JS.API.DIRECT.GET.ASSIGNMENTS.wf.asg.n1"
    assert (await agent.request(own, b"", timeout_s=2)).body == b"for n1"
    for subject in (
        "$JS.API.DIRECT.GET.ASSIGNMENTS.wf.asg.n2",
        "$JS.API.CONSUMER.MSG.NEXT.ASSIGNMENTS.n2",
        "$JS.API.STREAM.INFO.EVT_SCHEDULER_c0",
        "$JS.API.STREAM.NAMES",
    ):
        assert await gets_nothing(agent, subject)
    await agent.close()


async def test_a_tenant_asks_for_its_own_events_and_nothing_else(world: World) -> None:
    server, js = world

    async def tell(message: BusMessage) -> bytes:
        return message.subject.encode()

    await js.bus.answer("wf.qry.gateway.events.*", tell)
    acme = await server.connect("tenant-acme", "a", inbox_prefix="_INBOX_acme")
    own = subjects.question("gateway", "events", of="acme")
    assert (await acme.request(own, b"{}", timeout_s=2)).body == own.encode()
    for subject in (
        subjects.question("gateway", "events", of="evil"),
        "wf.cmd.scheduler.workload.submit",
        "$JS.API.STREAM.INFO.PUB",
    ):
        assert await gets_nothing(acme, subject)
    await acme.close()


async def test_a_wrong_password_opens_nothing(own_server: NatsServer) -> None:
    with pytest.raises(Unavailable):
        await own_server.connect("core", "wrong", connect_timeout_s=1.0)


async def test_one_candidate_leads_and_the_next_takes_over_when_it_lets_go(
    world: World,
) -> None:
    _server, js = world
    first = LeaderLease(js, SystemClock(), key="test", holder="first")
    second = LeaderLease(js, SystemClock(), key="test", holder="second")
    keeping = asyncio.ensure_future(first.keep())
    async with asyncio.timeout(10):
        await first.wait_held()
        waiting = asyncio.ensure_future(second.keep())
        await asyncio.wait({asyncio.ensure_future(second.wait_held())}, timeout=1.3)
        assert not second.held
        keeping.cancel()
        await asyncio.wait({keeping})
        assert not first.held
        await second.wait_held()
    waiting.cancel()
    await asyncio.wait({waiting})


async def test_a_holder_that_was_robbed_stops_believing(world: World) -> None:
    _server, js = world
    lease = LeaderLease(js, SystemClock(), key="robbed", holder="one")
    assert await lease._try()
    await js.publish(subjects.lease("robbed"), b"another")
    assert not await lease._try()
    assert not lease.held
