"""One member on this node, from its assignment to the acknowledged report of its end."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from whaleflux.agent.shell import shim_process
from whaleflux.agent.shell.environment import Node
from whaleflux.agent.shell.folders import MemberFolder, key_of, read_json
from whaleflux.agent.shell.logs import keep_tail
from whaleflux.agent.shell.outbox import Outbox
from whaleflux.agent.shell.preparation import Timing, prepare, timing_of
from whaleflux.agent.shell.shim_parts.kernel import write_atomically
from whaleflux.agent.shell.shim_process import ShimProcess, Started
from whaleflux.agent.shell.watcher import Watcher
from whaleflux.common.clock import Clock
from whaleflux.common.contracts.agent import ExitKind, MemberExited, MemberStarted
from whaleflux.common.contracts.assignment import (
    AssignedMember,
    CheckpointRef,
    log_file,
    log_offset_file,
)
from whaleflux.common.errors import Refused

STUCK_AFTER_S = 30.0
"""A member that outlives its grace by this much is said to be stuck: it is not fenced."""
STRAY_LOOK_S = 0.05
STRAY_LOOK_MOST_S = 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every member of a node shares."""

    node: Node
    outbox: Outbox
    clock: Clock
    group: asyncio.TaskGroup
    gpus_free: Callable[[tuple[int, ...]], Awaitable[None]]
    """Returns once the memory of these GPUs is free; raises Refused if it stays taken."""
    renewed_s: Callable[[], float] = lambda: float("-inf")
    """Moment of the last lease renewal, on CLOCK_BOOTTIME; `Members` knows it."""
    timing: Callable[[AssignedMember], Timing] = timing_of


class _Ended(Exception):
    """It was told to end before it had started."""


