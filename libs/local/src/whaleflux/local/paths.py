"""Where the embedded stack keeps its files.

<state>/lock                 held by the supervisor
<state>/stack.json           addresses for people and programs
<state>/processes.json       every child with its pid and start time
<state>/api-key              the first key's secret, mode 0600
<state>/secrets.json         passwords of the bus accounts, mode 0600
<state>/tenant-<name>.json   a tenant's way to its events on the bus, mode 0600
<state>/logs/<name>.log      what each child said
<state>/nats/                the bus's store (kept over restarts)
<state>/services/<name>/     a service's own disposable files
<state>/nodes/<node>/        a node's own root; nothing in it is shared
<state>/store/               the one folder that all nodes reach
"""

import os
from dataclasses import dataclass
from pathlib import Path

from whaleflux.common.errors import Refused


@dataclass(frozen=True, slots=True)
class StatePaths:
    """The files below one state folder."""

    root: Path

    @property
    def lock(self) -> Path:
        """The file whose lock says that a stack is up."""
        return self.root / "lock"

    @property
    def stack(self) -> Path:
        """Addresses, written once the stack is ready."""
        return self.root / "stack.json"

    @property
    def processes(self) -> Path:
        """The children, for `status` and for sweeping up after a crash."""
        return self.root / "processes.json"

    @property
    def api_key(self) -> Path:
        """The first API key."""
        return self.root / "api-key"

    @property
    def secrets(self) -> Path:
        """Passwords of the bus accounts."""
        return self.root / "secrets.json"

    def tenant(self, name: str) -> Path:
        """Address and password with which a tenant's own programs subscribe to events."""
        return self.root / f"tenant-{name}.json"

    @property
    def fleet(self) -> Path:
        """The fleet that this state was made with."""
        return self.root / "fleet.json"

    @property
    def logs(self) -> Path:
        """One log file for each child."""
        return self.root / "logs"

    @property
    def nats(self) -> Path:
        """The bus's configuration and store."""
        return self.root / "nats"

    @property
    def valkey(self) -> Path:
        """Valkey's working folder."""
        return self.root / "valkey"

    @property
    def store(self) -> Path:
        """The default store."""
        return self.root / "store"

    def log(self, name: str) -> Path:
        """Return the log file of the child called *name*."""
        return self.logs / f"{name}.log"

    def service(self, name: str) -> Path:
        """Return the folder of a service's own files."""
        return self.root / "services" / name

    def node(self, name: str) -> Path:
        """Return the root of a node."""
        return self.root / "nodes" / name

    def prepare(self) -> None:
        """Make the folders.

        Raises:
            Refused: A folder cannot be made or written to.

        """
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in (self.logs, self.nats, self.valkey, self.store):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise Refused(
                f"The state folder {self.root} cannot be made: {error.strerror}; "
                "name another with --state.",
                code="state_folder",
            ) from error
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise Refused(
                f"The state folder {self.root} cannot be written to; name another with --state.",
                code="state_folder",
            )


def default_state() -> Path:
    """Return where state lies when nobody says otherwise."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "whaleflux" / "default"


def write_private(path: Path, text: str) -> None:
    """Replace *path* by *text* at once, readable by its owner only."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    scratch.replace(path)
