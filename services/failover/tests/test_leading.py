"""The leader's loop in virtual time, against a log that can fail in every way."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from whaleflux.common.bus import BusMessage
from whaleflux.common.contracts.failover import (
    FailoverRecord,
    LeaderElected,
    LeaseAnswer,
    LeaseReply,
    LeaseRequest,
    NodeAdmitted,
    NodeFenced,
)
from whaleflux.common.errors import Unavailable
from whaleflux.common.ids import RandomIds
from whaleflux.common.log import Conflict, Recorded
from whaleflux.common.testing.loop import run_virtual
from whaleflux.failover.shell.service import Service
from whaleflux.failover.shell.settings import APPEND_WITHIN_S


class LoopClock:
    """Virtual time as a machine's clocks."""

    def now(self) -> datetime:
        return datetime.fromtimestamp(asyncio.get_running_loop().time(), UTC)

    def boottime_s(self) -> float:
        return asyncio.get_running_loop().time()


class FaultyLog:
    """A log in memory whose writes and reads can fail, hang, or land without an answer."""

    def __init__(self) -> None:
        self.events: list[FailoverRecord] = []
        self.writing = "works"
        self.reading = "works"

    async def append(
        self,
        events: Sequence[FailoverRecord],
        *,
        expected_seq: int,
        trace: Mapping[str, str] | None = None,
    ) -> int:
        if self.writing == "hangs":
            await asyncio.sleep(3600)
        if self.writing == "lands late":
            self.writing = "works"
            asyncio.get_running_loop().call_later(6.0, self._land, list(events), expected_seq)
            await asyncio.sleep(3600)
        if self.writing == "fails":
            raise Unavailable("no answer")
        if expected_seq != len(self.events):
            raise Conflict("wrong last sequence")
        self.events += events
        if self.writing == "lands unanswered":
            raise Unavailable("no answer")
        return len(self.events)

    def _land(self, events: list[FailoverRecord], expected_seq: int) -> None:
        if expected_seq == len(self.events):
            self.events += events

    async def read(self, *, after_seq: int) -> Sequence[Recorded[FailoverRecord]]:
        if self.reading == "fails":
            raise Unavailable("no answer")
        return [Recorded(i, e) for i, e in enumerate(self.events, 1) if i > after_seq]

    async def last_seq(self) -> int:
        if self.reading == "fails":
            raise Unavailable("no answer")
        return len(self.events)


class Leader:
    """A lease that the test gives and takes."""

    def __init__(self) -> None:
        self._change = asyncio.Condition()
        self.held = False

    async def set(self, held: bool) -> None:
        async with self._change:
            self.held = held
            self._change.notify_all()

    async def wait_held(self) -> None:
        async with self._change:
            await self._change.wait_for(lambda: self.held)

    async def wait_lost(self) -> None:
        async with self._change:
            await self._change.wait_for(lambda: not self.held)


class Wire:
    """The bus as failover sees it."""

    def __init__(self) -> None:
        self.handlers: list[Callable[[BusMessage], Awaitable[None]]] = []
        self.replies: list[tuple[str, LeaseReply]] = []

    async def publish(self, subject: str, body: bytes) -> None:
        self.replies.append((subject, LeaseReply.model_validate_json(body)))

    async def subscribe(
        self, subject: str, handler: Callable[[BusMessage], Awaitable[None]]
    ) -> Callable[[], Awaitable[None]]:
        assert subject == "wf.qry.failover.lease.*"
        self.handlers.append(handler)

        async def unsubscribe() -> None:
            self.handlers.remove(handler)

        return unsubscribe


class World:
    """One failover process and nodes that ask it."""

    def __init__(self, log: FaultyLog | None = None) -> None:
        self.log, self.wire, self.lease = log or FaultyLog(), Wire(), Leader()
        self.service = Service(
            log=self.log, lease=self.lease, bus=self.wire, clock=LoopClock(), ids=RandomIds()
        )
        self._asked = 0

    async def ask(
        self, node: str = "n0", *, clean: bool = False, subject: str = ""
    ) -> LeaseAnswer | None:
        """Renew, and wait as long as an agent would."""
        self._asked += 1
        inbox = f"_INBOX.{self._asked}"
        request = LeaseRequest(node_id=node, boot_id="b0", agent_id="a0", clean=clean)
        where = subject or f"wf.qry.failover.lease.{node}"
        message = BusMessage(where, request.model_dump_json().encode(), {}, inbox)
        for handler in self.wire.handlers:
            await handler(message)
        for _ in range(200):
            answers = [reply.answer for where, reply in self.wire.replies if where == inbox]
            if answers:
                return answers[0]
            await asyncio.sleep(0.02)
        return None

    async def renew_for(self, seconds: float, *nodes: str) -> set[LeaseAnswer | None]:
        answers: set[LeaseAnswer | None] = set()
        end_s = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end_s:
            for node in nodes:
                answers.add(await self.ask(node))
            await asyncio.sleep(1.0)
        return answers

    def names(self) -> list[str]:
        return [
            f"fenced {e.fencing.value}" if isinstance(e, NodeFenced) else e.type.split(".")[2]
            for e in self.log.events
            if not isinstance(e, LeaderElected)
        ]


