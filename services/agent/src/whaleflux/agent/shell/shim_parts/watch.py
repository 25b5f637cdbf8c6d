"""The watch over one member, from its first process to its last."""

import os
import pwd
import select
from contextlib import suppress

from whaleflux.agent.shell.shim_parts import kernel
from whaleflux.agent.shell.shim_parts.confine import Cgroup, Pump
from whaleflux.agent.shell.shim_parts.kernel import boottime_s, to_json, write_atomically

LEFTOVER_GRACE_S = 2.0
"""What the program left behind gets between SIGTERM and SIGKILL, if its grace is not shorter."""
HARD_MARGIN_S = 0.5
"""SIGKILL goes out this long before the fence deadline, so that death precedes it."""
REMIND_FIRST_S = 0.1
"""First look for processes that SIGTERM missed; each further one comes twice as late."""
SWEEP_FIRST_S = 0.01
SWEEP_MOST_S = 1.0
"""Time between two SIGKILL sweeps grows from one to the other: a stuck process costs nothing."""

EXIT_SAVED = 85
EXIT_DO_NOT_RETRY = 93


class Shim:
    """Watches one member from its first process to its last."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.spec = kernel.read_pairs(f"{folder}/spec")
        self.boot_id = kernel.boot_id()
        self.grace_s = float(self.spec["grace_s"])
        self.fencing_s = float(self.spec["fencing_s"])
        self.margin_s = float(self.spec["margin_s"])
        self.renewed_s = float(self.spec["renewed_boottime_s"])
        runtime = self.spec.get("max_runtime_s")
        self.runtime_s = float(runtime) if runtime else None
        self.main = 0
        self.status: int | None = None
        self.ending = ""
        self.fencing = False
        self.kill_at: float | None = None
        self.sweep_s = SWEEP_FIRST_S
        self.told: dict[int, int] = {}
        self.remind_s = REMIND_FIRST_S
        self.remind_at = float("inf")
        self.reaped_s = boottime_s()
        self.runs_out_at: float | None = None

    def claim(self) -> bool:
        """Say that this process is the one that runs the member; False if another did."""
        fields = {
            "pid": os.getpid(),
            "starttime": int(kernel.stat_fields("self")[19]),
            "boot_id": self.boot_id,
        }
        temporary = f"{self.folder}/shim.{os.getpid()}"
        write_atomically(temporary, to_json(fields), durable=False)
        try:
            os.link(temporary, f"{self.folder}/shim.json")
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary)
        return True

    def run(self) -> None:
        """Start the member, see it and all its descendants end, and write down how."""
        self._prepare()
        environment = kernel.read_pairs(f"{self.folder}/env")
        os.unlink(f"{self.folder}/env")
        error = self._start(environment)
        if error:
            os.waitpid(self.main, 0)
            self._finish("never_started", error)
            return
        self._tell_started()
        self._watch()
        self.pump.move()
        self._finish(self._kind(), "")

    def _prepare(self) -> None:
        os.umask(0o077)
        self.wake = kernel.hear_signals()
        self.subreaper = kernel.become_subreaper()
        self.timer = kernel.BootTimer()
        kernel.write_quietly("/proc/self/oom_score_adj", "-900")
        self.cgroup = Cgroup(os.path.basename(self.folder))
        self.cgroup.limit(self.spec)
        self.pump = Pump(self.spec["log"], int(self.spec["log_bytes_max"]))
        self.poll = select.poll()
        for descriptor in (self.wake, self.pump.source, self.timer.descriptor):
            if descriptor >= 0:
                self.poll.register(descriptor, select.POLLIN)

    def _start(self, environment: dict[str, str]) -> str:
        """Fork and execute the member; return why that failed, or nothing."""
        said, say = os.pipe()
        own = os.getpid()
        self.main = os.fork()
        if self.main == 0:
            try:
                self._become_member(own, environment)
            except BaseException as problem:
                os.write(say, str(problem).encode()[:4096])
            finally:
                os._exit(127)
        os.close(say)
        os.close(self.pump.sink)
        error = os.read(said, 4096).decode(errors="replace")
        os.close(said)
        self.started_s = boottime_s()
        if self.runtime_s is not None:
            self.runs_out_at = self.started_s + self.runtime_s
        return error

    def _become_member(self, shim: int, environment: dict[str, str]) -> None:
        # A session of its own is a scheduling group of its own, which `nice` alone does not reach.
        os.setsid()
        kernel.forget_signals()
        self._stand_back(int(self.spec.get("nice") or 0))
        self.cgroup.join()
        kernel.write_quietly("/proc/self/oom_score_adj", "0")
        if self.spec.get("user"):
            account = pwd.getpwnam(self.spec["user"])
            os.initgroups(account.pw_name, account.pw_gid)
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
        kernel.die_with_parent(shim)
        os.chdir(self.spec["cwd"])
        empty = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((empty, 0), (self.pump.sink, 1), (self.pump.sink, 2)):
            os.dup2(source, target)
        os.execve("/bin/bash", ["bash", self.spec["script"]], environment)

    def _stand_back(self, nice: int) -> None:
        if nice:
            os.nice(nice)
            kernel.write_quietly("/proc/self/autogroup", str(nice))

    def _tell_started(self) -> None:
        text = to_json({"pid": self.main, "boottime_s": self.started_s, "boot_id": self.boot_id})
        write_atomically(f"{self.folder}/started.json", text, durable=False)
        with suppress(OSError):  # The agent died meanwhile; its successor reads the file.
            os.write(1, f"{text}\n".encode())
        empty = os.open("/dev/null", os.O_RDWR)
        for target in (0, 1):
            os.dup2(empty, target)
        os.close(empty)

    def _watch(self) -> None:
        while self._reap():
            now = boottime_s()
            self._check_deadlines(now)
            wake_at = self._fence_soft()
            if self.runs_out_at is not None and not self.ending:
                wake_at = min(wake_at, self.runs_out_at)
            if self.kill_at is not None:
                wake_at = self.kill_at
                if now >= self.kill_at:
                    self._signal_all(kernel.SIGKILL)
                    self.cgroup.kill()
                    wake_at = now + self.sweep_s
                    self.sweep_s = min(self.sweep_s * 2, SWEEP_MOST_S)
                else:
                    if now >= self.remind_at:
                        self._remind(now)
                    wake_at = min(wake_at, self.remind_at)
                    if not self.fencing:
                        wake_at = min(wake_at, self._fence_soft())
            self._wait(wake_at)

    def _wait(self, until: float) -> None:
        """Sleep until a signal, output or *until* by CLOCK_BOOTTIME, suspend included."""
        self.timer.set(until)
        left_ms = max(0.0, until - boottime_s()) * 1000
        for descriptor, _ in self.poll.poll(min(left_ms + 1, 2**31 - 1)):
            if descriptor == self.pump.source:
                self.pump.move()
                if not self.pump.open:
                    self.poll.unregister(descriptor)
            elif descriptor == self.wake:
                for number in os.read(self.wake, 512):
                    self._hear(number)

    def _hear(self, number: int) -> None:
        if number == kernel.SIGTERM:
            self._end("stopped", self.grace_s)
        elif number == kernel.SIGINT:
            self._end("fenced", 0.0)
        elif number == kernel.SIGUSR1:
            for pid in kernel.descendants(os.getpid()):
                if kernel.reaction(pid, kernel.SIGUSR1) == "caught":
                    kernel.kill(pid, kernel.SIGUSR1)

    def _end(self, why: str, grace_s: float) -> None:
        """Ask everything to end, and set when it is made to."""
        kill_at = boottime_s() + grace_s
        if self.kill_at is None or kill_at < self.kill_at:
            self.kill_at = kill_at
        if self.status is None and (not self.ending or why == "fenced"):
            self.ending = why
        if grace_s > 0:
            self.told = {pid: kernel.born(pid) for pid in kernel.descendants(os.getpid())}
            for pid in self.told:
                kernel.kill(pid, kernel.SIGTERM)
            self.remind_s = REMIND_FIRST_S
            self.remind_at = boottime_s() + self.remind_s

    def _remind(self, now: float) -> None:
        """Tell again what SIGTERM cannot have reached.

        A shell's child loses a signal that comes between its fork and its exec. Whoever has no
        handler and is still there did not get it. Processes born since are left alone: a program
        may have started them in order to save.
        """
        for pid in kernel.descendants(os.getpid()):
            known = self.told.get(pid)
            missed = known is not None and known == kernel.born(pid)
            if missed and kernel.reaction(pid, kernel.SIGTERM) == "default":
                kernel.kill(pid, kernel.SIGTERM)
        self.remind_s *= 2
        self.remind_at = now + self.remind_s

    def _fence_soft(self) -> float:
        return self.renewed_s + self.fencing_s - self.margin_s

    def _check_deadlines(self, now: float) -> None:
        if not self.fencing and now >= self._fence_soft():
            self._read_fence()
            if now >= self._fence_soft():
                hard = self.renewed_s + self.fencing_s - min(HARD_MARGIN_S, self.margin_s / 2)
                self.fencing = True
                self._end("fenced", max(0.0, min(self.grace_s, hard - now)))
        if not self.ending and self.runs_out_at is not None and now >= self.runs_out_at:
            self._end("timed_out", self.grace_s)

    def _read_fence(self) -> None:
        import json  # Costs 6 ms, and is needed only once a deadline has passed.

        try:
            with open(self.spec["fence"], "rb") as file:
                kept = json.load(file)
            if kept["boot_id"] == self.boot_id:
                self.renewed_s = max(self.renewed_s, float(kept["renewed_boottime_s"]))
        except (OSError, ValueError, KeyError, TypeError):
            return  # Without proof of a renewal the member ends.

    def _reap(self) -> bool:
        """Collect what has ended; False once nothing is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                if self.status is not None and self.kill_at is None:
                    self._end("", min(LEFTOVER_GRACE_S, self.grace_s))
                return True
            self.reaped_s = boottime_s()
            if pid == self.main:
                self.status = status

    def _signal_all(self, number: int) -> None:
        for pid in kernel.descendants(os.getpid()):
            kernel.kill(pid, number)

    def _kind(self) -> str:
        code = os.waitstatus_to_exitcode(self.status or 0)
        if self.ending in ("fenced", "timed_out"):
            return self.ending
        if code == EXIT_SAVED:
            return "saved"
        if code == EXIT_DO_NOT_RETRY:
            return "do_not_retry"
        if self.ending:
            return self.ending
        return "done" if code == 0 else "failed"

    def _finish(self, kind: str, reason: str) -> None:
        code: int | None = None
        number: int | None = None
        if self.status is not None:
            said = os.waitstatus_to_exitcode(self.status)
            if said < 0:
                number = -said
            else:
                code = said
                number = said - 128 if 128 < said <= 192 else None  # Bash speaks of signals so.
        fields = {
            "kind": kind,
            "exit_code": code,
            "signal": number,
            "reason": reason,
            "boottime_s": self.reaped_s,
            "boot_id": self.boot_id,
            "log_truncated": self.pump.truncated,
            "subreaper": self.subreaper,
            "cgroup": bool(self.cgroup.path),
        }
        self.cgroup.remove()
        write_atomically(f"{self.folder}/exit.json", to_json(fields), durable=True)
