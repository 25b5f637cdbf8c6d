"""Two schedulers that race for one log, a fleet that fails, and a witness that sees it all.

Both schedulers are live at once, which leader election makes rare in production: safety must not
rest on the election. First a storm (answers lost, messages delivered to either or both, programs
that fail, nodes that vanish and are fenced), then calm, in which everything accepted must end.
"""

import asyncio
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from whaleflux.common.contracts.agent import Gpu
from whaleflux.common.contracts.scheduler import (
    CancelWorkload,
    RunPlaced,
    SchedulerEvent,
    SubmitWorkload,
    WorkloadEnded,
    WorkloadSubmitted,
)
from whaleflux.common.contracts.workload import Fencing, WorkloadSpec
from whaleflux.common.errors import Unavailable
from whaleflux.common.testing.loop import run_virtual
from whaleflux.common.testing.memory import MemoryLog, MemoryTable
from whaleflux.scheduler.core.command import ClearNode, CloseNode, OpenNode, Thought
from whaleflux.scheduler.core.evolve import evolve
from whaleflux.scheduler.core.state import State
from whaleflux.scheduler.shell.assignments import Assignments
from whaleflux.scheduler.shell.service import Service
from whaleflux.sim.node import SimNode, Witness

START = datetime(2031, 1, 1, tzinfo=UTC)
CALM_S = 2_000.0
"""Virtual seconds in which everything must end once faults are off."""

JOIN_LOOKS_MAX = 200
"""Looks at a scheduler's state before joined nodes count as forgotten."""
DELIVERIES_MAX = 100
"""Times a fact is offered to a scheduler; a healthy one takes it within a few."""


class LoopClock:
    """The virtual loop's time."""

    def now(self) -> datetime:
        """Return the present virtual moment."""
        return START + timedelta(seconds=asyncio.get_running_loop().time())

    def boottime_s(self) -> float:
        """Return virtual seconds since the loop began."""
        return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class Faults:
    """How bad the storm is."""

    answer_loss_rate: float = 0.2
    failure_rate: float = 0.2
    duplicate_rate: float = 0.3
    node_losses: int = 2
    guarded: bool = True
    """False removes the sequence guard: a fault of ours that tests must notice."""


@dataclass(slots=True)
class Report:
    """What a seed led to."""

    events: list[SchedulerEvent]
    violations: list[str] = field(default_factory=list[str])
    unfinished: list[str] = field(default_factory=list[str])
    started: int = 0

    def digest(self) -> str:
        """Return a hash of the whole history."""
        lines = "\n".join(event.model_dump_json() for event in self.events)
        return hashlib.sha256(lines.encode()).hexdigest()


def storm(seed: int, *, workloads: int = 6, faults: Faults | None = None) -> Report:
    """Run one seed to its end in virtual time."""
    return run_virtual(lambda: _World(seed, workloads, faults or Faults()).play())


