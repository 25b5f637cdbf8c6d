"""What the verbs share: the client, opened when it is first needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from whaleflux.client.cli.terminal import say

if TYPE_CHECKING:
    from whaleflux.client.sync_client import Client


@dataclass(slots=True)
class Session:
    """One call of the command line."""

    context: str | None = None
    quiet: bool = False
    verbose: bool = False
    farewell: str = ""
    """What to say when the person presses Ctrl-C."""
    _client: Client | None = field(default=None, repr=False)

    @property
    def client(self) -> Client:
        """The gateway's client."""
        if self._client is None:
            from whaleflux.client.sync_client import Client

            self._client = Client(context=self.context)
        return self._client

    def note(self, text: str) -> None:
        """Say something that is neither data nor an error."""
        if not self.quiet:
            say(text)

    def close(self) -> None:
        """Give the connections back."""
        if self._client is not None:
            self._client.close()
            self._client = None


pass_session = click.make_pass_decorator(Session, ensure=True)