def play(story: Callable[[World], Awaitable[Any]], log: FaultyLog | None = None) -> World:
    """Run *story* with a leader that leads, in virtual time."""

    async def main() -> World:
        world = World(log)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(world.service.run())
            await world.lease.set(True)
            await asyncio.sleep(0.1)
            await story(world)
            running.cancel()
        return world

    return run_virtual(main)


def test_a_node_is_answered_from_facts_that_are_in_the_log() -> None:
    async def story(world: World) -> None:
        assert await world.ask() is LeaseAnswer.GRANTED

    assert play(story).names() == ["admitted"]


def test_a_silent_node_is_lost_and_fenced_in_the_log() -> None:
    async def story(world: World) -> None:
        await world.ask()
        await asyncio.sleep(310)

    assert play(story).names() == ["admitted", "lost", "fenced fast", "fenced patient"]


def test_a_renewal_on_the_subject_of_another_node_is_not_answered() -> None:
    async def story(world: World) -> None:
        assert await world.ask("n0", subject="wf.qry.failover.lease.n1") is None

    assert play(story).names() == []


def test_nodes_hear_frozen_while_the_log_cannot_be_written() -> None:
    async def story(world: World) -> None:
        await world.ask("n0")
        world.log.writing = world.log.reading = "fails"
        assert await world.ask("new") is LeaseAnswer.FROZEN
        assert await world.renew_for(60, "n0", "new") == {LeaseAnswer.FROZEN}
        world.log.writing = world.log.reading = "works"
        await asyncio.sleep(2)
        assert await world.renew_for(5, "n0", "new") == {LeaseAnswer.GRANTED}

    assert play(story).names() == ["admitted", "admitted"]


def test_an_append_that_hangs_keeps_no_node_waiting() -> None:
    async def story(world: World) -> None:
        world.log.writing, world.log.reading = "hangs", "fails"
        began_s = asyncio.get_running_loop().time()
        assert await world.ask("n0") is LeaseAnswer.FROZEN
        assert asyncio.get_running_loop().time() - began_s < APPEND_WITHIN_S + 0.1
        began_s = asyncio.get_running_loop().time()
        assert await world.ask("n0") is LeaseAnswer.FROZEN
        assert asyncio.get_running_loop().time() - began_s < 0.1

    play(story)


def test_time_spent_frozen_does_not_count_against_a_node() -> None:
    async def story(world: World) -> None:
        await world.ask("n0")
        await asyncio.sleep(9)
        world.log.writing = world.log.reading = "fails"
        await asyncio.sleep(300)
        assert world.service.frozen
        world.log.writing = world.log.reading = "works"
        began = len(world.names())
        await asyncio.sleep(10)
        assert len(world.names()) == began
        await asyncio.sleep(2)
        assert world.names()[began:] == ["lost"]
        await asyncio.sleep(12)
        assert world.names()[began:] == ["lost"]
        await asyncio.sleep(3)
        assert world.names()[began:] == ["lost", "fenced fast"]

    play(story)


def test_a_fact_that_landed_without_an_answer_is_not_written_twice() -> None:
    async def story(world: World) -> None:
        world.log.writing = "lands unanswered"
        assert await world.ask("n0") is LeaseAnswer.GRANTED
        world.log.writing = "works"
        assert await world.ask("n0") is LeaseAnswer.GRANTED

    assert play(story).names() == ["admitted"]


def test_who_does_not_lead_does_not_answer() -> None:
    async def story(world: World) -> None:
        await world.ask("n0")
        await world.lease.set(False)
        await asyncio.sleep(0.1)
        assert world.wire.handlers == []
        assert await world.ask("n0") is None

    play(story)


def test_a_leader_whose_lease_ran_out_unnoticed_keeps_silent() -> None:
    async def story(world: World) -> None:
        await world.ask("n0")
        world.lease.held = False
        assert world.wire.handlers != []
        assert await world.ask("n0") is None

    play(story)


