"""Checkpoints of a gang: every rank writes its shard, rank 0 makes whole checkpoints of them.

All ranks see one checkpoint folder. Rank k keeps its newest shard in `shards/rank<k>.npz` and
replaces it at one stroke. Rank 0 copies all shards into a hidden folder, forces them to disk, and
renames the folder to `step-<n>`, where n is the step that *all* ranks have reached. A rank may
be ahead of n in it; each goes on from its own shard. A single process is a gang of one.
"""

import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rft.files import Arrays, Torn, read_array, read_arrays, sync_folder, write_arrays, write_whole

LOOK_EVERY_S = 0.02


@dataclass(frozen=True)
class Whole:
    """A complete checkpoint: the name of its folder, and the step that every rank has reached."""

    name: str
    step: int


class Shards:
    """One rank's view of the checkpoint folder that its gang shares."""

    def __init__(self, folder: Path, *, rank: int, world_size: int) -> None:
        self._folder = folder
        self._shards = folder / "shards"
        self._rank = rank
        self._world_size = world_size
        self._written = 0
        self._whole = 0

    def write(self, step: int, state: Arrays, *, last: bool) -> None:
        """Replace this rank's shard; *last* tells rank 0 that no newer one will follow."""
        self._shards.mkdir(exist_ok=True)
        told = {"step": step, "last": int(last), "world_size": self._world_size}
        numbers = {f"shard.{name}": np.array(value) for name, value in told.items()}
        write_arrays(self._shards / shard_name(self._rank), {**state, **numbers})
        self._written = step

    def assemble(self, *, wait_s: float = 0.0) -> Whole | None:
        """Return a checkpoint newer than all before, if the ranks' shards make one; rank 0 only.

        With *wait_s*, wait so long at most until every other rank has written its last shard.
        """
        self._wait_for_last(wait_s)
        if (
            self._written <= self._whole
            or min(self._others("step"), default=self._written) <= self._whole
        ):
            return None
        hidden = self._folder / ".assembling"
        shutil.rmtree(hidden, ignore_errors=True)
        hidden.mkdir()
        # Counted from the copies: a rank may have replaced its shard a moment ago.
        step = min(self._copy(rank, hidden) for rank in range(self._world_size))
        if step <= self._whole:
            return None
        sync_folder(hidden)
        name = f"step-{step:06d}"
        os.rename(hidden, self._folder / name)
        sync_folder(self._folder)
        self._whole = step
        return Whole(name, step)

    def _copy(self, rank: int, target: Path) -> int:
        copy = target / shard_name(rank)
        try:
            write_whole(copy, (self._shards / shard_name(rank)).read_bytes())
            return int(read_array(copy, "shard.step"))
        except (OSError, Torn):
            return -1

    def _wait_for_last(self, wait_s: float) -> None:
        pause = threading.Event()
        for _ in range(int(wait_s / LOOK_EVERY_S)):
            if all(self._others("last")):
                return
            pause.wait(LOOK_EVERY_S)

    def _others(self, field: str) -> list[int]:
        """Return what the other ranks' shards say; 0 where there is none yet."""
        found: list[int] = []
        for rank in set(range(self._world_size)) - {self._rank}:
            try:
                found.append(int(read_array(self._shards / shard_name(rank), f"shard.{field}")))
            except Torn:
                found.append(0)
        return found


def read_shard(folder: Path, *, rank: int, world_size: int) -> tuple[int, Arrays]:
    """Return the step and state of *rank* in a whole checkpoint.

    Raises:
        Torn: It is not whole, or was written by a gang of another size.

    """
    arrays = read_arrays(folder / shard_name(rank))
    told = {name: arrays.pop(f"shard.{name}") for name in ("step", "last", "world_size")}
    if int(told["world_size"]) != world_size:
        raise Torn(f"{folder} is of {int(told['world_size'])} ranks, this gang has {world_size}")
    return int(told["step"]), arrays


def shard_name(rank: int) -> str:
    """Return the name of the file that holds *rank*'s state."""
    return f"rank{rank}.npz"
