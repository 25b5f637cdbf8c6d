"""The loop: hear, decide, append, evolve, publish assignments, ack."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pydantic import ValidationError

from whaleflux.common.clock import Clock
from whaleflux.common.contracts.agent import AgentEvent
from whaleflux.common.contracts.base import UnknownEvent
from whaleflux.common.contracts.failover import FailoverEvent
from whaleflux.common.contracts.scheduler import SchedulerEvent
from whaleflux.common.contracts.subjects import HEADER_CAUSATION, HEADER_TYPE
from whaleflux.common.decider import Decider, Snapshots
from whaleflux.common.errors import Unavailable
from whaleflux.common.log import Delivery, Inbox, Log, Recorded
from whaleflux.common.observe import span, trace_headers
from whaleflux.scheduler.core.command import Advance, Place, Thought
from whaleflux.scheduler.core.decide import decide
from whaleflux.scheduler.core.evolve import evolve
from whaleflux.scheduler.core.react import react
from whaleflux.scheduler.core.state import State
from whaleflux.scheduler.shell import metrics
from whaleflux.scheduler.shell.assignments import Assignments
from whaleflux.scheduler.shell.settings import BATCH_MAX, RETRY_DELAY_S, TAKE_WAIT_S

SERVICE = "scheduler"

_log = logging.getLogger(__name__)

Read: TypeAlias = Callable[[bytes], Thought | UnknownEvent | None]


@dataclass(frozen=True, slots=True)
class Source:
    """An inbox and how its messages become thoughts."""

    inbox: Inbox
    read: Read


@dataclass(frozen=True, slots=True)
class Heard:
    """A delivery and what it asks the scheduler to think about."""

    delivery: Delivery
    thought: Thought


class Service:
    """One scheduler; the log, not this object, is the truth."""

    def __init__(
        self,
        *,
        log: Log[SchedulerEvent],
        assignments: Assignments,
        clock: Clock,
        snapshots: Snapshots[State] | None = None,
    ) -> None:
        """Wire the core to its log and its table."""
        self._decider: Decider[State, Thought, SchedulerEvent] = Decider(
            log=log,
            clock=clock,
            new_state=State,
            decide=decide,
            evolve=evolve,
            snapshots=snapshots,
        )
        self._assignments = assignments

    @property
    def state(self) -> State:
        """What the scheduler knows now; to be read only."""
        return self._decider.state

    @property
    def seq(self) -> int:
        """The last sequence folded into the state."""
        return self._decider.seq

    async def take_over(self) -> None:
        """Rebuild the state, settle what an earlier leader left open, publish what differs."""
        await self._decider.restore()
        await self._decider.cycle([Advance(), Place()])
        await self._assignments.publish_all(self.state)

    async def run(self, sources: Sequence[Source]) -> None:
        """Serve *sources* until cancelled; call `take_over` first."""
        heard: asyncio.Queue[Heard] = asyncio.Queue(maxsize=BATCH_MAX)
        async with asyncio.TaskGroup() as group:
            for source in sources:
                group.create_task(self._listen(source, heard))
            while True:
                batch = [await heard.get()]
                while not heard.empty() and len(batch) < BATCH_MAX:
                    batch.append(heard.get_nowait())
                await self.serve(batch)

    async def serve(self, batch: Sequence[Heard]) -> None:
        """Decide *batch* in one cycle and settle its messages."""
        try:
            await self._cycle(batch)
        except Unavailable as error:
            _log.warning("log unavailable, trying later", extra={"reason": str(error)})
            for item in batch:
                await item.delivery.nak(delay_s=RETRY_DELAY_S)
        except Exception as error:
            await self._isolate(batch, error)
        else:
            for item in batch:
                await item.delivery.ack()

    async def think(self, thoughts: Sequence[Thought]) -> list[SchedulerEvent]:
        """Decide *thoughts* and publish the assignments they change; for tests and simulation."""
        written = await self._decider.cycle([*thoughts, Advance(), Place()])
        await self._assignments.publish_changed(self.state)
        return [record.event for record in written]

    async def _cycle(self, batch: Sequence[Heard]) -> None:
        with metrics.CYCLE.time(), span("decide", batch[0].delivery.headers):
            written = await self._decider.cycle(
                [*(item.thought for item in batch), Advance(), Place()],
                trace=_trace(batch[0].delivery),
            )
            await self._assignments.publish_changed(self.state)
        self._count(batch, written)
        _log.info(
            "cycle served",
            extra={
                "commands": len(batch),
                "first": type(batch[0].thought).__name__,
                "events": len(written),
                "seq": self.seq,
                "queued": len(self.state.queue),
            },
        )

    def _count(self, batch: Sequence[Heard], written: Sequence[Recorded[SchedulerEvent]]) -> None:
        for item in batch:
            metrics.COMMANDS.labels(type(item.thought).__name__).inc()
        for record in written:
            metrics.EVENTS.labels(record.event.type).inc()
        metrics.QUEUED.set(len(self.state.queue))
        metrics.WORKLOADS.set(self.state.live_workloads)

    async def _isolate(self, batch: Sequence[Heard], error: Exception) -> None:
        """Keep one message that breaks the core from holding up all others."""
        await self._decider.restore()
        if len(batch) > 1:
            for item in batch:
                await self.serve([item])
            return
        _log.error(
            "message broke the scheduler and was put aside",
            exc_info=error,
            extra={"subject": batch[0].delivery.subject},
        )
        metrics.PUT_ASIDE.inc()
        reason = f"{type(error).__name__}: {error}"
        await batch[0].delivery.dead_letter(service=SERVICE, reason=reason)

    async def _listen(self, source: Source, heard: asyncio.Queue[Heard]) -> None:
        while True:
            for delivery in await source.inbox.take(limit=BATCH_MAX, wait_s=TAKE_WAIT_S):
                thought = await self._read(source, delivery)
                if thought is not None:
                    await heard.put(Heard(delivery, thought))

    async def _read(self, source: Source, delivery: Delivery) -> Thought | None:
        try:
            thought = source.read(delivery.body)
        except (ValidationError, ValueError) as error:
            _log.warning("unreadable message put aside", extra={"subject": delivery.subject})
            await delivery.dead_letter(service=SERVICE, reason=str(error)[:1000])
            return None
        if thought is None or isinstance(thought, UnknownEvent):
            await delivery.ack()
            return None
        return thought


def _trace(delivery: Delivery) -> dict[str, str]:
    cause = delivery.headers.get(HEADER_TYPE, delivery.subject)
    return {**trace_headers(), HEADER_CAUSATION: f"{cause}:{delivery.stream_seq}"}


def fact_reader(read: Callable[[bytes], AgentEvent | FailoverEvent | UnknownEvent]) -> Read:
    """Return a reader that translates another service's facts."""

    def translate(raw: bytes) -> Thought | UnknownEvent | None:
        event = read(raw)
        return event if isinstance(event, UnknownEvent) else react(event)

    return translate