class _World:
    def __init__(self, seed: int, workloads: int, faults: Faults) -> None:
        self._rng = random.Random(seed)
        self._faults = faults
        self._workloads = workloads
        self._log: MemoryLog[SchedulerEvent] = MemoryLog(
            self._rng, answer_loss_rate=faults.answer_loss_rate, guarded=faults.guarded
        )
        table = MemoryTable(self._rng)
        self._services = [
            Service(log=self._log, assignments=Assignments(table), clock=LoopClock())
            for _ in range(2)
        ]
        self._locks = [asyncio.Lock() for _ in self._services]
        self._calm = asyncio.Event()
        self._witness = Witness()
        self._nodes = [
            SimNode(
                node_id=f"{type_.lower()}-{n}",
                gpus=tuple(
                    Gpu(index=i, uuid=f"SIM-{type_}-{n}-{i}", type=type_, memory_mib=81_920)
                    for i in range(4)
                ),
                table=table,
                report=self._deliver,
                witness=self._witness,
                rng=self._rng,
                failure_rate=faults.failure_rate,
                calm=self._calm,
            )
            for type_ in ("H100", "A100")
            for n in range(2)
        ]

    async def play(self) -> Report:
        """Storm, then calm, then judge."""
        try:
            async with asyncio.TaskGroup() as group:
                nodes = [group.create_task(node.run(group)) for node in self._nodes]
                await self._join_all()
                async with asyncio.TaskGroup() as storm_group:
                    storm_group.create_task(self._submit_all())
                    storm_group.create_task(self._lose_nodes())
                self._calm.set()
                self._log.answer_loss_rate = 0.0
                await self._wait_for_end()
                for task in nodes:
                    task.cancel()
        except* Exception as errors:
            self._witness.violations += [f"crash: {error!r}" for error in errors.exceptions]
        return self._judge()

    async def _join_all(self) -> None:
        for _ in range(JOIN_LOOKS_MAX):
            if len(self._services[0].state.nodes) == len(self._nodes):
                return
            await asyncio.sleep(0.1)
            await self._think(0, [])
        self._witness.violations.append("nodes that joined were forgotten")

    async def _deliver(self, thought: Thought) -> None:
        """Deliver at least once: to either scheduler or to both, again after a failure."""
        targets = [self._rng.randrange(2)]
        if self._rng.random() < self._faults.duplicate_rate:
            targets.append(1 - targets[0])
        for target in targets:
            await asyncio.sleep(self._rng.expovariate(1 / 0.01))
            for _ in range(DELIVERIES_MAX):
                if await self._think(target, [thought]):
                    break
                await asyncio.sleep(0.5)
            else:
                raise Unavailable(f"nobody could decide {type(thought).__name__}")

    async def _think(self, which: int, thoughts: Sequence[Thought]) -> bool:
        async with self._locks[which]:
            try:
                await self._services[which].think(thoughts)
            except Unavailable:
                return False
            return True

    async def _submit_all(self) -> None:
        for n in range(self._workloads):
            await asyncio.sleep(self._rng.expovariate(1 / 2.0))
            id_ = f"w{n}"
            await self._deliver(
                SubmitWorkload(
                    workload_id=id_, tenant="acme", user="ada", body_hash="h", spec=self._spec(n)
                )
            )
            if self._rng.random() < 0.15:
                await self._deliver(CancelWorkload(workload_id=id_, user="ada"))

    def _spec(self, n: int) -> WorkloadSpec:
        type_ = self._rng.choice(["H100", "A100"])
        count = self._rng.choice([1, 2, 4])
        body: dict[str, object] = {
            "name": f"w{n}",
            "fencing": self._rng.choice(["fast", "patient"]),
            "retry": {"max_attempts": 50},
        }
        if self._rng.random() < 0.5:
            return WorkloadSpec.model_validate(
                body
                | {
                    "run": "work",
                    "num_nodes": self._rng.choice([1, 2]),
                    "resources": {"accelerators": f"{type_}:{count}"},
                }
            )
        phases = [
            {"name": "a", "run": "work", "resources": {"accelerators": "A100:2"}},
            {
                "name": "b",
                "run": "work",
                "needs": ["a"],
                "previous": ["c"],
                "num_nodes": 2,
                "resources": {"accelerators": f"{type_}:{count}"},
            },
            {"name": "c", "run": "work", "needs": ["b"]},
        ]
        loops = [{"phases": ["b", "c"], "max": 2}]
        return WorkloadSpec.model_validate(
            body | {"kind": "pipeline", "phases": phases, "loops": loops}
        )

    async def _lose_nodes(self) -> None:
        for _ in range(self._faults.node_losses):
            await asyncio.sleep(self._rng.expovariate(1 / 5.0))
            node = self._rng.choice(self._nodes)
            node.connected = False
            await self._deliver(CloseNode(node.node_id, "silent for 10 s"))
            await asyncio.sleep(self._rng.uniform(1.0, 5.0))
            node.fence()
            for fencing in Fencing:
                await self._deliver(ClearNode(node.node_id, fencing))
            await asyncio.sleep(self._rng.uniform(0.0, 5.0))
            node.connected = True
            await self._deliver(OpenNode(node.node_id))

    async def _wait_for_end(self) -> None:
        deadline = asyncio.get_running_loop().time() + CALM_S
        while asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(5.0)
            await self._think(0, [])
            state = self._services[0].state
            if state.workloads and all(w.outcome for w in state.workloads.values()):
                return

    def _judge(self) -> Report:
        events = list(self._log.events)
        report = Report(events, self._witness.violations, started=self._witness.started)
        report.violations += _check_log(events)
        accepted = {e.workload_id for e in events if isinstance(e, WorkloadSubmitted)}
        ended = {e.workload_id for e in events if isinstance(e, WorkloadEnded)}
        report.unfinished = sorted(accepted - ended)
        return report


def _check_log(events: Sequence[SchedulerEvent]) -> list[str]:
    """Fold the log and return every place where it gives what is not free."""
    state = State()
    found: list[str] = []
    for seq, event in enumerate(events, start=1):
        if isinstance(event, RunPlaced):
            run = state.runs[event.run_id]
            if len(event.members) != run.phase.num_nodes:
                found.append(f"{event.run_id}: a gang of {len(event.members)} was placed")
            for member in event.members:
                holders = state.nodes[member.node_id].holders
                found += [
                    f"{member.node_id} GPU {i}: {event.run_id} placed on {holders[i]}"
                    for i in member.gpus
                    if holders[i] is not None
                ]
        try:
            evolve(state, event, seq)
        except KeyError as error:
            found.append(f"{type(event).__name__} speaks of unknown {error}")
    return found
