"""What every route needs: the caller's key, the views, and how an id or a name is found."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from whaleflux.common.bus import Bus
from whaleflux.common.errors import Refused
from whaleflux.gateway.core.access import Permission, require
from whaleflux.gateway.core.state import Key
from whaleflux.gateway.core.view import Document
from whaleflux.gateway.shell.blobs import Blobs
from whaleflux.gateway.shell.decisions import Decisions
from whaleflux.gateway.shell.feed import Feed
from whaleflux.gateway.shell.keys import Keys
from whaleflux.gateway.shell.logs import Logs
from whaleflux.gateway.shell.submission import Submission
from whaleflux.gateway.shell.view_store import ViewStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything the routes are made of."""

    bus: Bus
    keys: Keys
    views: ViewStore
    submission: Submission
    decisions: Decisions
    feed: Feed
    blobs: Blobs
    logs: Logs


class Gate:
    """One request's caller and the parts that serve it."""

    def __init__(self, parts: Parts, key: Key) -> None:
        """Serve *key* by *parts*."""
        self.parts = parts
        self.key = key

    def need(self, permission: Permission) -> None:
        """Pass, or refuse and say which permission is missing."""
        require(self.key, permission)

    async def workload(self, id_or_name: str) -> Document:
        """Return the caller's workload by id, or by name where only one has it.

        Raises:
            Refused: There is none (`not_found`) or several (`ambiguous_name`).

        """
        found = await self.parts.views.document("workload", id_or_name)
        if found is not None and found["tenant"] == self.key.tenant:
            return found
        ids = await self.parts.views.ids_of_name(self.key.tenant, id_or_name)
        if len(ids) > 1:
            raise Refused(
                f"{len(ids)} workloads are called {id_or_name!r}; say which by its id, newest "
                f"first: {', '.join(ids[:5])}.",
                code="ambiguous_name",
            )
        if ids:
            named = await self.parts.views.document("workload", ids[0])
            if named is not None:
                return named
        raise Refused(
            f"There is no workload {id_or_name!r}; GET /v1/workloads lists yours.",
            code="not_found",
        )

    async def run(self, id_: str) -> Document:
        """Return the caller's run.

        Raises:
            Refused: code `not_found`.

        """
        found = await self.parts.views.document("run", id_)
        if found is None or found["tenant"] != self.key.tenant:
            raise Refused(f"There is no run {id_!r}.", code="not_found")
        return found

    async def runs(self, workload: Document) -> list[Document]:
        """Return the workload's runs, in the order they were queued."""
        return await self.parts.views.documents("run", workload["runs"])


async def gate(request: Request) -> Gate:
    """Identify the caller.

    Raises:
        Refused: code `unauthenticated`.

    """
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret:
        raise Refused(
            "This needs an API key: send 'Authorization: Bearer wf_live_…'.",
            code="unauthenticated",
        )
    parts: Parts = request.app.state.parts
    return Gate(parts, await parts.keys.identify(secret.strip()))


Gated = Annotated[Gate, Depends(gate)]

PRIVATE = ("body_hash", "seq", "kept", "closed")


def shown(document: Document) -> dict[str, Any]:
    """Return a document as callers see it."""
    return {key: value for key, value in document.items() if key not in PRIVATE}
