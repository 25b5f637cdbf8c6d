"""The views in Valkey: documents, indices, and how far each log has been folded in."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from whaleflux.common.contracts.scheduler import WorkloadRefused, WorkloadSubmitted
from whaleflux.common.valkey_cache import Cache, Op
from whaleflux.gateway.core.view import Document, View, changed, fold, keys
from whaleflux.gateway.core.view import Shown as Event

SCHEMA = "2"
"""Raised when documents change their shape: everything is then folded anew."""
_SCHEMA_KEY = "view:schema"
_NODES = "view:nodes"


class ViewStore:
    """Reads and writes views."""

    def __init__(self, cache: Cache) -> None:
        """Keep views in *cache*."""
        self._cache = cache

    async def prepare(self) -> None:
        """Forget views of another schema; a Valkey that was emptied has none."""
        if await self._cache.get(_SCHEMA_KEY) != SCHEMA.encode():
            await self._cache.delete_prefix("view:")
            await self._cache.apply([Op("set", _SCHEMA_KEY, SCHEMA)])

    async def position(self, stream: str) -> int:
        """Return the last sequence of *stream* that is folded in."""
        kept = await self._cache.get(f"view:position:{stream}")
        return 0 if kept is None else int(kept)

    async def project(
        self, stream: str, events: Sequence[tuple[int, Event | None]], *, after_seq: int
    ) -> list[str]:
        """Fold *events* of *stream*, all or nothing, together with the new position.

        Return the workloads on which they decide.

        Raises:
            Conflict: Somebody else has folded on from *after_seq*; nothing was changed.

        """
        view = await self._load([event for _, event in events if event is not None])
        for seq, event in events:
            if event is not None:
                fold(view, event, seq)
        ops: list[Op] = []
        for kind, id_, document in changed(view):
            ops += _store(kind, id_, document)
        position = f"view:position:{stream}"
        ops.append(Op("set", position, str(events[-1][0])))
        stands = str(after_seq).encode() if after_seq else None
        await self._cache.apply(ops, only_if={position: stands})
        return [
            event.workload_id
            for _, event in events
            if isinstance(event, WorkloadSubmitted | WorkloadRefused)
        ]

    async def _load(self, events: Sequence[Event]) -> View:
        wanted = sorted({key for event in events for key in keys(event)})
        bodies = await self._cache.get_many([_key(kind, id_) for kind, id_ in wanted])
        view = View()
        for (kind, id_), body in zip(wanted, bodies, strict=True):
            if body is not None:
                view.of(kind)[id_] = from_json(body)
        return view

    async def document(self, kind: str, id_: str) -> Document | None:
        """Return one document, or None."""
        body = await self._cache.get(_key(kind, id_))
        return None if body is None else from_json(body)

    async def documents(self, kind: str, ids: Sequence[str]) -> list[Document]:
        """Return the documents that exist, in the order of *ids*."""
        bodies = await self._cache.get_many([_key(kind, id_) for id_ in ids])
        return [from_json(body) for body in bodies if body is not None]

    async def workload_page(
        self, tenant: str, *, name: str | None = None, below: float | None, limit: int
    ) -> list[tuple[str, float]]:
        """Return (id, cursor) of a tenant's workloads (called *name*), newest first."""
        index = f"view:workloads:{tenant}" if name is None else _name(tenant, name)
        return await self._cache.range_by_score(index, below=below, limit=limit)

    async def ids_of_name(self, tenant: str, name: str) -> list[str]:
        """Return the workloads called *name*, newest first."""
        found = await self._cache.range_by_score(_name(tenant, name), below=None, limit=20)
        return [id_ for id_, _ in found]

    async def nodes(self) -> list[Document]:
        """Return all nodes by name."""
        found = await self._cache.range_by_score(_NODES, below=None, limit=100_000)
        return await self.documents("node", sorted(id_ for id_, _ in found))

    async def samples(self, uuids: Sequence[str]) -> Mapping[str, Document]:
        """Return telemetry's newest figures by GPU; a GPU without any is left out."""
        bodies = await self._cache.get_many([f"tel:gpu:{uuid}" for uuid in uuids])
        return {
            uuid: from_json(body)
            for uuid, body in zip(uuids, bodies, strict=True)
            if body is not None
        }


def _key(kind: str, id_: str) -> str:
    return f"view:{kind}:{id_}"


def _name(tenant: str, name: str) -> str:
    return f"view:name:{tenant}:{name}"


def _store(kind: str, id_: str, document: Mapping[str, Any]) -> list[Op]:
    ops = [Op("set", _key(kind, id_), json.dumps(document, separators=(",", ":")))]
    if kind == "workload":
        seq = float(document["seq"])
        ops.append(Op("zadd", f"view:workloads:{document['tenant']}", id_, seq))
        ops.append(Op("zadd", _name(document["tenant"], document["name"]), id_, seq))
    elif kind == "node":
        ops.append(Op("zadd", _NODES, id_, 0.0))
    return ops
