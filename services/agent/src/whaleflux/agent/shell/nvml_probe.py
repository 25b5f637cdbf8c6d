"""NVIDIA GPUs, looked at through a process that may hang without harm.

NVIDIA's library can block for ever when the driver is stuck, and a process that is stuck in the
driver cannot be killed. So every call is made by a child with a deadline; a child that misses it
is abandoned, never waited for, and there are never more than two of those.
"""

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from whaleflux.agent.shell.probe import NO_HOLDERS
from whaleflux.common.clock import Clock
from whaleflux.common.contracts.agent import Gpu
from whaleflux.common.contracts.telemetry import GpuSample, NodeSample

FIRST_WITHIN_S = 30.0
"""The first answer of a child: without persistence mode the driver wakes each card anew."""
ANSWER_WITHIN_S = 5.0
"""Every later answer; a healthy one takes milliseconds."""
RETRY_AFTER_S = 10.0
"""Between a child that failed and the next one."""
ABANDONED_MAX = 2
"""Children stuck in the driver; with so many, no more are started until one ends."""
STUCK = "nvml stuck"
CRASHED = "nvml process ended"

CHILD = "whaleflux.agent.shell.nvml_child"

_NAMES = (
    (re.compile(r"^([AH][128]00)\b.*\b(PCIE|NVL)\b.*"), r"\1-\2"),
    (re.compile(r"^(GEFORCE )?(RTX|GTX) ?(\d{4}) ?(TI|SUPER|D)?( SUPER)?( LAPTOP GPU)?$"), None),
    (re.compile(r"^RTX (A?\d{4})( ADA)?( GENERATION)?$"), None),
    (re.compile(r"^(GH200|GB200|GB300|[ABHLTVP]\d{1,3}[A-Z]?)\b.*"), r"\1"),
)
"""What the driver calls a card (without maker and series), and the name users write."""

_log = logging.getLogger(__name__)


def type_of(name: str) -> str:
    """Return the type that users write for a card that its driver calls *name*.

    A slower variant of the same chip (PCIe, NVL) is a type of its own. A card that is not in the
    table gets its name in capitals with dashes.
    """
    short = re.sub(r"^(NVIDIA|TESLA|GRID) +", "", name.strip().upper())
    short = re.sub(r"^(NVIDIA|TESLA|GRID) +", "", short)
    for pattern, replacement in _NAMES:
        match = pattern.match(short)
        if match is not None:
            if replacement is not None:
                return match.expand(replacement)
            short = short.removeprefix("GEFORCE ").removesuffix(" GENERATION")
            return re.sub(r"[^A-Z0-9]+", "", short)
    return re.sub(r"[^A-Z0-9._]+", "-", short).strip("-._") or "GPU"


class ChildFailed(Exception):
    """The child ended, or its answer cannot be read."""


