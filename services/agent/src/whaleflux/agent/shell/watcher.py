"""Watches what one member's program reports, and registers its checkpoints."""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path

from whaleflux.agent.shell import checkpoints
from whaleflux.agent.shell.environment import Node
from whaleflux.agent.shell.folders import MemberFolder, MemberKey, read_json
from whaleflux.agent.shell.outbox import Outbox
from whaleflux.agent.shell.reports import ReportTail
from whaleflux.agent.shell.shim_parts.kernel import write_atomically
from whaleflux.common.clock import Clock
from whaleflux.common.contracts.agent import CheckpointRegistered, RunReported
from whaleflux.common.contracts.assignment import (
    STORE_LOCAL,
    AssignedMember,
    CheckpointRef,
    checkpoint_folder,
)

LOOK_EVERY_S = 0.25
"""How late a report or a checkpoint is noticed; one `stat` costs some 20 microseconds."""
SCAN_EVERY_S = 2.0
"""Between two looks for Hugging Face folders, which may be on a slow shared file system."""
REPORT_EVERY_S = 1.0

_log = logging.getLogger(__name__)


class Watcher:
    """Follows one member from its start until all it said is on its way."""

    def __init__(
        self,
        member: AssignedMember,
        key: MemberKey,
        folder: MemberFolder,
        *,
        node: Node,
        outbox: Outbox,
        clock: Clock,
    ) -> None:
        self.tail = ReportTail(folder.report)
        self._member = member
        self._key = key
        self._folder = folder
        self._node = node
        self._outbox = outbox
        self._clock = clock
        self._path = checkpoint_folder(member.run_id, member.attempt)
        self._root: Path = node.store(member.store) / self._path
        self._scan = checkpoints.HuggingFaceScan(self._root)
        self._registers = member.rank == 0
        # A successor of this agent knows from the disk what has been announced already.
        self._done: dict[str, int] = {
            k: int(v) for k, v in (read_json(folder.registered) or {}).items()
        }
        self._told_changes = 0
        self._reported_s = -REPORT_EVERY_S
        self._scanned_s = -SCAN_EVERY_S
        self._count = 0
        self._lock = asyncio.Lock()

    async def follow(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Take what is new since the last look."""
        async with self._lock:
            self.tail.look()
            await self._register_announced()
            now = self._clock.boottime_s()
            if self._registers and now - self._scanned_s >= SCAN_EVERY_S:
                self._scanned_s = now
                await self._register_recognised(program_gone=False)
            if self.tail.changes != self._told_changes and now - self._reported_s >= REPORT_EVERY_S:
                self._reported_s = now
                self._told_changes = self.tail.changes
                message = self._outbox.message(
                    self._report(), about=self._key.run_id, msg_id=self._report_id()
                )
                await self._outbox.try_once(message)

    async def finish(self) -> None:
        """Take the rest, now that the program is gone, and have it kept for sending."""
        async with self._lock:
            self.tail.finish()
            await self._register_announced()
            if self._registers:
                await self._register_recognised(program_gone=True)
            if self.tail.changes != self._told_changes:
                self._told_changes = self.tail.changes
                self._post(self._report(), self._report_id())
        if self.tail.bad_lines:
            _log.info(
                "report lines that could not be read",
                extra={"member": str(self._key), "lines": self.tail.bad_lines},
            )

    def _report(self) -> RunReported:
        said = self.tail.reported
        return RunReported(
            at=self._clock.now(),
            node_id=self._node.node_id,
            run_id=self._key.run_id,
            attempt=self._key.attempt,
            rank=self._key.rank,
            step=said.step,
            progress=said.progress,
            metrics=dict(said.metrics),
        )

    def _report_id(self) -> str:
        self._count += 1
        return f"{self._key}.report.{self._node.agent_id}.{self._count}"

    async def _register_announced(self) -> None:
        while self.tail.announced:
            name, step = self.tail.announced[0]
            if self._registers and self._done.get(name) != step:
                await self._register(name, step)
            self.tail.announced.pop(0)

    async def _register_recognised(self, *, program_gone: bool) -> None:
        def look() -> list[tuple[str, int]]:
            return self._scan.look(known=set(self._done), program_gone=program_gone)

        for name, step in await asyncio.to_thread(look):
            await self._register(name, step)

    async def _register(self, name: str, step: int) -> None:
        try:
            folder = checkpoints.locate(self._root, name)
            sealed = await asyncio.to_thread(_seal(folder, step, self._key.attempt))
        except (checkpoints.Torn, OSError) as error:
            _log.warning(
                "checkpoint not registered",
                extra={"member": str(self._key), "checkpoint": name, "reason": str(error)},
            )
            return
        event = CheckpointRegistered(
            at=self._clock.now(),
            node_id=self._node.node_id,
            run_id=self._key.run_id,
            checkpoint=CheckpointRef(
                attempt=self._key.attempt,
                step=step,
                path=f"{self._path}/{name}",
                manifest_sha256=sealed.manifest_sha256,
                safe=self._member.store != STORE_LOCAL,
            ),
            bytes=sealed.bytes,
        )
        self._post(event, f"{self._key}.checkpoint.{step}.{sealed.manifest_sha256[:16]}")
        self._done[name] = step
        write_atomically(str(self._folder.registered), json.dumps(self._done), durable=False)

    def _post(self, event: CheckpointRegistered | RunReported, msg_id: str) -> None:
        self._outbox.post(event, about=self._key.run_id, lane=str(self._key), msg_id=msg_id)


def _seal(folder: Path, step: int, attempt: int) -> Callable[[], checkpoints.Sealed]:
    return lambda: checkpoints.seal(folder, step=step, attempt=attempt)
