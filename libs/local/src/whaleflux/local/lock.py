"""One stack for each state folder, held by a lock that the kernel releases with its holder."""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from whaleflux.common.errors import Refused
from whaleflux.local.paths import StatePaths


@contextlib.contextmanager
def hold(paths: StatePaths) -> Iterator[None]:
    """Hold the state folder for as long as the block lasts.

    Raises:
        Refused: Another process holds it (code `already_up`).

    """
    descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Refused(f"A stack is already up in {paths.root}.", code="already_up") from error
        yield
    finally:
        os.close(descriptor)


def is_held(paths: StatePaths) -> bool:
    """Tell whether some process holds the state folder."""
    if not paths.lock.exists():
        return False
    try:
        with hold(paths):
            return False
    except Refused:
        return True
