"""Publishes what each node should run, after the decision is in the log."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.assignment import Assignment
from whaleflux.common.log import Conflict, Table
from whaleflux.scheduler.core.assign import assignment
from whaleflux.scheduler.core.state import State

_log = logging.getLogger(__name__)

TOGETHER_MAX = 256
"""Publications on the way at once; the server drops what a stream cannot queue (10,000)."""
ATTEMPTS_MAX = 5
"""Writers race for one subject only around a change of leader."""


class Assignments:
    """The table `ASSIGNMENTS`, and which version of each node stands in it."""

    def __init__(
        self, table: Table, *, open_mailbox: Callable[[str], Awaitable[None]] | None = None
    ) -> None:
        """*open_mailbox* makes sure that a node's agent can wait for its assignment."""
        self._table = table
        self._open_mailbox = open_mailbox
        self._published: dict[str, int] = {}
        self._seqs: dict[str, int] = {}

    async def publish_all(self, state: State) -> None:
        """Compare every node with the table and publish what differs; for a new leader."""
        self._published.clear()
        self._seqs.clear()
        for node_id in sorted(state.nodes):
            standing = await self._standing(node_id)
            if standing is not None and standing.version == state.nodes[node_id].version:
                self._published[node_id] = standing.version
        await self.publish_changed(state)

    async def publish_changed(self, state: State) -> None:
        """Publish the assignment of every node that changed since its last publication."""
        changed = [
            assignment(state, node_id)
            for node_id, node in state.nodes.items()
            if self._published.get(node_id) != node.version
        ]
        # Together, because each waits for a disk: a gang's last node should not wait for its first.
        for some in _slices(changed, TOGETHER_MAX):
            await asyncio.gather(*(self._publish(wanted) for wanted in some))

    async def _publish(self, wanted: Assignment) -> None:
        node_id = wanted.node_id
        if node_id not in self._published and self._open_mailbox is not None:
            await self._open_mailbox(node_id)
        subject = subjects.assignment(node_id)
        body = wanted.model_dump_json().encode()
        for _ in range(ATTEMPTS_MAX):
            if node_id not in self._seqs:
                standing = await self._standing(node_id)
                if standing is not None and standing.version > wanted.version:
                    _log.warning("a newer assignment stands", extra={"node_id": node_id})
                    return
            try:
                self._seqs[node_id] = await self._table.put(
                    subject, body, expected_seq=self._seqs[node_id]
                )
            except Conflict:
                del self._seqs[node_id]
                continue
            self._published[node_id] = wanted.version
            return

    async def _standing(self, node_id: str) -> Assignment | None:
        kept = await self._table.get(subjects.assignment(node_id))
        self._seqs[node_id] = 0 if kept is None else kept[0]
        return None if kept is None else Assignment.model_validate_json(kept[1], extra="ignore")


def _slices(items: Sequence[Assignment], size: int) -> Iterator[Sequence[Assignment]]:
    return (items[start : start + size] for start in range(0, len(items), size))
