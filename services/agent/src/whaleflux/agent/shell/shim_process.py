"""A shim as the agent sees it: spawned now, or found again after the agent's own restart."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whaleflux.agent.shell.folders import MemberFolder, read_json
from whaleflux.agent.shell.shim_parts.kernel import boot_id, stat_fields, to_json

SHIM = Path(__file__).with_name("shim.py")
LOOK_AGAIN_S = 0.02
"""How often a re-attached shim that has not yet started its member is looked at."""


@dataclass(frozen=True, slots=True)
class Started:
    """The moment the program was executed."""

    pid: int
    boottime_s: float


class ShimProcess:
    """One living shim; `exited` is set in the moment it ends."""

    def __init__(self, folder: MemberFolder, pid: int, pidfd: int) -> None:
        """Watch *pidfd*, which this object owns from here on."""
        self.pid = pid
        self.exited = asyncio.Event()
        self._folder = folder
        self._pidfd = pidfd
        self._child: subprocess.Popen[bytes] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pidfd, self._on_exit)

    @classmethod
    def spawn(cls, folder: MemberFolder) -> "ShimProcess":
        """Start a shim on *folder*, which holds its spec and environment."""
        with open(folder.path / "shim.err", "wb") as errors:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SHIM), str(folder.path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                cwd="/",
                env={k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"},
            )
        process = cls(folder, child.pid, os.pidfd_open(child.pid))
        process._child = child
        return process

    @classmethod
    def attach(cls, folder: MemberFolder) -> "ShimProcess | None":
        """Find the shim that claimed *folder*, or None if it is gone."""
        claim = read_json(folder.claim)
        if claim is None or claim.get("boot_id") != boot_id():
            return None
        pid = int(claim.get("pid", 0))
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None
        if not _is_same(pid, claim):
            os.close(pidfd)
            return None
        return cls(folder, pid, pidfd)

    async def started(self) -> Started | None:
        """Return when the program was executed; None if the shim ended without doing so."""
        if self._child is not None and self._child.stdout is not None:
            await self._wait_readable(self._child.stdout.fileno())
            self._child.stdout.close()
        while (told := read_json(self._folder.started)) is None:
            if self.exited.is_set():
                return None
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self.exited.wait()
            except TimeoutError:
                continue
        return Started(int(told["pid"]), float(told["boottime_s"]))

    def stop(self) -> None:
        """Have the member end within its grace."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Have the member end at once, because its node was given up."""
        self._send(signal.SIGINT)

    def _send(self, number: int) -> None:
        if not self.exited.is_set():
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except ProcessLookupError:
                return

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        if self._child is not None:
            self._child.wait()
        os.close(self._pidfd)
        self.exited.set()

    async def _wait_readable(self, descriptor: int) -> None:
        ready = asyncio.Event()
        self._loop.add_reader(descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_reader(descriptor)


def _is_same(pid: int, claim: dict[str, Any]) -> bool:
    try:
        fields = stat_fields(pid)
    except OSError:
        return False
    return fields[0] not in "ZX" and int(fields[19]) == claim.get("starttime")


def abandon(folder: MemberFolder) -> bool:
    """Claim *folder* so that no shim can start its member any more; False if one has."""
    temporary = folder.path / f"abandon.{os.getpid()}"
    temporary.write_text(to_json({"pid": 0, "boot_id": "", "starttime": 0}))
    try:
        os.link(temporary, folder.claim)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def kill_strays(folder: MemberFolder) -> int:
    """Kill processes that a dead shim left behind, told by their environment; return how many."""
    # The report's path names the node's own folder too: other nodes of this machine stay unharmed.
    mark = f"WHALEFLUX_REPORT={folder.report}".encode()
    found = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read().split(b"\0") and stat_fields(name)[0] not in "ZX":
                    os.kill(int(name), signal.SIGKILL)
                    found += 1
        except OSError:
            continue
    return found
