"""A node without a bus: real files, real shims, real programs, and an outbox we can read."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whaleflux.agent.shell.environment import Node
from whaleflux.agent.shell.folders import MemberFolder, MemberKey, NodeFolder
from whaleflux.agent.shell.member import Surroundings
from whaleflux.agent.shell.members import Members
from whaleflux.agent.shell.outbox import Outbox, OutboxMessage
from whaleflux.agent.shell.preparation import Timing
from whaleflux.agent.shell.shim_parts.kernel import boot_id, boottime_s, to_json, write_atomically
from whaleflux.agent.shell.shim_process import SHIM
from whaleflux.common.clock import SystemClock
from whaleflux.common.contracts.agent import AgentEvent, MemberExited, read_agent_event
from whaleflux.common.contracts.assignment import AssignedMember, Assignment
from whaleflux.common.contracts.workload import Fencing
from whaleflux.common.errors import Unavailable

DEADLINE_S = 20.0
"""No condition in these tests takes longer on a busy machine."""


def make_member(run: str, **changes: Any) -> AssignedMember:
    fields: dict[str, Any] = {
        "run_id": "wl_a-main-0",
        "attempt": 1,
        "rank": 0,
        "world_size": 1,
        "workload_id": "wl_a",
        "tenant": "acme",
        "project": "default",
        "phase": "main",
        "iteration": 0,
        "role": None,
        "desired": "run",
        "gpus": (0,),
        "gpu_type": "H200",
        "handover": False,
        "nodes": ("n1",),
        "master_port": 29500,
        "store": "default",
        "setup": "",
        "run": run,
        "envs": {},
        "workdir": None,
        "inputs": {},
        "resume_from": (),
        "grace_s": 5.0,
        "fencing": Fencing.PATIENT,
        "max_runtime_s": None,
    }
    return AssignedMember(**{**fields, **changes})


class Agent:
    """One agent's life on a node; leaving it kills nothing, as `kill -9` would not."""

    def __init__(self, fleet: "Fleet", group: asyncio.TaskGroup) -> None:
        timing = fleet.timing
        self.folder = NodeFolder(fleet.root)
        self.folder.create()
        self.node = Node(
            node_id="n1",
            agent_id=f"ag_{id(self)}",
            boot_id=boot_id(),
            simulated=True,
            folder=self.folder,
            stores={"default": fleet.store, "local": self.folder.local_store},
            users=fleet.users,
            allow_root=fleet.allow_root,
        )
        self.sent: list[OutboxMessage] = []
        self.bus_up = True
        self.changed = asyncio.Condition()
        self.group = group
        self.outbox = Outbox(self.folder.outbox, node_id="n1", publish=self._publish, group=group)
        self.members = Members(
            self.folder,
            Surroundings(
                node=self.node,
                outbox=self.outbox,
                clock=SystemClock(),
                group=group,
                gpus_free=_free,
                timing=lambda _: timing,
            ),
        )
        self.version = 0

    def start(self) -> None:
        self.outbox.restore()
        self.members.restore()
        self.renew()
        self.members.allow_starts()
        self.group.create_task(self.members.run())

    def renew(self) -> None:
        now = boottime_s()
        text = to_json({"renewed_boottime_s": now, "boot_id": self.node.boot_id})
        write_atomically(str(self.folder.fence), text, durable=False)
        self.members.extend(now)

    def assign(self, *members: AssignedMember) -> None:
        self.version += 1
        self.members.accept(
            Assignment(node_id="n1", incarnation=1, version=self.version, members=members)
        )

    async def _publish(self, message: OutboxMessage) -> None:
        if not self.bus_up:
            raise Unavailable("the bus is down")
        async with self.changed:
            self.sent.append(message)
            self.changed.notify_all()

    def events(self) -> list[AgentEvent]:
        read = [read_agent_event(message.body) for message in self.sent]
        return [event for event in read if isinstance(event, AgentEvent)]

    async def wait_for(self, wanted: Callable[[AgentEvent], bool]) -> Any:
        found: list[AgentEvent] = []

        def look() -> bool:
            found[:] = [event for event in self.events() if wanted(event)]
            return bool(found)

        async with asyncio.timeout(DEADLINE_S), self.changed:
            await self.changed.wait_for(look)
        return found[0]

    async def exited(self, run_id: str = "wl_a-main-0") -> MemberExited:
        event = await self.wait_for(
            lambda event: isinstance(event, MemberExited) and event.run_id == run_id
        )
        assert isinstance(event, MemberExited)
        return event

    async def said(self, type_: str, run_id: str = "wl_a-main-0") -> Any:
        return await self.wait_for(
            lambda e: e.type == type_ and getattr(e, "run_id", run_id) == run_id
        )

    def member(self, run_id: str = "wl_a-main-0", attempt: int = 1, rank: int = 0) -> MemberFolder:
        return self.folder.member(MemberKey(run_id, attempt, rank))

    def log(self, run_id: str = "wl_a-main-0") -> str:
        return self.member(run_id).log.read_text()