class Child:
    """One process that talks to the library, and its two pipes."""

    def __init__(self) -> None:
        # A session of its own: a Ctrl-C in the agent's terminal is not meant for it.
        self.process = subprocess.Popen(
            [sys.executable, "-m", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stdout.fileno(), False)
        self._buffer = b""
        self._asked = 0
        self.answered = False

    async def ask(self, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Return the answer to *request*.

        Raises:
            TimeoutError: There is none within *timeout_s*.
            ChildFailed: The child is gone.

        """
        self._asked += 1
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[dict[str, Any]] = loop.create_future()
        loop.add_reader(self._stdout.fileno(), self._read, self._asked, answer)
        try:
            line = json.dumps({"id": self._asked, **request}).encode() + b"\n"
            os.write(self._stdin.fileno(), line)
            async with asyncio.timeout(timeout_s):
                found = await answer
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            raise ChildFailed(str(error)) from error
        finally:
            loop.remove_reader(self._stdout.fileno())
        self.answered = True
        return found

    def end(self) -> None:
        """Close the pipes and ask the kernel to kill the process; do not wait for it."""
        self.process.kill()
        self._stdin.close()
        self._stdout.close()

    def _read(self, number: int, answer: "asyncio.Future[dict[str, Any]]") -> None:
        try:
            piece = os.read(self._stdout.fileno(), 65_536)
        except BlockingIOError:
            return
        if answer.done():
            return
        if not piece:
            answer.set_exception(ChildFailed("its output ended"))
            return
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        for line in lines:
            try:
                reply = json.loads(line)
            except ValueError as error:
                answer.set_exception(ChildFailed(str(error)))
                return
            # The answer to a question that nobody waits for any more is passed over.
            if reply["id"] == number:
                answer.set_result(reply)
                return


class NvmlProbe:
    """Implements `Probe` with NVIDIA's library."""

    simulated = False

    def __init__(
        self,
        node_id: str,
        *,
        clock: Clock,
        first_within_s: float = FIRST_WITHIN_S,
        answer_within_s: float = ANSWER_WITHIN_S,
        retry_after_s: float = RETRY_AFTER_S,
    ) -> None:
        """Start nothing yet; the first question starts the child."""
        self._node_id = node_id
        self._clock = clock
        self._first_within_s = first_within_s
        self._answer_within_s = answer_within_s
        self._retry_after_s = retry_after_s
        self._lock = asyncio.Lock()
        self._child: Child | None = None
        self._abandoned: list[subprocess.Popen[bytes]] = []
        self._retry_at_s = 0.0
        self._error: str | None = None
        self._gpus: tuple[Gpu, ...] = ()
        self._faults: tuple[str, ...] = ()
        self._capabilities: Mapping[int, Mapping[str, str]] = {}

    @property
    def capabilities(self) -> Mapping[int, Mapping[str, str]]:
        """Per GPU and signal: `supported`, `unsupported`, `denied` or `error`."""
        return self._capabilities

    @property
    def abandoned(self) -> int:
        """How many children hang in the driver."""
        self._abandoned = [process for process in self._abandoned if process.poll() is None]
        return len(self._abandoned)

    async def inventory(self) -> tuple[Gpu, ...]:
        """Return the GPUs as they were last found; none when there is no driver."""
        reply = await self._ask({"op": "inventory"})
        if reply is not None:
            self._take_inventory(reply["gpus"])
        return self._gpus

    async def sample(self, holders: Mapping[int, str] = NO_HOLDERS) -> NodeSample:
        """Measure all GPUs, each call to the driver under a deadline."""
        if not self._gpus:
            await self.inventory()
        reply = await self._ask({"op": "sample"})
        found = {} if reply is None else {gpu["index"]: gpu for gpu in reply["gpus"]}
        if reply is not None:
            self._faults = _faults(reply["gpus"])
        return NodeSample(
            node_id=self._node_id,
            at=self._clock.now(),
            simulated=False,
            probe_error=self._error or "; ".join(self._faults) or None,
            gpus=tuple(
                GpuSample(
                    index=gpu.index,
                    uuid=gpu.uuid,
                    type=gpu.type,
                    run_id=holders.get(gpu.index),
                    **found.get(gpu.index, {}).get("values", {}),
                )
                for gpu in self._gpus
            ),
        )

    async def memory_used_mib(self, index: int) -> int | None:
        """Return the memory in use on GPU *index* in MiB, or None when that is not known."""
        reply = await self._ask({"op": "memory", "index": index})
        return None if reply is None else reply["used_mib"]

    async def close(self) -> None:
        """End the child; never wait for it."""
        if self._child is not None:
            self._drop(self._child)

    async def _ask(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the child's answer, or None with the reason in `_error`."""
        async with self._lock:
            child = self._ready_child()
            if child is None:
                return None
            timeout_s = self._answer_within_s if child.answered else self._first_within_s
            try:
                reply = await child.ask(request, timeout_s=timeout_s)
            except TimeoutError:
                self._fail(child, STUCK)
                return None
            except ChildFailed:
                self._fail(child, CRASHED)
                return None
            if reply["error"] is not None:
                self._fail(child, reply["error"])
                return None
            self._error = None
            return reply

    def _ready_child(self) -> Child | None:
        if self._child is not None:
            return self._child
        if self._clock.boottime_s() < self._retry_at_s:
            return None
        if self.abandoned >= ABANDONED_MAX:
            self._error = STUCK
            return None
        self._child = Child()
        return self._child

    def _fail(self, child: Child, reason: str) -> None:
        if reason != self._error:
            _log.warning("gpus cannot be measured", extra={"reason": reason})
        self._error = reason
        self._retry_at_s = self._clock.boottime_s() + self._retry_after_s
        self._drop(child)

    def _drop(self, child: Child) -> None:
        child.end()
        self._abandoned.append(child.process)
        self._child = None

    def _take_inventory(self, found: list[dict[str, Any]]) -> None:
        usable = [gpu for gpu in found if gpu["uuid"] and gpu["memory_mib"]]
        self._faults = _faults(found)
        self._capabilities = {gpu["index"]: gpu["capabilities"] for gpu in found}
        # A card that was seen before and is lost now still belongs to the node.
        known = {gpu.index: gpu for gpu in self._gpus}
        known |= {
            gpu["index"]: Gpu(
                index=gpu["index"],
                uuid=gpu["uuid"],
                type=type_of(gpu["name"]),
                memory_mib=gpu["memory_mib"],
            )
            for gpu in usable
        }
        self._gpus = tuple(known[index] for index in sorted(known))


def _faults(gpus: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(f"gpu {gpu['index']} {gpu['fault']}" for gpu in gpus if gpu["fault"])
