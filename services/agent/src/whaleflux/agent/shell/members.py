"""Makes the members on this node those of its assignment."""

import asyncio
import logging
import shutil
from collections.abc import Mapping
from dataclasses import replace

from whaleflux.agent.shell.folders import MemberKey, NodeFolder, key_of
from whaleflux.agent.shell.member import Member, Surroundings
from whaleflux.common.contracts.agent import ExitKind
from whaleflux.common.contracts.assignment import AssignedMember, Assignment
from whaleflux.common.contracts.failover import LOST_AFTER_S
from whaleflux.common.errors import Refused

_log = logging.getLogger(__name__)


class Members:
    """All members of a node; the only one that starts and ends them."""

    def __init__(self, folder: NodeFolder, around: Surroundings) -> None:
        self._folder = folder
        self._around = replace(around, renewed_s=lambda: self._renewed_s)
        self._members: dict[MemberKey, Member] = {}
        self._wanted: dict[MemberKey, AssignedMember] | None = None
        self._released_s: dict[int, float] = {}
        self._renewed_s = float("-inf")
        self._starts_allowed = False
        self._starts_waiting = False
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()

    @property
    def alive(self) -> int:
        """Return how many members are alive or about to be."""
        return sum(member.alive for member in self._members.values())

    @property
    def longest_grace_s(self) -> float:
        """Return the longest grace of a member that is alive; 0 without any."""
        alive = [member for member in self._members.values() if member.alive]
        return max((member.assigned.grace_s for member in alive), default=0.0)

    def holders(self) -> Mapping[int, str]:
        """Return the run that holds each GPU that is not free."""
        return {
            index: member.key.run_id
            for member in self._members.values()
            if not member.reported
            for index in member.assigned.gpus
        }

    def accept(self, assignment: Assignment) -> None:
        """Take *assignment* as what should be running from now on."""
        self._wanted = {key_of(member): member for member in assignment.members}
        self._wake.set()

    def extend(self, renewed_s: float) -> None:
        """Take note that the lease was renewed at *renewed_s* (CLOCK_BOOTTIME)."""
        self._renewed_s = renewed_s
        if self._starts_waiting:
            self._wake.set()

    def allow_starts(self) -> None:
        """Let new members start: the lease was granted."""
        self._starts_allowed = True
        self._wake.set()

    def give_up(self) -> None:
        """End every member at once, and start none until `allow_starts`."""
        self._starts_allowed = False
        for member in self._members.values():
            if member.alive:
                member.give_up()

    def renounce_unstarted(self) -> None:
        """Report as fenced whatever was assigned and has not started.

        A node that was given up must never start it later: it may run elsewhere by now.
        """
        for key, assigned in (self._wanted or {}).items():
            if assigned.desired == "run" and not self._is_known(key):
                self._end_unstarted(assigned, ExitKind.FENCED, "the node was given up before")

    async def stop_all(self) -> None:
        """End every member within its grace, and wait until all ends are acknowledged."""
        self._starts_allowed = False
        self._wanted = None
        for member in self._members.values():
            if member.alive:
                member.stop()
        while not all(member.reported for member in self._members.values()):
            self._settled.clear()
            await self._settled.wait()

    def restore(self) -> None:
        """Take up what an earlier agent left behind; call it once, before `run`."""
        for folder in self._folder.members():
            assigned = folder.assigned()
            if folder.told_exit.exists():
                continue
            if assigned is None or not (folder.spec.exists() or folder.exit.exists()):
                # It was cut short before anything could have been started.
                shutil.rmtree(folder.path, ignore_errors=True)
                continue
            member = self._new(assigned)
            self._around.group.create_task(member.run_again())

    async def run(self) -> None:
        """Reconcile whenever something changed, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            self.reconcile()

    def reconcile(self) -> None:
        """Stop what should not run, and start what should and may."""
        wanted = self._wanted
        if wanted is None:
            return
        for key, member in list(self._members.items()):
            target = wanted.get(key)
            if member.alive and (target is None or target.desired == "stop"):
                member.stop()
            elif member.reported and target is None:
                del self._members[key]
        self._starts_waiting = False
        for key, assigned in wanted.items():
            if self._is_known(key):
                continue
            if assigned.desired == "stop":
                self._end_unstarted(assigned, ExitKind.STOPPED, "stopped before it was started")
            elif self._may_start(assigned):
                self._around.group.create_task(self._new(assigned).run())
            else:
                self._starts_waiting = True

    def _is_known(self, key: MemberKey) -> bool:
        if key in self._members:
            return True
        try:
            return self._folder.member(key).member.exists()
        except Refused as refused:
            _log.error("member ignored", extra={"reason": refused.message})
            return True

    def _may_start(self, assigned: AssignedMember) -> bool:
        now = self._around.clock.boottime_s()
        if not self._starts_allowed or now - self._renewed_s >= LOST_AFTER_S:
            return False
        return not set(assigned.gpus) & self.holders().keys()

    def _end_unstarted(self, assigned: AssignedMember, kind: ExitKind, reason: str) -> None:
        member = self._new(assigned)
        member.alive = False
        self._around.group.create_task(member.end_unstarted(kind, reason))

    def _new(self, assigned: AssignedMember) -> Member:
        key = key_of(assigned)
        member = Member(
            assigned,
            self._folder.member(key),
            self._around,
            on_gone=self._on_gone,
            on_reported=self._on_reported,
            gap_ms=self._gap_ms,
        )
        self._members[key] = member
        return member

    def _on_gone(self, member: Member, reaped_s: float | None) -> None:
        if reaped_s is not None and member.folder.started.exists():
            self._released_s.update(dict.fromkeys(member.assigned.gpus, reaped_s))

    def _on_reported(self, _member: Member) -> None:
        self._folder.forget_ended({str(key) for key in self._wanted or ()})
        self._settled.set()
        self._wake.set()

    def _gap_ms(self, assigned: AssignedMember, started_s: float) -> float | None:
        """Return how long the last of its GPUs was empty, where it had waited for them."""
        known = [self._released_s.get(index) for index in assigned.gpus]
        gaps = [started_s - released for released in known if released is not None]
        if not assigned.handover or not gaps or len(gaps) != len(known):
            return None
        return max(gaps) * 1000
