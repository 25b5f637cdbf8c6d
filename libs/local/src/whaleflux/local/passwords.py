"""Passwords of the embedded bus: drawn anew at each start, kept in one private file."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whaleflux.common.accounts import Login, Logins, nats_accounts
from whaleflux.common.errors import Unavailable
from whaleflux.local.paths import write_private

PASSWORD_BYTES = 24


@dataclass(frozen=True, slots=True)
class Passwords:
    """Who may connect to the bus, and with which password."""

    core: str
    system: str
    nodes: Mapping[str, str]
    tenants: Mapping[str, str]

    @classmethod
    def draw(cls, nodes: Sequence[str], tenants: Sequence[str]) -> "Passwords":
        """Return fresh passwords for the services, for each of *nodes* and each of *tenants*."""
        return cls(
            _draw(), _draw(), {node: _draw() for node in nodes}, {name: _draw() for name in tenants}
        )

    @classmethod
    def read(cls, path: Path) -> "Passwords":
        """Return the passwords of a running stack.

        Raises:
            Unavailable: They cannot be read.

        """
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise Unavailable(
                f"The passwords in {path} cannot be read; was the stack started by you?",
                code="passwords",
            ) from error

    def write(self, path: Path) -> None:
        """Keep the passwords where only their owner can read them."""
        write_private(path, json.dumps(asdict(self)))

    def logins(self) -> Logins:
        """Return everybody who may connect."""
        return Logins(
            core=Login("core", self.core),
            system=Login("sys", self.system),
            nodes={node: Login(f"node-{node}", word) for node, word in self.nodes.items()},
            tenants={name: Login(f"tenant-{name}", word) for name, word in self.tenants.items()},
        )

    def nats_accounts(self) -> dict[str, Any]:
        """Return the server's configuration of accounts and users."""
        return nats_accounts(self.logins())


def _draw() -> str:
    return secrets.token_urlsafe(PASSWORD_BYTES)
