"""Folds the logs into views and into what tenants may know. One gateway does it at a time."""

import asyncio
import json
import logging
from collections.abc import Callable

from whaleflux.common.bus import Bus, BusMessage
from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.agent import RunReported
from whaleflux.common.contracts.scheduler import NodeJoined, RunQueued
from whaleflux.common.errors import Unavailable
from whaleflux.common.jetstream import JetStream
from whaleflux.common.lease import LeaderLease
from whaleflux.common.log import Conflict
from whaleflux.gateway.core.public import TYPE_PREFIX, Context, PublicEvent, publish
from whaleflux.gateway.core.view import Shown
from whaleflux.gateway.shell.decisions import Decisions
from whaleflux.gateway.shell.settings import IDLE_LOOK_S, PROJECT_EVENTS_MAX
from whaleflux.gateway.shell.sources import SourceLog, read_events, source_logs
from whaleflux.gateway.shell.view_store import ViewStore

HEADER_SOURCES = "Wf-Sources"
"""On each public message: how far every log had been told, this event included."""
SOURCE_URI = "/whaleflux"
TENANTS_KNOWN_MAX = 100_000
"""Runs whose tenant is remembered; others are looked up in the views."""

_log = logging.getLogger(__name__)


class Projector:
    """Keeps views and `PUB` up with the logs while its lease is held."""

    def __init__(
        self,
        *,
        bus: Bus,
        js: JetStream,
        views: ViewStore,
        decisions: Decisions,
        cell: str,
        operators: tuple[str, ...],
        say: Callable[[bool, str], None],
    ) -> None:
        """*operators* are the tenants that see nodes; *say* reports health."""
        self._bus = bus
        self._views = views
        self._decisions = decisions
        self._sources = source_logs(cell)
        self._js = js
        self._teller = Teller(js, views, self._sources, operators)
        self._say = say
        self._wake = asyncio.Event()

    async def run(self, lease: LeaderLease) -> None:
        """Project whenever *lease* is held, until cancelled."""
        await self._bus.subscribe("wf.evt.>", self._on_event)
        while True:
            if not lease.held:
                # Whatever this one had to complain about is another's from now on.
                self._say(True, "another gateway projects")
            await lease.wait_held()
            try:
                await self._project_all(lease)
            except Unavailable as error:
                self._say(False, error.message)
                await asyncio.sleep(IDLE_LOOK_S)

    async def _on_event(self, _message: BusMessage) -> None:
        self._wake.set()

    async def _project_all(self, lease: LeaderLease) -> None:
        await self._views.prepare()
        await self._teller.restore()
        self._say(True, "projecting")
        while lease.held:
            self._wake.clear()
            more = await self.project_once()
            if more:
                continue
            try:
                async with asyncio.timeout(IDLE_LOOK_S):
                    await self._wake.wait()
            except TimeoutError:
                # Valkey may have been emptied while nothing happened; this notices.
                await self._views.prepare()

    async def project_once(self) -> bool:
        """Fold and tell what is new; return whether there was anything."""
        found = False
        for source in self._sources:
            position = await self._views.position(source.stream)
            events = await read_events(self._js, source, after_seq=position)
            if events:
                try:
                    decided = await self._views.project(source.stream, events, after_seq=position)
                    await self._decisions.tell(decided)
                except Conflict:
                    _log.info("another gateway folded first, looking again")
                    return True
                found = True
            if len(events) == PROJECT_EVENTS_MAX:
                # Later logs, and what is told, refer to what this one still has to say.
                return True
        return await self._teller.tell_once() or found


class Teller:
    """Writes `PUB`: each public event once, in its log's order."""

    def __init__(
        self,
        js: JetStream,
        views: ViewStore,
        sources: tuple[SourceLog, ...],
        operators: tuple[str, ...],
    ) -> None:
        """Tell what *sources* say; *operators* hear of nodes."""
        self._js = js
        self._views = views
        self._sources = sources
        self._positions: dict[str, int] = {}
        self._last_seq = 0
        self._simulated: dict[str, bool] = {}
        self._tenants: dict[str, str] = {}
        self._context = Context(self._simulated.get, self._tenants.get, operators)

    async def restore(self) -> None:
        """Take up where the newest public message says its teller was."""
        state = await self._js.stream_state(subjects.STREAM_PUB)
        self._last_seq = state.last_seq
        self._positions = {source.stream: 0 for source in self._sources}
        if state.last_seq == 0:
            return
        newest = await self._js.read(subjects.STREAM_PUB, after_seq=state.last_seq - 1)
        if newest:
            self._positions |= json.loads(newest[-1].headers.get(HEADER_SOURCES, "{}"))
            return
        # Everything aged away while nothing happened: tell what comes, not all of history again.
        for source in self._sources:
            self._positions[source.stream] = (await self._js.stream_state(source.stream)).last_seq

    async def tell_once(self) -> bool:
        """Publish what is new; return whether anything was read."""
        found = False
        for source in self._sources:
            events = await read_events(self._js, source, after_seq=self._positions[source.stream])
            for seq, event in events:
                self._positions[source.stream] = seq
                if event is not None and not await self._tell(event):
                    return True
            found = found or bool(events)
        return found

    async def _tell(self, event: Shown) -> bool:
        """Publish one fact; False when another teller was faster and we took up anew."""
        await self._learn(event)
        for public in publish(event, self._context):
            try:
                await self._publish(public)
            except Conflict:
                _log.info("another gateway told first, taking up anew")
                await self.restore()
                return False
        return True

    async def _publish(self, public: PublicEvent) -> None:
        entity, participle = public.type.split(".")
        positions = json.dumps(self._positions, separators=(",", ":"))
        ack = await self._js.publish(
            subjects.public(public.tenant, entity, participle, public.subject),
            json.dumps(public.data, separators=(",", ":")).encode(),
            headers={
                "ce-specversion": "1.0",
                "ce-id": f"{self._last_seq + 1}",
                "ce-type": f"{TYPE_PREFIX}{public.type}.v1",
                "ce-source": SOURCE_URI,
                "ce-subject": public.subject,
                "ce-time": public.at.isoformat(),
                "ce-datacontenttype": "application/json",
                HEADER_SOURCES: positions,
            },
            expected_last_seq=self._last_seq,
        )
        self._last_seq = ack.seq

    async def _learn(self, event: Shown) -> None:
        match event:
            case NodeJoined():
                self._simulated[event.node_id] = event.simulated
            case RunQueued():
                if len(self._tenants) >= TENANTS_KNOWN_MAX:
                    self._tenants.pop(next(iter(self._tenants)))
                self._tenants[event.run_id] = event.tenant
            case RunReported() if event.run_id not in self._tenants:
                run = await self._views.document("run", event.run_id)
                if run is not None:
                    self._tenants[event.run_id] = run["tenant"]
            case _:
                await self._learn_nodes(event)

    async def _learn_nodes(self, event: Shown) -> None:
        named = [m.node_id for m in getattr(event, "members", ())]
        own = getattr(event, "node_id", None)
        for node_id in (*named, *([own] if own is not None else [])):
            if node_id not in self._simulated:
                node = await self._views.document("node", node_id)
                if node is not None:
                    self._simulated[node_id] = node["simulated"]
