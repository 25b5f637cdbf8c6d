"""The name under which this process competes for the leader lease.

A process that was killed leaves its lease behind for its whole time to live, in which no node is
answered; members with fast fencing would end themselves meanwhile. So whoever is started in its
place, with the same state folder, competes under the same name and has the lease at once. A lock
on the folder, which ends with the process, makes sure that the other one is really gone.
"""

import fcntl
from pathlib import Path
from typing import IO

from whaleflux.common.ids import Ids


class Holder:
    """A name that at most one living process has."""

    def __init__(self, folder: Path, ids: Ids) -> None:
        """Take over the name kept in *folder*, or another if a living process has that."""
        self.name = ids.new("failover")
        self._file: IO[str] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "failover.holder").open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return
        self._file = file
        file.seek(0)
        kept = file.read().strip()
        if kept:
            self.name = kept
            return
        file.write(self.name)
        file.flush()