def test_a_new_leader_knows_what_the_old_one_wrote_and_starts_all_clocks_anew() -> None:
    log = FaultyLog()

    async def first(world: World) -> None:
        await world.ask("n0")
        await asyncio.sleep(20)

    async def second(world: World) -> None:
        await asyncio.sleep(23)
        assert world.names() == ["admitted", "lost"]
        await asyncio.sleep(3)
        assert world.names() == ["admitted", "lost", "fenced fast"]
        assert await world.ask("n0") is LeaseAnswer.FENCED
        assert await world.ask("n0", clean=True) is LeaseAnswer.GRANTED

    play(first, log)
    play(second, log)


def test_a_renewal_from_an_earlier_term_proves_nothing_in_a_later_one() -> None:
    async def story(world: World) -> None:
        await world.ask("n0")
        await asyncio.sleep(30)
        world.log.writing = "hangs"
        # The leader is stuck in an append when this arrives, and loses its lease meanwhile.
        asking = asyncio.ensure_future(world.ask("other"))
        await asyncio.sleep(1)
        late = asyncio.ensure_future(world.ask("n0", clean=True))
        await asyncio.sleep(0.1)
        await world.lease.set(False)
        await asyncio.sleep(0.1)
        world.log.writing = "works"
        await world.lease.set(True)
        assert await late is None
        assert await asking is None

    assert "returned" not in play(story).names()


def test_many_nodes_are_admitted_in_few_appends() -> None:
    async def story(world: World) -> None:
        await asyncio.gather(*(world.ask(f"n{i}") for i in range(2_000)))

    world = play(story)
    assert sum(isinstance(e, NodeAdmitted) for e in world.log.events) == 2_000
    assert all(reply.answer is LeaseAnswer.GRANTED for _, reply in world.wire.replies)


def test_those_who_wait_behind_an_append_that_hangs_hear_frozen_with_it() -> None:
    async def story(world: World) -> None:
        await world.ask("n0")
        world.log.writing, world.log.reading = "hangs", "fails"
        began_s = asyncio.get_running_loop().time()
        first = asyncio.ensure_future(world.ask("new"))
        await asyncio.sleep(1)
        behind = asyncio.ensure_future(world.ask("n0"))
        assert await first is LeaseAnswer.FROZEN
        assert await behind is LeaseAnswer.FROZEN
        assert asyncio.get_running_loop().time() - began_s < APPEND_WITHIN_S + 0.1

    play(story)


def test_a_lease_that_ends_during_an_append_takes_the_answer_with_it() -> None:
    async def story(world: World) -> None:
        await world.ask("n0")
        world.log.writing, world.log.reading = "hangs", "fails"
        asking = asyncio.ensure_future(world.ask("new"))
        await asyncio.sleep(1)
        world.lease.held = False
        assert await asking is None

    play(story)


def test_a_write_that_lands_after_it_was_given_up_is_refused() -> None:
    async def story(world: World) -> None:
        await world.ask("n0")
        world.log.writing = "lands late"
        await asyncio.sleep(14)
        assert world.log.writing == "works"
        assert await world.renew_for(20, "n0") == {LeaseAnswer.GRANTED}

    assert play(story).names() == ["admitted"]


def test_a_node_that_was_silent_hears_nothing_that_keeps_its_members_alive_while_frozen() -> None:
    async def story(world: World) -> None:
        for node in ("live", "silent"):
            await world.ask(node)
        assert await world.renew_for(12, "live") == {LeaseAnswer.GRANTED}
        world.log.writing = world.log.reading = "fails"
        assert await world.ask("new") is LeaseAnswer.FROZEN
        assert await world.ask("live") is LeaseAnswer.FROZEN
        assert await world.ask("silent") is None

    play(story)


def test_a_leader_that_slept_through_an_election_changes_nothing_when_it_wakes() -> None:
    async def story(second: World) -> None:
        assert await second.renew_for(30, "n0") == {LeaseAnswer.GRANTED}
        # It looked at its lease just before it fell asleep, so it goes on where it was.
        await first.service.serve([])
        assert first.service.frozen
        assert await second.renew_for(5, "n0") == {LeaseAnswer.GRANTED}

    first = World()

    async def earlier() -> None:
        first.lease.held = True
        assert await first.service.thaw()
        first.wire.handlers.append(first.service.hear)
        asking = asyncio.ensure_future(first.ask("n0"))
        await asyncio.sleep(0.01)
        await first.service.serve(first.service._waiting())
        assert await asking is LeaseAnswer.GRANTED

    run_virtual(earlier)
    assert play(story, first.log).names() == ["admitted"]
