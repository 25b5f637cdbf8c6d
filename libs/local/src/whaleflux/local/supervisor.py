"""Keeps the stack's processes running, and ends all of them when asked or when it dies itself."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from whaleflux.common.errors import Unavailable
from whaleflux.local import bound_exec
from whaleflux.local.paths import StatePaths
from whaleflux.local.processes import ProcessRecord, record, write_records

log = logging.getLogger(__name__)

BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 5.0
STEADY_AFTER_S = 20.0
"""A child that lived this long starts again with the first backoff."""
RESTARTS_MAX = 8
"""Quick deaths in a row after which a child is left dead and `status` says so."""
STOP_GRACE_S = 12.0
"""Longest wait for a server or service after SIGTERM; they take a tenth of a second."""
STOP_GRACE_AGENT_S = 60.0
"""Longest wait for an agent, which waits for its members to save."""
KILL_GRACE_S = 12.0
"""Longest wait after SIGKILL, for a process that hangs in the kernel."""
LOG_TAIL_BYTES = 16_000


class Tier(IntEnum):
    """Order of stopping; a higher tier goes first."""

    SERVER = 0
    SERVICE = 1
    AGENT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """A process that should run."""

    name: str
    tier: Tier
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Child:
    spec: ChildSpec
    process: asyncio.subprocess.Process
    record: ProcessRecord
    deaths: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it is dead for good."""
    restart: bool = True


class Supervisor:
    """The parent of every process of one stack. Start children from the loop's thread only."""

    def __init__(self, paths: StatePaths, group: asyncio.TaskGroup) -> None:
        """Write logs and process records below *paths*; watch children in *group*."""
        self._paths = paths
        self._group = group
        self._children: dict[str, _Child] = {}
        self._stopping = asyncio.Event()

    @property
    def records(self) -> tuple[ProcessRecord, ...]:
        """The children that were started, the dead ones included."""
        return tuple(child.record for child in self._children.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all children."""
        return tuple(self._children)

    def pid(self, name: str) -> int:
        """Return the process id of the child called *name*."""
        return self._children[name].process.pid

    def has_ended(self, name: str) -> bool:
        """Tell whether the child called *name* is dead and will not be started again."""
        return self._children[name].ended.is_set()

    def deaths(self, name: str) -> int:
        """Return how often in a row the child called *name* died soon after its start."""
        return self._children[name].deaths

    def last_words(self, name: str) -> str:
        """Return the last sentence that the child called *name* said."""
        try:
            raw = self._paths.log(name).read_bytes()
        except OSError:
            return ""
        lines = raw[-LOG_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
        return _sentence(lines[-1]) if lines else ""

    async def start(self, spec: ChildSpec) -> None:
        """Start a child and keep it running."""
        process, entry = await self._execute(spec)
        child = _Child(spec, process, entry)
        self._children[spec.name] = child
        self._write_records()
        self._group.create_task(self._keep(child), name=f"keep {spec.name}")

    def replace(self, spec: ChildSpec) -> None:
        """From its next start on, run the child of this name by *spec*."""
        self._children[spec.name].spec = spec

    def kill_for_good(self, name: str) -> int:
        """SIGKILL the child called *name*, do not start it again; return its process id."""
        child = self._children[name]
        child.restart = False
        log.warning("child killed on purpose", extra={"child": name, "pid": child.process.pid})
        with contextlib.suppress(ProcessLookupError):
            child.process.send_signal(signal.SIGKILL)
        return child.process.pid

    async def stop(self) -> None:
        """End every child, tier by tier; returns when all of them are gone."""
        self._stopping.set()
        for tier in sorted(Tier, reverse=True):
            children = [c for c in self._children.values() if c.spec.tier is tier]
            await asyncio.gather(*(self._end(child) for child in children))
        for child in self._children.values():
            await child.ended.wait()

    async def _end(self, child: _Child) -> None:
        child.restart = False
        patience_s = STOP_GRACE_AGENT_S if child.spec.tier is Tier.AGENT else STOP_GRACE_S
        for number, grace_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, KILL_GRACE_S)):
            if child.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await child.process.wait()
                    return
            log.warning("child does not end", extra={"child": child.spec.name})

    async def _keep(self, child: _Child) -> None:
        try:
            await self._start_again_and_again(child)
        except OSError as error:
            raise Unavailable(
                f"{child.spec.name} cannot be started again: {error}.", code="part_down"
            ) from error
        finally:
            # Whoever stops the stack waits for this, also after a keeper failed.
            child.ended.set()

    async def _start_again_and_again(self, child: _Child) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            code = await child.process.wait()
            if self._stopping.is_set() or not child.restart:
                break
            child.deaths = 1 if loop.time() - began > STEADY_AFTER_S else child.deaths + 1
            log.warning(
                "child died",
                extra={"child": child.spec.name, "code": code, "deaths": child.deaths},
            )
            if child.deaths > RESTARTS_MAX:
                log.error("child given up", extra={"child": child.spec.name})
                break
            backoff_s = min(BACKOFF_FIRST_S * 2 ** (child.deaths - 1), BACKOFF_MAX_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff_s):
                    await self._stopping.wait()
            if self._stopping.is_set() or not child.restart:
                break
            child.process, child.record = await self._execute(child.spec)
            self._write_records()
            if self._stopping.is_set():
                await self._end(child)

    async def _execute(self, spec: ChildSpec) -> tuple[asyncio.subprocess.Process, ProcessRecord]:
        launcher = (sys.executable, "-I", "-S", str(Path(bound_exec.__file__).resolve()))
        bound = (str(int(signal.SIGTERM)), str(os.getpid()))
        with self._paths.log(spec.name).open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *launcher,
                *bound,
                *spec.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(spec.environment),
                # Its own session: Ctrl-C reaches the supervisor alone, which stops in order.
                start_new_session=True,
            )
        entry = record(spec.name, process.pid)
        # A child may be dead already; its record then matches no process.
        return process, entry or ProcessRecord(spec.name, process.pid, 0)

    def _write_records(self) -> None:
        own = record("supervisor", os.getpid())
        write_records(self._paths.processes, [*([own] if own else []), *self.records])


def _sentence(line: str) -> str:
    """Return what a line of a log says to people, whether it is JSON or not."""
    try:
        body = json.loads(line)
    except ValueError:
        return line.strip()
    if not isinstance(body, dict):
        return line.strip()
    words = [str(body.get(key) or "") for key in ("message", "reason", "error")]
    said = [word.strip().splitlines()[-1].strip(" |+-") for word in words if word.strip()]
    return ": ".join(part for part in said if part)
