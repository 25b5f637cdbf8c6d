"""A node in virtual time: an agent that follows its assignment, members that take time, faults.

The agent here is a model of the real one: it keeps the highest version, starts what is new, stops
what is not wanted, reports starts and ends until heard, and its members end by themselves when the
node's lease is not renewed.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.agent import ExitKind, Gpu
from whaleflux.common.contracts.assignment import AssignedMember, Assignment, CheckpointRef
from whaleflux.common.log import Table
from whaleflux.scheduler.core.command import (
    JoinNode,
    RecordCheckpoint,
    RecordExit,
    RecordStart,
    Thought,
)

LOOK_EVERY_S = 0.05
"""How long an assignment takes to be seen, on average."""

MemberKey = tuple[str, int, int]
"""Run, attempt, rank."""
Report = Callable[[Thought], Awaitable[None]]
"""Delivers a fact at least once, to any scheduler, whatever that takes."""


class Witness:
    """Sees all nodes at once, as nobody in the product can, and speaks up when safety breaks."""

    def __init__(self) -> None:
        """Start with nothing alive."""
        self._alive: dict[MemberKey, tuple[str, tuple[int, ...]]] = {}
        self.started = 0
        self.violations: list[str] = []

    def start(self, node_id: str, member: AssignedMember) -> None:
        """Note that a member's program runs."""
        self.started += 1
        for (run, attempt, rank), (node, gpus) in self._alive.items():
            if run == member.run_id and attempt != member.attempt:
                self.violations.append(f"{run}: attempts {attempt} and {member.attempt} both live")
            if run == member.run_id and attempt == member.attempt and rank == member.rank:
                self.violations.append(f"{run}: member {rank} started twice")
            if node == node_id and set(gpus) & set(member.gpus):
                self.violations.append(f"{node}: {run} and {member.run_id} share a GPU")
        self._alive[(member.run_id, member.attempt, member.rank)] = (node_id, member.gpus)

    def end(self, key: MemberKey) -> None:
        """Note that a member's last process is gone."""
        self._alive.pop(key, None)


@dataclass(slots=True)
class SimNode:
    """One machine and its agent."""

    node_id: str
    gpus: tuple[Gpu, ...]
    table: Table
    report: Report
    witness: Witness
    rng: random.Random
    failure_rate: float
    """Share of members that end by their own fault while faults are on."""
    calm: asyncio.Event
    connected: bool = True
    _version: tuple[int, int] = (-1, -1)
    _wanted: dict[MemberKey, AssignedMember] = field(default_factory=dict)
    _members: dict[MemberKey, asyncio.Task[None]] = field(default_factory=dict)
    _finished: set[MemberKey] = field(default_factory=set)

    async def run(self, group: asyncio.TaskGroup) -> None:
        """Follow the assignment until cancelled."""
        await self.report(
            JoinNode(
                node_id=self.node_id,
                boot_id="boot",
                simulated=True,
                gpus=self.gpus,
                cpus=64,
                memory_mib=1 << 20,
                stores=("default",),
            )
        )
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / LOOK_EVERY_S))
            if self.connected:
                await self._look()
                self._reconcile(group)

    def fence(self) -> None:
        """End every member at once, as shims do when the lease has not been renewed."""
        for key, task in self._members.items():
            task.cancel()
            self.witness.end(key)
        self._finished.update(self._members)
        self._members.clear()

    async def _look(self) -> None:
        kept = await self.table.get(subjects.assignment(self.node_id))
        if kept is None:
            return
        found = Assignment.model_validate_json(kept[1], extra="ignore")
        if (found.incarnation, found.version) <= self._version:
            return
        self._version = (found.incarnation, found.version)
        self._wanted = {(m.run_id, m.attempt, m.rank): m for m in found.members}

    def _reconcile(self, group: asyncio.TaskGroup) -> None:
        for key, task in list(self._members.items()):
            wanted = self._wanted.get(key)
            if wanted is None or wanted.desired == "stop":
                task.cancel()
        for key, member in self._wanted.items():
            if key in self._members or key in self._finished:
                continue
            if member.desired == "run":
                self._members[key] = group.create_task(self._live(key, member))
            else:
                self._finished.add(key)
                group.create_task(self._exited(member, ExitKind.STOPPED))

    async def _live(self, key: MemberKey, member: AssignedMember) -> None:
        self.witness.start(self.node_id, member)
        kind = ExitKind.STOPPED
        try:
            await self.report(
                RecordStart(member.run_id, member.attempt, member.rank, self.node_id, None, None)
            )
            await asyncio.sleep(self.rng.expovariate(1 / 2.0))
            if member.rank == 0:
                await self._save(member)
            await asyncio.sleep(self.rng.expovariate(1 / 2.0))
            failed = not self.calm.is_set() and self.rng.random() < self.failure_rate
            kind = ExitKind.FAILED if failed else ExitKind.DONE
        except asyncio.CancelledError:
            if key not in self._members:
                raise
        self.witness.end(key)
        self._members.pop(key, None)
        self._finished.add(key)
        await self._exited(member, kind)

    async def _save(self, member: AssignedMember) -> None:
        step = max((c.step for c in member.resume_from), default=0) + 1
        checkpoint = CheckpointRef(
            attempt=member.attempt,
            step=step,
            path=f"runs/{member.run_id}/a{member.attempt}/checkpoints/{step}",
            manifest_sha256="simulated",
            safe=True,
        )
        await self.report(RecordCheckpoint(member.run_id, self.node_id, checkpoint))

    async def _exited(self, member: AssignedMember, kind: ExitKind) -> None:
        await self.report(
            RecordExit(member.run_id, member.attempt, member.rank, self.node_id, kind)
        )
