"""What the shim asks of the kernel: clocks, /proc, atomic files, and few signals' names.

`_signal` is used because `signal` imports enum, which alone takes as long as the interpreter.
"""

import _signal as signal  # type: ignore[import-not-found]  # the C module behind `signal`, which costs 5 ms to import
import ctypes
import errno
import os
import time
from _thread import get_ident
from collections.abc import Mapping
from contextlib import suppress

SIGCHLD: int = signal.SIGCHLD
SIGINT: int = signal.SIGINT
SIGKILL: int = signal.SIGKILL
SIGTERM: int = signal.SIGTERM
SIGUSR1: int = signal.SIGUSR1
HEARD = (SIGCHLD, SIGTERM, SIGINT, SIGUSR1)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CLOCK_BOOTTIME = 7
_TFD_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK
_TFD_TIMER_ABSTIME = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def boottime_s() -> float:
    """Return CLOCK_BOOTTIME in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read_pairs(path: str) -> dict[str, str]:
    """Return the `KEY=value` entries of a NUL-separated file."""
    with open(path, "rb") as file:
        entries = file.read().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry)
    return {key: value for key, _, value in pairs}


def to_json(fields: Mapping[str, object]) -> str:
    """Return a flat JSON object of text, numbers, booleans and None."""
    return "{" + ", ".join(f'"{key}": {_json_value(value)}' for key, value in fields.items()) + "}"


def _json_value(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    plain = "".join(c if " " <= c <= "~" and c not in '"\\' else "?" for c in str(value))
    return f'"{plain}"'


def write_atomically(path: str, text: str, *, durable: bool) -> None:
    """Replace *path* by *text*; *durable* waits for the disk."""
    # Two threads may write the same file: one whose task was cancelled goes on in its thread.
    temporary = f"{path}.{os.getpid()}.{get_ident()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        left = text.encode()
        while left:
            left = left[os.write(descriptor, left) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(temporary, path)
    if durable:
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def stat_fields(pid: int | str) -> list[str]:
    """Return /proc/<pid>/stat from the state on (ppid is 1, start time is 19)."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def born(pid: int) -> int:
    """Return when process *pid* was started, in ticks since the boot; 0 if it is gone."""
    try:
        return int(stat_fields(pid)[19])
    except OSError:
        return 0


def descendants(root: int) -> list[int]:
    """Return all living descendants of process *root*, nearest first."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = stat_fields(name)
            except OSError:
                continue
            if fields[0] not in "ZX":
                children.setdefault(int(fields[1]), []).append(int(name))
            else:
                children.setdefault(int(fields[1]), [])
    found = list(children.get(root, ()))
    for pid in found:
        found += children.get(pid, ())
    return found


def reaction(pid: int, number: int) -> str:
    """Return what signal *number* does to process *pid*: `caught`, `ignored` or `default`.

    A process that is gone counts as `ignored`.
    """
    found = "ignored"
    with suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        found = "default"
        for line in file:
            if line[:7] in ("SigCgt:", "SigIgn:") and int(line[7:], 16) >> (number - 1) & 1:
                found = "caught" if line.startswith("SigCgt:") else "ignored"
    return found


def kill(pid: int, number: int) -> None:
    """Send a signal; a process that is gone, or is not ours to signal, is no error."""
    try:
        os.kill(pid, number)
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.EPERM):
            raise


def write_quietly(path: str, text: str) -> bool:
    """Write to a kernel file; False where that is not allowed."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return False
    return True


def boot_id() -> str:
    """Return what names this boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        return file.read().strip()


def become_subreaper() -> bool:
    """Have orphaned descendants handed to this process; False if the kernel refuses."""
    return bool(_LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def die_with_parent(parent: int) -> None:
    """Be killed when *parent* ends.

    Raises:
        RuntimeError: It has ended already.

    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise RuntimeError("the shim is gone")


def hear_signals() -> int:
    """Return a descriptor from which the numbers of arriving signals can be read."""
    source, sink = os.pipe()
    os.set_blocking(source, False)
    os.set_blocking(sink, False)
    for number in HEARD:
        signal.signal(number, _ignore)
    signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
    return source


def forget_signals() -> None:
    """Give a child the signals a program expects to start with."""
    signal.set_wakeup_fd(-1)
    for number in (*HEARD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


class BootTimer:
    """A descriptor that turns readable at a moment of CLOCK_BOOTTIME, suspend included."""

    def __init__(self) -> None:
        self.descriptor: int = _LIBC.timerfd_create(_CLOCK_BOOTTIME, _TFD_FLAGS)

    def set(self, at_s: float) -> None:
        """Arm it for *at_s*."""
        if self.descriptor >= 0:
            at_s = max(at_s, 0.001)
            parts = (ctypes.c_long * 4)(0, 0, int(at_s), int(at_s % 1 * 1e9))
            _LIBC.timerfd_settime(self.descriptor, _TFD_TIMER_ABSTIME, parts, None)


def _ignore(_number: int, _frame: object) -> None:
    """Exist, so that the signal reaches the descriptor of `hear_signals`."""