class Member:
    """Runs one member; `alive` until its last process is gone, `reported` when that is durable."""

    def __init__(
        self,
        assigned: AssignedMember,
        folder: MemberFolder,
        around: Surroundings,
        *,
        on_gone: Callable[["Member", float | None], None],
        on_reported: Callable[["Member"], None],
        gap_ms: Callable[[AssignedMember, float], float | None],
    ) -> None:
        """Call *on_gone* with the moment of the last reaping, if it is known for this boot."""
        self.assigned = assigned
        self.key = key_of(assigned)
        self.folder = folder
        self.alive = True
        self.reported = False
        self._around = around
        self._on_gone = on_gone
        self._on_reported = on_reported
        self._gap_ms = gap_ms
        self._process: ShimProcess | None = None
        self._ending: ExitKind | None = None
        self._watcher: Watcher | None = None

    def stop(self) -> None:
        """End it within its grace."""
        if self._ending is None:
            self._ending = ExitKind.STOPPED
            if self._process is not None:
                self._process.stop()
                self._watch_for_stuck(self.assigned.grace_s)

    def give_up(self) -> None:
        """End it at once: its node's lease is gone."""
        if self._ending is not ExitKind.FENCED:
            self._ending = ExitKind.FENCED
            if self._process is not None:
                self._process.kill()
                self._watch_for_stuck(0.0)

    async def run(self) -> None:
        """Start it and see it to its end."""
        try:
            self.folder.create(self.assigned)
            self._make_sure_wanted()
            await self._start()
        except _Ended:
            self._write_end(self._ending or ExitKind.STOPPED, "ended before it was started")
        except Refused as refused:
            self._write_end(ExitKind.NEVER_STARTED, refused.message)
        except OSError as error:
            await self._end_broken(f"the node cannot start it: {error}")
        except Exception as error:
            # One member that we cannot handle must not take the node's other members with it.
            _log.exception("member could not be run", extra={"member": str(self.key)})
            await self._end_broken(f"the agent failed: {error}")
        await self._report_end()

    async def _end_broken(self, reason: str) -> None:
        if self._process is None:
            self._write_end(ExitKind.NEVER_STARTED, reason)
        else:
            self._process.stop()
            await self._process.exited.wait()

    async def run_again(self) -> None:
        """Find it as an earlier agent left it, and see it to its end."""
        process = ShimProcess.attach(self.folder)
        if process is not None:
            self._process = process
            if self._ending is ExitKind.FENCED:
                process.kill()
            elif self._ending is not None:
                process.stop()
            await self._see_through(process, None)
        elif not self.folder.exit.exists() and shim_process.abandon(self.folder):
            self._write_end(ExitKind.NEVER_STARTED, "the agent ended before it was started")
        await self._report_end()

    async def end_unstarted(self, kind: ExitKind, reason: str) -> None:
        """Report the end of a member that never was."""
        self.folder.create(self.assigned)
        self._write_end(kind, reason)
        await self._report_end()

    async def _start(self) -> None:
        around = self._around
        resumed_from = await asyncio.to_thread(
            prepare,
            self.assigned,
            self.folder,
            node=around.node,
            timing=around.timing(self.assigned),
            renewed_s=around.renewed_s(),
        )
        self._make_sure_wanted()
        await around.gpus_free(self.assigned.gpus)
        self._make_sure_wanted()
        self._process = ShimProcess.spawn(self.folder)
        await self._see_through(self._process, resumed_from)

    def _make_sure_wanted(self) -> None:
        if self._ending is not None:
            raise _Ended

    async def _see_through(self, process: ShimProcess, resumed_from: CheckpointRef | None) -> None:
        started = await process.started()
        if started is not None:
            if not self.folder.told_start.exists():
                self._tell_started(started, resumed_from)
            self._watcher = self._new_watcher()
            following = self._around.group.create_task(self._watcher.follow())
            await process.exited.wait()
            following.cancel()
        await process.exited.wait()

    def _tell_started(self, started: Started, resumed_from: CheckpointRef | None) -> None:
        event = MemberStarted(
            at=self._around.clock.now(),
            node_id=self._around.node.node_id,
            run_id=self.key.run_id,
            attempt=self.key.attempt,
            rank=self.key.rank,
            pid=started.pid,
            handover_gap_ms=self._gap_ms(self.assigned, started.boottime_s),
            resumed_from=resumed_from,
        )
        self._around.outbox.post(
            event, about=self.key.run_id, lane=str(self.key), msg_id=f"{self.key}.started"
        )
        self.folder.told_start.touch()

    def _new_watcher(self) -> Watcher:
        return Watcher(
            self.assigned,
            self.key,
            self.folder,
            node=self._around.node,
            outbox=self._around.outbox,
            clock=self._around.clock,
        )

    async def _report_end(self) -> None:
        """Say that the GPUs are empty, after everything that the program said before."""
        if read_json(self.folder.exit) is None:
            await self._sweep_strays()
            self._write_end(ExitKind.FAILED, self._why_lost())
        end = read_json(self.folder.exit) or {}
        self.alive = False
        same_boot = end.get("boot_id") == self._around.node.boot_id
        self._on_gone(self, float(end["boottime_s"]) if same_boot else None)
        if self._watcher is None and self.folder.started.exists():
            self._watcher = self._new_watcher()
        if self._watcher is not None:
            try:
                await self._watcher.finish()
            except Exception:
                _log.exception("last reports were lost", extra={"member": str(self.key)})
        acked = self._around.outbox.post(
            self._exited(end),
            about=self.key.run_id,
            lane=str(self.key),
            msg_id=f"{self.key}.exited",
        )
        keeping = self._around.group.create_task(self._keep_tail())
        await acked
        self.folder.told_exit.touch()
        self.reported = True
        self._on_reported(self)
        await keeping
        await asyncio.to_thread(self.folder.tidy)

    def _exited(self, end: dict[str, object]) -> MemberExited:
        code, number = end.get("exit_code"), end.get("signal")
        said = None if self._watcher is None else self._watcher.tail.reported
        return MemberExited(
            at=self._around.clock.now(),
            node_id=self._around.node.node_id,
            run_id=self.key.run_id,
            attempt=self.key.attempt,
            rank=self.key.rank,
            kind=ExitKind(str(end["kind"])),
            exit_code=code if isinstance(code, int) else None,
            signal=number if isinstance(number, int) else None,
            reason=str(end.get("reason", "")),
            last_step=None if said is None else said.step,
            metrics={} if said is None else dict(said.metrics),
        )

    def _write_end(self, kind: ExitKind, reason: str) -> None:
        """Write what a shim would have written, so that no later agent starts it."""
        node = self._around.node
        fields = {
            "kind": kind.value,
            "reason": reason,
            "boottime_s": self._around.clock.boottime_s(),
            "boot_id": node.boot_id,
        }
        write_atomically(str(self.folder.exit), json.dumps(fields), durable=True)

    def _why_lost(self) -> str:
        claim = read_json(self.folder.claim) or {}
        if claim.get("boot_id") != self._around.node.boot_id:
            return "the node was restarted while it ran"
        return "its shim was killed; what it had started was killed too"

    async def _sweep_strays(self) -> None:
        wait_s = STRAY_LOOK_S
        while shim_process.kill_strays(self.folder):
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, STRAY_LOOK_MOST_S)

    async def _keep_tail(self) -> None:
        member, node = self.assigned, self._around.node
        try:
            store = node.store(member.store)
            who = (member.run_id, member.attempt, member.rank)
            targets = store / log_file(*who), store / log_offset_file(*who)
            await asyncio.to_thread(keep_tail, self.folder.log, *targets)
        except (Refused, OSError) as error:
            _log.warning("log tail not kept", extra={"member": str(self.key), "reason": str(error)})

    def _watch_for_stuck(self, grace_s: float) -> None:
        def look() -> None:
            if self.alive:
                _log.error(
                    "member cannot be killed: its GPUs stay taken", extra={"member": str(self.key)}
                )

        asyncio.get_running_loop().call_later(grace_s + STUCK_AFTER_S, look)
