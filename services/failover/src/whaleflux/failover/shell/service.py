"""The loop of the leader: hear renewals, decide, append, evolve, answer.

Nodes are answered from facts that are in the log. While the log cannot be written, every node
that was live is told `frozen` and runs on; none of that time counts against a node. Whoever does
not hold the leader lease does not answer at all, so that no node takes an old leader's word for
the new one's.

Every term begins with a fact of its own in the log, also after a spell in which writes failed. It
refuses whatever was still on its way, and what an earlier leader decides after a long sleep.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import ValidationError

from whaleflux.common.bus import BusMessage
from whaleflux.common.clock import Clock
from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.failover import (
    FailoverRecord,
    LeaseAnswer,
    LeaseReply,
    LeaseRequest,
)
from whaleflux.common.decider import Decider, Snapshots
from whaleflux.common.errors import Unavailable
from whaleflux.common.ids import Ids
from whaleflux.common.log import Log
from whaleflux.failover.core.command import Elect, RenewLease, Thought
from whaleflux.failover.core.decide import answer, decide, incident_of
from whaleflux.failover.core.evolve import evolve
from whaleflux.failover.core.state import State
from whaleflux.failover.core.watch import Watch
from whaleflux.failover.shell import metrics
from whaleflux.failover.shell.settings import (
    APPEND_WITHIN_S,
    BATCH_MAX,
    FROZEN_RETRY_S,
    HEARD_MAX,
    RESTORE_WITHIN_S,
    SWEEP_EVERY_S,
)

QUESTION = "lease"

_log = logging.getLogger(__name__)


class Speaks(Protocol):
    """The part of the bus that answers go through."""

    async def publish(self, subject: str, body: bytes) -> None:
        """Send once."""
        ...

    async def subscribe(
        self, subject: str, handler: Callable[[BusMessage], Awaitable[None]]
    ) -> Callable[[], Awaitable[None]]:
        """Hear *subject* until the returned function is called."""
        ...


class Leads(Protocol):
    """Whether this process is the one that may decide."""

    @property
    def held(self) -> bool:
        """Return whether the leader lease is held now."""
        ...

    async def wait_held(self) -> None:
        """Wait until the leader lease is held."""
        ...

    async def wait_lost(self) -> None:
        """Wait until the leader lease is no longer held."""
        ...


@dataclass(frozen=True, slots=True)
class Heard:
    """A renewal and where its answer goes."""

    request: LeaseRequest
    reply: str


class Service:
    """One failover process; the log, not this object, is the truth."""

    def __init__(
        self,
        *,
        log: Log[FailoverRecord],
        lease: Leads,
        bus: Speaks,
        clock: Clock,
        ids: Ids,
        snapshots: Snapshots[State] | None = None,
        on_change: Callable[[bool, str], None] | None = None,
    ) -> None:
        """Wire the core to its log, its leader lease and the bus.

        *on_change* is told whether the log can be written, and why not.
        """
        self._decider: Decider[State, Thought, FailoverRecord] = Decider(
            log=log,
            clock=clock,
            new_state=State,
            decide=decide,
            evolve=evolve,
            snapshots=snapshots,
        )
        self._lease = lease
        self._bus = bus
        self._clock = clock
        self._ids = ids
        self._on_change = on_change
        self._watch = Watch("")
        self._heard: asyncio.Queue[Heard] = asyncio.Queue(maxsize=HEARD_MAX)
        self._frozen = True
        self._frozen_at_s = 0.0
        self._sweep_at_s = 0.0

    @property
    def state(self) -> State:
        """What failover knows now; to be read only."""
        return self._decider.state

    @property
    def frozen(self) -> bool:
        """Whether nodes are being told `frozen`."""
        return self._frozen

    async def run(self) -> None:
        """Lead whenever the leader lease is held, until cancelled."""
        while True:
            await self._lease.wait_held()
            _log.info("leading")
            metrics.LEADING.set(1)
            async with asyncio.TaskGroup() as group:
                leading = group.create_task(self.lead())
                await self._lease.wait_lost()
                leading.cancel()
            metrics.LEADING.set(0)
            _log.warning("leader lease lost")

    async def lead(self) -> None:
        """Answer and judge until cancelled, as soon as a term has begun."""
        self._freeze("no term has begun yet")
        # A renewal from an earlier term may say `clean` of a node that has long had new members.
        self._waiting()
        await self._until_thawed()
        subject = subjects.question("failover", QUESTION, of="*")
        unsubscribe = await self._bus.subscribe(subject, self.hear)
        try:
            while True:
                await self.serve(await self._gather())
                await self._until_thawed()
        finally:
            self._frozen = True
            await unsubscribe()

    async def hear(self, message: BusMessage) -> None:
        """Take in a renewal; while frozen, say so at once."""
        if not self._lease.held:
            return
        try:
            request = LeaseRequest.model_validate_json(message.body, extra="ignore")
        except ValidationError:
            _log.warning("unreadable renewal", extra={"subject": message.subject})
            return
        if message.subject.rpartition(".")[2] != request.node_id:
            _log.warning(
                "renewal for another node",
                extra={"subject": message.subject, "node_id": request.node_id},
            )
            return
        heard = Heard(request, message.reply)
        if self._frozen:
            await self._reply_frozen(heard)
            return
        try:
            self._heard.put_nowait(heard)
        except asyncio.QueueFull:
            metrics.RENEWALS.labels("dropped").inc()

    async def thaw(self) -> bool:
        """Begin a term: read the log, write to it, start every node's clock anew."""
        if not self._lease.held:
            return False
        term = self._ids.new("term")
        try:
            async with asyncio.timeout(RESTORE_WITHIN_S):
                await self._decider.restore()
            if not self._lease.held:
                return False
            async with asyncio.timeout(APPEND_WITHIN_S):
                await self._decider.cycle([Elect(term)])
        except (Unavailable, TimeoutError) as error:
            _log.info("log unavailable", extra={"reason": str(error) or "no answer in time"})
            return False
        self._watch = Watch(term)
        self._watch.restart(self.state, self._clock.boottime_s())
        self._frozen = False
        metrics.FROZEN.set(0)
        self._tell(ok=True, detail="")
        _log.info("answering", extra={"nodes": len(self.state.nodes)})
        return True

    async def _until_thawed(self) -> None:
        while self._frozen and not await self.thaw():
            await asyncio.sleep(FROZEN_RETRY_S)

    async def serve(self, heard: Sequence[Heard]) -> None:
        """Decide one batch, with a look at the silent nodes when it is due, and answer it."""
        commands: list[Thought] = [self._renewal(item.request) for item in heard]
        if not self._lease.held:
            self._freeze("the leader lease is not held")
            return
        if self._clock.boottime_s() >= self._sweep_at_s:
            commands += self._sweep()
        if not await self._decide(commands):
            for item in [*heard, *self._waiting()]:
                await self._reply_frozen(item)
            return
        for item in heard:
            request = item.request
            verdict = answer(self.state, node_id=request.node_id, boot_id=request.boot_id)
            # Noted before it is sent: the node counts from the moment it asked, which is earlier.
            if verdict is LeaseAnswer.GRANTED and self._lease.held:
                self._watch.renewed(request.node_id, self._clock.boottime_s())
            await self._reply(item, verdict)

    def _renewal(self, request: LeaseRequest) -> RenewLease:
        return RenewLease(
            node_id=request.node_id,
            boot_id=request.boot_id,
            agent_id=request.agent_id,
            clean=request.clean,
            term=self._watch.term,
            silent_s=self._watch.silence_s(request.node_id, self._clock.boottime_s()),
        )

    def _sweep(self) -> Sequence[Thought]:
        now_s = self._clock.boottime_s()
        self._sweep_at_s = now_s + SWEEP_EVERY_S
        held_before = self._watch.holding
        sweeps = self._watch.sweeps(self.state, now_s)
        if self._watch.holding and not held_before:
            _log.error("most nodes fell silent together, fencing is held back")
        elif held_before and not self._watch.holding:
            _log.warning("fencing is no longer held back")
        metrics.HOLDING.set(self._watch.holding)
        return sweeps

    async def _decide(self, commands: Sequence[Thought]) -> bool:
        """Bring the consequences of *commands* into the log; freeze when that fails."""
        try:
            async with asyncio.timeout(APPEND_WITHIN_S):
                written = await self._decider.cycle(commands)
        except Unavailable as error:
            self._freeze(str(error))
            return False
        except TimeoutError:
            self._freeze(f"no answer in {APPEND_WITHIN_S:.0f} s")
            return False
        if self.state.term != self._watch.term:
            self._freeze("another leader was elected")
            return False
        for _seq, event in written:
            metrics.EVENTS.labels(event.type).inc()
            _log.info("node judged", extra=event.model_dump(mode="json", exclude={"at"}))
        return True

    def _freeze(self, reason: str) -> None:
        # What was evolved but not written must not be answered from; `thaw` reads the log anew.
        self._frozen = True
        self._frozen_at_s = self._clock.boottime_s()
        metrics.FROZEN.set(1)
        self._tell(ok=False, detail=reason)
        _log.warning("frozen", extra={"reason": reason})

    def _tell(self, *, ok: bool, detail: str) -> None:
        if self._on_change is not None:
            self._on_change(ok, detail)

    async def _gather(self) -> list[Heard]:
        """Wait for renewals, but not past the next look at the silent nodes."""
        wait_s = max(self._sweep_at_s - self._clock.boottime_s(), 0.0)
        try:
            async with asyncio.timeout(wait_s):
                first = await self._heard.get()
        except TimeoutError:
            return []
        return [first, *self._waiting(BATCH_MAX - 1)]

    def _waiting(self, limit: int = HEARD_MAX) -> list[Heard]:
        taken: list[Heard] = []
        while len(taken) < limit and not self._heard.empty():
            taken.append(self._heard.get_nowait())
        return taken

    async def _reply_frozen(self, heard: Heard) -> None:
        if self._watch.may_run_on(heard.request.node_id, self._frozen_at_s):
            await self._reply(heard, LeaseAnswer.FROZEN)

    async def _reply(self, heard: Heard, verdict: LeaseAnswer) -> None:
        if not self._lease.held or not heard.reply:
            return
        metrics.RENEWALS.labels(verdict.value).inc()
        incident = incident_of(self.state, heard.request.node_id)
        body = LeaseReply(answer=verdict, incident=incident).model_dump_json().encode()
        try:
            await self._bus.publish(heard.reply, body)
        except Unavailable as error:
            _log.info("answer not sent", extra={"reason": str(error)})
