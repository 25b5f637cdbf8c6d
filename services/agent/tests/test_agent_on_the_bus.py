import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from whaleflux.agent.shell.service import AgentService
from whaleflux.agent.shell.settings import AgentSettings
from whaleflux.agent.shell.simulated_probe import SimulatedProbe
from whaleflux.common.accounts import Login, Logins, nats_accounts
from whaleflux.common.bus import Bus, BusMessage
from whaleflux.common.clock import SystemClock
from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.agent import ExitKind, LogReply, LogRequest, read_agent_event
from whaleflux.common.contracts.assignment import AssignedMember, Assignment
from whaleflux.common.contracts.failover import LeaseAnswer, LeaseReply, LeaseRequest
from whaleflux.common.ids import RandomIds
from whaleflux.common.jetstream import JetStream
from whaleflux.common.nats_table import NatsTable
from whaleflux.common.streams import ConsumerSpec, ensure_streams
from whaleflux.common.testing.servers import NatsServer, nats_server

pytestmark = pytest.mark.integration
Make = Callable[..., AssignedMember]
STARTED = "agent.member.started.v1"
EXITED = "agent.member.exited.v1"
NODE = "agent.node.started.v1"


LOGINS = Logins(
    core=Login("core", "core-secret"),
    system=Login("sys", "sys-secret"),
    nodes={"n1": Login("node-n1", "node-secret")},
    tenants={},
)


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server of the test's own, with the accounts of the product."""
    with nats_server(nats_accounts(LOGINS)) as server:
        yield server


