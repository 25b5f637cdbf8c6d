"""A stack of one's own in a scratch folder, for the demo, benchmarks and tests."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from whaleflux.local.fleet import Node
from whaleflux.local.lock import hold
from whaleflux.local.paths import StatePaths
from whaleflux.local.processes import end, of_state, read_records
from whaleflux.local.stack import Addresses, Stack

SWEEP_GRACE_S = 12.0
"""A member's own grace and a little more."""


@dataclass(frozen=True, slots=True)
class Session:
    """A running stack and how long it took to become ready."""

    stack: Stack
    addresses: Addresses
    paths: StatePaths
    ready_s: float


@contextlib.asynccontextmanager
async def scratch_folder(*, keep: bool = False) -> AsyncIterator[StatePaths]:
    """Give a scratch state folder and end every process that still names it afterwards."""
    root = Path(tempfile.mkdtemp(prefix="whaleflux-"))
    try:
        yield StatePaths(root)
    finally:
        await end(of_state(root), grace_s=SWEEP_GRACE_S)
        if not keep:
            shutil.rmtree(root, ignore_errors=True)


@contextlib.asynccontextmanager
async def running_stack(paths: StatePaths, nodes: Sequence[Node]) -> AsyncIterator[Session]:
    """Bring a stack up below *paths* and take it down after the block.

    Raises:
        Refused: Something that is needed is missing here.
        Unavailable: A part does not come up.

    """
    paths.prepare()
    began = asyncio.get_running_loop().time()
    with hold(paths):
        # A supervisor that was killed may have left parts behind that hold the bus's files.
        await end(read_records(paths.processes), grace_s=SWEEP_GRACE_S)
        async with asyncio.TaskGroup() as group:
            stack = Stack(paths, nodes, group)
            try:
                addresses = await stack.start()
                ready_s = asyncio.get_running_loop().time() - began
                yield Session(stack, addresses, paths, ready_s)
            finally:
                await stack.stop()