async def _free(_gpus: tuple[int, ...]) -> None:
    return


class Fleet:
    """Starts agents on one node root, one after another."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "node"
        self.store = tmp_path / "store"
        self.store.mkdir()
        self.timing = Timing(300.0, 5.0)
        self.users: dict[str, str] = {}
        self.allow_root = True

    @contextlib.asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        async with asyncio.TaskGroup() as group:
            agent = Agent(self, group)
            agent.start()
            try:
                yield agent
            finally:
                for task in group._tasks:
                    task.cancel()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    for claim in (fleet.root / "members").glob("*/shim.json"):
        kill_shim(claim.parent)


@pytest.fixture
async def agent(fleet: Fleet) -> AsyncIterator[Agent]:
    async with fleet.agent() as agent:
        yield agent


def kill_shim(folder: Path) -> None:
    """Have a shim that may still run end its member at once."""
    claim = json.loads((folder / "shim.json").read_text())
    if claim["pid"] and not (folder / "exit.json").exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(claim["pid"], signal.SIGINT)


class BareShim:
    """A shim without an agent."""

    def __init__(self, folder: Path, script: str, **spec: object) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / "run.sh").write_text(f"trap 'exit $?' TERM\n{script}\n")
        self.fence = folder.parent / "fence.json"
        fields: dict[str, object] = {
            "grace_s": 5,
            "fencing_s": 300,
            "margin_s": 5,
            "renewed_boottime_s": boottime_s(),
            "log": folder / "log",
            "log_bytes_max": 1 << 24,
            "cwd": folder,
            "script": folder / "run.sh",
            "fence": self.fence,
        }
        write_pairs(folder / "spec", {**fields, **spec})
        write_pairs(folder / "env", {"PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin"})
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SHIM), str(folder)],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def started(self) -> int:
        """Wait for the program and return its process id."""
        assert self.process.stdout is not None
        return int(json.loads(self.process.stdout.readline())["pid"])

    def wait_for(self, text: str) -> None:
        """Wait until the program has printed *text*."""
        deadline = boottime_s() + DEADLINE_S
        while text not in self.log():
            assert boottime_s() < deadline, f"{text!r} not in {self.log()!r}"
            assert self.process.poll() is None, f"ended before {text!r}: {self.log()!r}"
            os.sched_yield()

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def renew(self, ago_s: float = 0.0, boot: str | None = None) -> None:
        fields = {"renewed_boottime_s": boottime_s() - ago_s, "boot_id": boot or boot_id()}
        write_atomically(str(self.fence), to_json(fields), durable=False)

    def end(self) -> dict[str, Any]:
        """Wait for the shim and return what it wrote."""
        self.process.wait(DEADLINE_S)
        value: dict[str, Any] = json.loads((self.folder / "exit.json").read_text())
        return value


def write_pairs(path: Path, pairs: dict[str, object]) -> None:
    path.write_text("\0".join(f"{key}={value}" for key, value in pairs.items()))


@pytest.fixture
def shim(tmp_path: Path) -> Iterator[Callable[..., BareShim]]:
    made: list[BareShim] = []

    def make(script: str, **spec: object) -> BareShim:
        made.append(BareShim(tmp_path / f"m{len(made)}", script, **spec))
        return made[-1]

    yield make
    for one in made:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGINT)
            one.process.wait(DEADLINE_S)
        if one.process.stdout is not None:
            one.process.stdout.close()


@pytest.fixture
def member() -> Callable[..., AssignedMember]:
    return make_member