class Core:
    """What the scheduler and failover are to an agent."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.js = JetStream(bus)
        self.table = NatsTable(self.js, stream=subjects.STREAM_ASSIGNMENTS)
        self.answer: LeaseAnswer | None = LeaseAnswer.GRANTED
        self.asked: list[LeaseRequest] = []
        self.version = 0

    async def open(self) -> None:
        await ensure_streams(self.js, [subjects.STREAM_AGENT, subjects.STREAM_ASSIGNMENTS])
        await self.js.ensure_consumer(
            ConsumerSpec(
                stream=subjects.STREAM_ASSIGNMENTS,
                durable="n1",
                filters=(subjects.assignment("n1"),),
                ack="none",
                deliver="last_per_subject",
            )
        )
        await self.bus.answer(subjects.question("failover", "lease", of="n1"), self._lease)

    async def _lease(self, message: BusMessage) -> bytes:
        request = LeaseRequest.model_validate_json(message.body)
        self.asked.append(request)
        if self.answer is None:
            await asyncio.sleep(10)
        answer = self.answer or LeaseAnswer.GRANTED
        if answer is LeaseAnswer.FENCED and request.clean:
            self.answer = answer = LeaseAnswer.GRANTED
        return LeaseReply(answer=answer).model_dump_json().encode()

    async def assign(
        self, *members: AssignedMember, version: int | None = None, incarnation: int = 1
    ) -> None:
        self.version = self.version + 1 if version is None else version
        body = Assignment(
            node_id="n1", incarnation=incarnation, version=self.version, members=members
        )
        await self.table.put(subjects.assignment("n1"), body.model_dump_json().encode())

    async def events(self) -> list[Any]:
        stored = await self.js.read(subjects.STREAM_AGENT, after_seq=0)
        return [read_agent_event(message.body) for message in stored]

    async def wait_for(self, type_: str, *, run_id: str = "wl_a-main-0", count: int = 1) -> Any:
        async with asyncio.timeout(20):
            while True:
                found = [
                    event
                    for event in await self.events()
                    if event.type == type_ and getattr(event, "run_id", run_id) == run_id
                ]
                if len(found) >= count:
                    return found[count - 1]
                await asyncio.sleep(0.02)


@pytest.fixture
async def core(server: NatsServer) -> AsyncIterator[Core]:
    bus = await server.connect("core", "core-secret")
    core = Core(bus)
    await core.open()
    yield core
    await bus.close()


def settings(server: NatsServer, tmp_path: Path, **changes: Any) -> AgentSettings:
    store = tmp_path / "store"
    store.mkdir(exist_ok=True)
    return AgentSettings(
        node_id="n1",
        node_root=str(tmp_path / "node"),
        stores={"default": str(store), "gone": str(tmp_path / "nowhere")},
        devices="simulated:H200x2",
        nats_url=server.url,
        nats_user="node-n1",
        nats_password=SecretStr("node-secret"),
        **changes,
    )


@asynccontextmanager
async def running(told: AgentSettings) -> AsyncIterator[AgentService]:
    bus = await Bus.connect(
        url=told.nats_url,
        user=told.nats_user,
        password=told.nats_password.get_secret_value(),
        name="agent-n1",
        inbox_prefix="_INBOX_n1",
    )
    async with asyncio.TaskGroup() as group:
        service = AgentService(
            told,
            js=JetStream(bus),
            clock=SystemClock(),
            ids=RandomIds(),
            probe=SimulatedProbe("n1", types="H200x2", clock=SystemClock()),
            group=group,
            say_health=lambda *_: None,
        )
        main = group.create_task(service.run())
        try:
            yield service
        finally:
            main.cancel()
            await asyncio.wait([main])
            for task in group._tasks:
                task.cancel()
    await bus.close()


@pytest.fixture
async def agent(core: Core, server: NatsServer, tmp_path: Path) -> AsyncIterator[AgentService]:
    async with running(settings(server, tmp_path, members_on_stop="stop")) as agent:
        yield agent


async def test_the_node_says_what_it_has(agent: AgentService, core: Core) -> None:
    node = await core.wait_for(NODE)
    assert (node.simulated, len(node.gpus), node.gpus[0].type) == (True, 2, "H200")
    assert node.stores == ("default",)
    assert node.cpus >= 1
    assert node.memory_mib > 100


async def test_an_assignment_becomes_a_process_and_its_end_an_event(
    agent: AgentService, core: Core, member: Make
) -> None:
    await core.assign(member("echo hello; exit 85"))
    end = await core.wait_for(EXITED)
    assert end.kind is ExitKind.SAVED
    reply = await core.bus.request(
        subjects.agent_question("n1", "logs"),
        LogRequest(run_id="wl_a-main-0", attempt=1, rank=0).model_dump_json().encode(),
        timeout_s=5,
    )
    log = LogReply.model_validate_json(reply.body)
    assert (log.found, log.text, log.next_offset, log.ended) == (True, "hello\n", 6, True)


async def test_an_older_assignment_is_ignored(
    agent: AgentService, core: Core, member: Make
) -> None:
    await core.assign(member("exec sleep 100"), version=7)
    await core.wait_for(STARTED)
    await core.assign(version=6)
    await core.assign(member("exec sleep 100"), member("exit 0", run_id="wl_b", gpus=()), version=8)
    await core.wait_for(EXITED, run_id="wl_b")
    assert agent.members.alive == 1


async def test_a_raised_incarnation_counts_before_the_version(
    agent: AgentService, core: Core, member: Make
) -> None:
    await core.assign(member("exec sleep 100"), version=7)
    await core.wait_for(STARTED)
    await core.assign(version=1, incarnation=2)
    assert (await core.wait_for(EXITED)).kind is ExitKind.STOPPED


async def test_a_restarted_server_is_followed_and_nothing_is_lost(
    agent: AgentService, core: Core, server: NatsServer, member: Make
) -> None:
    await core.assign(member("sleep 0.3; exit 7"))
    await core.wait_for(STARTED)
    server.kill()
    async with asyncio.timeout(10):
        while not agent.outbox.pending("wl_a-main-0.1.0.exited"):
            await asyncio.sleep(0.02)
    server.start_again()
    assert (await core.wait_for(EXITED)).exit_code == 7
    await core.assign(member("exit 0", run_id="wl_b"))
    await core.wait_for(EXITED, run_id="wl_b")


async def test_nothing_starts_before_the_first_grant(
    core: Core, server: NatsServer, tmp_path: Path, member: Make
) -> None:
    core.answer = LeaseAnswer.FROZEN
    await core.assign(member("exit 0"))
    async with running(settings(server, tmp_path)):
        async with asyncio.timeout(10):
            while len(core.asked) < 2:
                await asyncio.sleep(0.02)
        assert [event.type for event in await core.events()] == [NODE]
        core.answer = LeaseAnswer.GRANTED
        await core.wait_for(EXITED)


async def test_a_given_up_node_ends_its_work_and_comes_back_clean(
    agent: AgentService, core: Core, member: Make
) -> None:
    await core.assign(member("trap '' TERM; while :; do sleep 0.1; done", grace_s=3600))
    await core.wait_for(STARTED)
    core.answer = LeaseAnswer.FENCED
    assert (await core.wait_for(EXITED)).kind is ExitKind.FENCED
    await core.wait_for(NODE, count=2)
    assert any(request.clean for request in core.asked[-3:])
    await core.assign(member("exit 0", attempt=2))
    assert (await core.wait_for(EXITED, count=2)).attempt == 2


async def test_an_agent_goes_on_from_its_disk_while_the_bus_is_silent(
    core: Core, server: NatsServer, tmp_path: Path, member: Make
) -> None:
    told = settings(server, tmp_path)
    async with running(told):
        await core.assign(member("exec sleep 100"))
        await core.wait_for(STARTED)
    async with running(told) as agent:
        while agent.assignments.current is None:
            await asyncio.sleep(0)
        assert agent.assignments.current.version == core.version
        assert agent.members.alive == 1
        await core.assign(member("exec sleep 100", desired="stop"))
        assert (await core.wait_for(EXITED)).kind is ExitKind.STOPPED


async def test_one_node_has_one_agent(
    agent: AgentService, server: NatsServer, tmp_path: Path
) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        async with running(settings(server, tmp_path)):
            pass
    assert "another agent runs" in str(caught.value.exceptions)


async def test_a_clean_stop_may_end_the_members(
    core: Core, server: NatsServer, tmp_path: Path, member: Make
) -> None:
    async with running(settings(server, tmp_path, members_on_stop="stop")):
        await core.assign(member("exec sleep 100"))
        await core.wait_for(STARTED)
    assert (await core.wait_for(EXITED)).kind is ExitKind.STOPPED


@contextmanager
def process(told: AgentSettings) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        "PATH": os.environ["PATH"],
        "WHALEFLUX_NATS_URL": told.nats_url,
        "WHALEFLUX_NATS_USER": told.nats_user,
        "WHALEFLUX_NATS_PASSWORD": told.nats_password.get_secret_value(),
        "WHALEFLUX_NODE_ID": told.node_id,
        "WHALEFLUX_NODE_ROOT": told.node_root,
        "WHALEFLUX_STORES": json.dumps(dict(told.stores)),
        "WHALEFLUX_DEVICES": told.devices,
        "WHALEFLUX_MEMBERS_ON_STOP": "stop",
    }
    with subprocess.Popen([sys.executable, "-m", "whaleflux.agent"], env=environment) as agent:
        try:
            yield agent
        finally:
            if agent.poll() is None:
                agent.terminate()
                agent.wait(20)


async def test_a_killed_agent_leaves_its_members_to_the_next_which_reads_their_ends(
    core: Core, server: NatsServer, tmp_path: Path, member: Make
) -> None:
    told = settings(server, tmp_path)
    go, starts = tmp_path / "go", tmp_path / "starts"
    waits = f"echo $$ >> {starts}; until [ -e {go} ]; do sleep 0.02; done; exit 85"
    short = member("sleep 0.5; exit 3", run_id="wl_b", gpus=(1,))
    with process(told) as agent:
        await core.assign(member(waits), short)
        await core.wait_for(STARTED)
        await core.wait_for(STARTED, run_id="wl_b")
        agent.send_signal(signal.SIGKILL)
        agent.wait()
    ended = tmp_path / "node" / "members" / "wl_b.1.0" / "exit.json"
    async with asyncio.timeout(20):
        while not ended.exists():
            await asyncio.sleep(0.02)
    with process(told) as agent:
        assert (await core.wait_for(EXITED, run_id="wl_b")).exit_code == 3
        go.touch()
        assert (await core.wait_for(EXITED)).kind is ExitKind.SAVED
        agent.terminate()
        assert agent.wait(20) == 0
    assert len(starts.read_text().split()) == 1
    types = [event.type for event in await core.events() if event.type in (STARTED, EXITED)]
    assert sorted(types) == [EXITED, EXITED, STARTED, STARTED]


async def test_the_node_answers_how_it_is(core: Core, server: NatsServer, tmp_path: Path) -> None:
    with process(settings(server, tmp_path)):
        await core.wait_for(NODE)
        async with asyncio.timeout(20):
            while True:
                reply = await core.bus.request(
                    subjects.agent_question("n1", "health"), b"", timeout_s=5
                )
                if json.loads(reply.body)["ok"]:
                    break
        report = json.loads(reply.body)
        assert report["parts"]["lease"] == {"ok": True, "detail": "lease granted"}
        assert report["resident_mib"] < 60
