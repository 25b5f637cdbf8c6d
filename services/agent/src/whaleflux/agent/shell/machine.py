"""What a node is, besides its GPUs: processors, memory, the stores it reaches, and one agent."""

import fcntl
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from whaleflux.common.errors import Refused


def cpus() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


def memory_mib() -> int:
    """Return the machine's memory in MiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20


def reachable(stores: Mapping[str, str]) -> dict[str, Path]:
    """Return the roots of those stores that are folders in which a file can be made."""
    found: dict[str, Path] = {}
    for name, root in stores.items():
        try:
            with tempfile.TemporaryFile(dir=root):
                found[name] = Path(root).absolute()
        except OSError:
            continue
    return found


def hold_alone(lock: Path) -> int:
    """Keep any other agent from this node's folder while the returned descriptor is open.

    Raises:
        Refused: Another agent has it.

    """
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise Refused(
            f"another agent runs on {lock.parent}: stop it first", code="node_root_taken"
        ) from error
    return descriptor
