"""What a node should be running now, and where its files lie.

An assignment is the *full* set of members of a node. Its version is the sequence of the newest
scheduler event that touches the node; an agent keeps the highest (incarnation, version) on disk
and ignores older ones. Paths are relative to the store's root (or, for `local`, the node's).
"""

from collections.abc import Mapping
from typing import Literal

from whaleflux.common.contracts.base import Message, Part
from whaleflux.common.contracts.workload import Fencing

STORE_LOCAL = "local"


class CheckpointRef(Part):
    """A resumable state that an attempt's own agent registered."""

    attempt: int
    step: int
    path: str
    manifest_sha256: str
    safe: bool
    """True only in a store that other nodes reach."""


class AssignedMember(Part):
    """One member of a gang on this node: everything its agent needs to start it."""

    run_id: str
    attempt: int
    rank: int
    world_size: int
    workload_id: str
    tenant: str
    project: str
    phase: str
    iteration: int
    role: str | None
    desired: Literal["run", "stop"]
    gpus: tuple[int, ...]
    """Indices of this node's GPUs; empty for work without accelerators."""
    gpu_type: str | None
    handover: bool
    """True when this run was already waiting when its GPUs were released."""
    nodes: tuple[str, ...]
    """All nodes of the gang, by rank."""
    master_port: int
    store: str
    setup: str
    run: str
    envs: Mapping[str, str]
    workdir: str | None
    inputs: Mapping[str, str]
    """Phase name → output folder of the run it reads."""
    resume_from: tuple[CheckpointRef, ...]
    """Newest first; the agent takes the first that verifies."""
    grace_s: float
    fencing: Fencing
    max_runtime_s: float | None


class Assignment(Message):
    """The full set of members that a node should be running now."""

    type: Literal["scheduler.assignment.v1"] = "scheduler.assignment.v1"
    node_id: str
    incarnation: int
    version: int
    members: tuple[AssignedMember, ...]


def attempt_folder(run_id: str, attempt: int) -> str:
    """Return the folder of one attempt; `checkpoints`, `output` and `logs` lie in it."""
    return f"runs/{run_id}/a{attempt}"


def checkpoint_folder(run_id: str, attempt: int) -> str:
    """Return what `WHALEFLUX_CHECKPOINT_DIR` points at."""
    return f"{attempt_folder(run_id, attempt)}/checkpoints"


def output_folder(run_id: str, attempt: int) -> str:
    """Return what `WHALEFLUX_OUTPUT_DIR` points at."""
    return f"{attempt_folder(run_id, attempt)}/output"


def log_file(run_id: str, attempt: int, rank: int) -> str:
    """Return where the tail of a member's log goes when it ends."""
    return f"{attempt_folder(run_id, attempt)}/logs/rank{rank}.log"


def log_offset_file(run_id: str, attempt: int, rank: int) -> str:
    """Return where stands how many bytes of the log come before its kept tail; none when all."""
    return f"{attempt_folder(run_id, attempt)}/logs/rank{rank}.offset"


def blob_file(sha256: str) -> str:
    """Return where an uploaded archive lies."""
    return f"blobs/{sha256[:2]}/{sha256}.tar.gz"
