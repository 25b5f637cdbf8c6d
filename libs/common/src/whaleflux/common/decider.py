"""The loop every event-sourced service runs: decide, append, evolve.

State is evolved while deciding, so that a batch of commands sees its own consequences. When the
append fails, whether by conflict or for want of an answer, that state is thrown away and rebuilt
from the log: the log, not the object, is the truth. Races, take-overs, duplicates and time-outs
all take this one path.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from whaleflux.common.clock import Clock
from whaleflux.common.errors import Unavailable
from whaleflux.common.log import Log, Recorded

S = TypeVar("S")
C = TypeVar("C")
E = TypeVar("E")
S_contra = TypeVar("S_contra", contravariant=True)
C_contra = TypeVar("C_contra", contravariant=True)
E_co = TypeVar("E_co", covariant=True)
E_contra = TypeVar("E_contra", contravariant=True)

ATTEMPTS_MAX = 20
"""Appends tried for one batch before the service gives it back to the stream."""
BATCH_EVENTS_MAX = 500
"""Events in one atomic append; JetStream takes 1,000."""

_log = logging.getLogger(__name__)


class Decide(Protocol[S_contra, C_contra, E_co]):
    """Return the facts that follow from a command; none when it is a repeat."""

    def __call__(self, state: S_contra, command: C_contra, now: datetime) -> Sequence[E_co]:
        """Decide; may read the state, never change it."""
        ...


class Evolve(Protocol[S_contra, E_contra]):
    """Fold one event into the state."""

    def __call__(self, state: S_contra, event: E_contra, seq: int) -> None:
        """Change *state*; never refuse, never decide."""
        ...


class Snapshots(Protocol[S]):
    """Where a state is kept between starts; losing it costs a longer replay."""

    def load(self) -> tuple[int, S] | None:
        """Return sequence and state of the newest readable snapshot, or None."""
        ...

    def save(self, seq: int, state: S) -> None:
        """Keep *state* as of *seq*."""
        ...


class Decider(Generic[S, C, E]):
    """Serves batches of commands against one log."""

    def __init__(
        self,
        *,
        log: Log[E],
        clock: Clock,
        new_state: Callable[[], S],
        decide: Decide[S, C, E],
        evolve: Evolve[S, E],
        snapshots: Snapshots[S] | None = None,
        snapshot_every: int = 5_000,
    ) -> None:
        """Wire the pure functions to their log; call `restore` before the first cycle."""
        self._log = log
        self._clock = clock
        self._new_state = new_state
        self._decide = decide
        self._evolve = evolve
        self._snapshots = snapshots
        self._snapshot_every = snapshot_every
        self._snapshot_seq = 0
        self.state = new_state()
        self.seq = 0

    async def restore(self) -> None:
        """Rebuild the state from the newest snapshot and all that was written since."""
        self.seq, self.state = 0, self._new_state()
        kept = self._snapshots.load() if self._snapshots is not None else None
        if kept is not None and kept[0] <= await self._log.last_seq():
            self.seq, self.state = kept
        self._snapshot_seq = self.seq
        await self.catch_up()

    async def catch_up(self) -> None:
        """Fold what somebody else wrote since this state was current."""
        newest = await self._log.last_seq()
        for seq, event in await self._log.read(after_seq=self.seq):
            self._evolve(self.state, event, seq)
            self.seq = seq
        # Messages of unknown types count in the sequence although `read` leaves them out.
        self.seq = max(self.seq, newest)

    async def cycle(
        self, commands: Sequence[C], *, trace: Mapping[str, str] | None = None
    ) -> list[Recorded[E]]:
        """Serve *commands* in order and return the facts that are now in the log.

        Raises:
            Unavailable: The log could not be written; nothing is known to have happened.

        """
        for _ in range(ATTEMPTS_MAX):
            batches = self._decide_all(commands)
            if not batches:
                # To say nothing is a decision too: a stale state would lose the message for good.
                if await self._log.last_seq() == self.seq:
                    return []
                await self.catch_up()
                continue
            try:
                written = await self._append(batches, trace)
            except Unavailable as error:
                _log.info("append refused, catching up", extra={"reason": str(error)})
                await self.restore()
                continue
            self._keep_snapshot()
            return written
        raise Unavailable("the log was written by somebody else each time", code="conflict")

    def _decide_all(self, commands: Sequence[C]) -> list[list[E]]:
        now = self._clock.now()
        batches: list[list[E]] = []
        seq = self.seq
        for command in commands:
            events = list(self._decide(self.state, command, now))
            for event in events:
                seq += 1
                self._evolve(self.state, event, seq)
            if not events:
                continue
            if batches and len(batches[-1]) + len(events) <= BATCH_EVENTS_MAX:
                batches[-1] += events
            else:
                batches.append(events)
        return batches

    async def _append(
        self, batches: list[list[E]], trace: Mapping[str, str] | None
    ) -> list[Recorded[E]]:
        written: list[Recorded[E]] = []
        for batch in batches:
            last = await self._log.append(batch, expected_seq=self.seq, trace=trace)
            written += [Recorded(self.seq + 1 + i, event) for i, event in enumerate(batch)]
            self.seq = last
        return written

    def _keep_snapshot(self) -> None:
        if self._snapshots is None or self.seq - self._snapshot_seq < self._snapshot_every:
            return
        self._snapshots.save(self.seq, self.state)
        self._snapshot_seq = self.seq
