"""The loop of every event-sourced service: races, lost answers, stale states, snapshots."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from whaleflux.common.decider import ATTEMPTS_MAX, BATCH_EVENTS_MAX, Decider
from whaleflux.common.errors import Unavailable
from whaleflux.common.log import Conflict
from whaleflux.common.testing.loop import run_virtual
from whaleflux.common.testing.memory import MemoryLog


@dataclass
class Numbers:
    seen: set[int] = field(default_factory=set)
    seqs: list[int] = field(default_factory=list)


class Clock:
    def now(self) -> datetime:
        return datetime(2031, 1, 1, tzinfo=UTC)

    def boottime_s(self) -> float:
        return 0.0


def decide(state: Numbers, number: int, _now: datetime) -> Sequence[int]:
    return () if number in state.seen else (number,)


def evolve(state: Numbers, event: int, seq: int) -> None:
    state.seen.add(event)
    state.seqs.append(seq)


@dataclass
class Kept:
    saved: tuple[int, Numbers] | None = None

    def load(self) -> tuple[int, Numbers] | None:
        return self.saved

    def save(self, seq: int, state: Numbers) -> None:
        self.saved = (seq, state)


def decider(
    log: MemoryLog[int],
    snapshots: Kept | None = None,
    every: int = 5_000,
    decide: Callable[[Numbers, int, datetime], Sequence[int]] = decide,
) -> Decider[Numbers, int, int]:
    return Decider(
        log=log,
        clock=Clock(),
        new_state=Numbers,
        decide=lambda state, command, now: decide(state, command, now),
        evolve=lambda state, event, seq: evolve(state, event, seq),
        snapshots=snapshots,
        snapshot_every=every,
    )


async def test_a_batch_sees_its_own_consequences() -> None:
    log: MemoryLog[int] = MemoryLog()
    written = await decider(log).cycle([1, 1, 2])
    assert [(r.seq, r.event) for r in written] == [(1, 1), (2, 2)]
    assert log.events == [1, 2]


async def test_a_conflict_makes_it_decide_again_on_the_newest_state() -> None:
    log: MemoryLog[int] = MemoryLog()
    one, two = decider(log), decider(log)
    await one.cycle([1, 2])
    assert [r.event for r in await two.cycle([2, 3])] == [3]
    assert log.events == [1, 2, 3]
    assert two.state.seqs == [1, 2, 3]


async def test_a_stale_state_does_not_get_to_say_nothing() -> None:
    """Decided on its old state, the command would be a repeat and be lost."""
    log: MemoryLog[int] = MemoryLog()

    def only_after_seven(state: Numbers, number: int, _now: datetime) -> Sequence[int]:
        return (number,) if 7 in state.seen and number not in state.seen else ()

    stale = decider(log, decide=only_after_seven)
    await stale.restore()
    log.events.append(7)
    assert [r.event for r in await stale.cycle([9])] == [9]


@pytest.mark.parametrize("seed", range(30))
def test_lost_answers_neither_lose_nor_double_anything(seed: int) -> None:
    log: MemoryLog[int] = MemoryLog(random.Random(seed), answer_loss_rate=0.4)

    async def play() -> None:
        deciders = [decider(log), decider(log)]
        rng = random.Random(seed)
        for number in range(40):
            await rng.choice(deciders).cycle([number, rng.randrange(40)])

    run_virtual(play)
    assert sorted(log.events) == sorted(set(log.events))
    assert set(log.events) == set(range(40))


async def test_a_log_that_never_answers_is_given_back_after_bounded_attempts() -> None:
    class Dead(MemoryLog[int]):
        tried = 0

        async def append(
            self, events: Sequence[int], *, expected_seq: int, trace: object = None
        ) -> int:
            self.tried += 1
            raise Conflict("never")

    log = Dead()
    with pytest.raises(Unavailable):
        await decider(log).cycle([1])
    assert log.tried == ATTEMPTS_MAX


async def test_more_facts_than_fit_one_append_are_split_between_decisions() -> None:
    sizes: list[int] = []

    class Counting(MemoryLog[int]):
        async def append(
            self, events: Sequence[int], *, expected_seq: int, trace: object = None
        ) -> int:
            sizes.append(len(events))
            return await super().append(events, expected_seq=expected_seq)

    log = Counting()
    await decider(log).cycle(list(range(1200)))
    assert len(log.events) == 1200
    assert max(sizes) <= BATCH_EVENTS_MAX


async def test_a_snapshot_saves_replaying_what_came_before_it() -> None:
    log: MemoryLog[int] = MemoryLog()
    kept = Kept()
    await decider(log, kept, every=3).cycle([1, 2, 3])
    assert kept.saved is not None and kept.saved[0] == 3
    log.events.append(4)
    again = decider(log, kept)
    await again.restore()
    assert again.state.seen == {1, 2, 3, 4}
    assert again.seq == 4


async def test_a_snapshot_that_is_longer_than_the_log_is_not_believed() -> None:
    log: MemoryLog[int] = MemoryLog()
    await decider(log).cycle([1])
    again = decider(log, Kept((5, Numbers({1, 2, 3}))))
    await again.restore()
    assert again.state.seen == {1}
