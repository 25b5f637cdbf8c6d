"""What a member is kept in and what it says: its cgroup and its log file."""

import os
from collections.abc import Mapping

from whaleflux.agent.shell.shim_parts.kernel import write_quietly

READ_BYTES = 262_144
READS_MAX = 64
"""Pieces of log moved before signals are looked at again."""
CGROUP_ROOT = "/sys/fs/cgroup"


class Cgroup:
    """The member's own cgroup v2, where the system lets us make one."""

    def __init__(self, name: str) -> None:
        self.path = ""
        try:
            with open("/proc/self/cgroup", encoding="utf-8") as file:
                own = [line[3:].strip() for line in file if line.startswith("0::")]
            if own and os.path.exists(f"{CGROUP_ROOT}/cgroup.controllers"):
                path = f"{CGROUP_ROOT}{own[0].rstrip('/')}/whaleflux-{name}"
                os.mkdir(path)
                self.path = path
        except OSError:
            self.path = ""

    def limit(self, spec: Mapping[str, str]) -> None:
        """Set the limits that *spec* names, as far as the controllers are there."""
        for key, file in (("memory_max_bytes", "memory.max"), ("cpu_max", "cpu.max")):
            if self.path and spec.get(key):
                self._write(file, spec[key])

    def join(self) -> None:
        """Move the calling process in."""
        if self.path:
            self._write("cgroup.procs", "0")

    def kill(self) -> None:
        """Kill whatever is inside, forks in flight included."""
        if self.path:
            self._write("cgroup.kill", "1")

    def remove(self) -> None:
        """Remove it once empty."""
        if self.path:
            try:
                os.rmdir(self.path)
            except OSError:
                return

    def _write(self, file: str, value: str) -> None:
        write_quietly(f"{self.path}/{file}", value)


class Pump:
    """Moves the member's output into its log file, up to a limit, and never blocks it."""

    def __init__(self, path: str, bytes_max: int) -> None:
        self.source, self.sink = os.pipe()
        os.set_blocking(self.source, False)
        self._log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._left = bytes_max - os.fstat(self._log).st_size
        self._limit = bytes_max
        self.truncated = False
        self.open = True

    def move(self) -> None:
        """Take what is there; drop what the limit or a full disk does not let us keep."""
        for _ in range(READS_MAX):
            try:
                piece = os.read(self.source, READ_BYTES)
            except BlockingIOError:
                return
            if not piece:
                self.open = False
                return
            self._keep(piece)

    def _keep(self, piece: bytes) -> None:
        if self.truncated:
            return
        if len(piece) > self._left:
            self.truncated = True
            note = f"\n[whaleflux: log limit of {self._limit} bytes reached; the rest is dropped]\n"
            piece = piece[: max(0, self._left)] + note.encode()
        self._left -= len(piece)
        try:
            os.write(self._log, piece)
        except OSError:
            self.truncated = True
