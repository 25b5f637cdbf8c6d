"""Who leads: a compare-and-set lease that saves useless work. Safety rests on the log's guard.

The lease is one message on `wf.lease.<key>` with a time to live. Acquiring and renewing are
publishes with the subject's last sequence; the holder stops believing at the moment it *sent* the
last successful renewal plus the time to live less a margin, by a clock that never steps back.
"""

import asyncio
import logging

from whaleflux.common.clock import Clock
from whaleflux.common.contracts import subjects
from whaleflux.common.errors import Unavailable
from whaleflux.common.jetstream import HEADER_TTL, JetStream
from whaleflux.common.log import Conflict

TTL_S = 15.0
"""Longer than the worst election of a stream leader (4-9 s measured), else leaders flap."""
RENEW_EVERY_S = 4.0
MARGIN_S = 2.0
"""Given up this much before the server lets anybody else have it."""
LOOK_EVERY_S = 1.0
"""How often one who waits looks whether the lease is free."""
REQUEST_TIMEOUT_S = 3.0
SHORT_WAIT_S = 0.01
"""The least pause before looking at the clock again."""

_log = logging.getLogger(__name__)


class LeaderLease:
    """One candidate for one lease."""

    def __init__(self, js: JetStream, clock: Clock, *, key: str, holder: str) -> None:
        """Compete for *key* as *holder*, which must be unique."""
        self._js = js
        self._clock = clock
        self._subject = subjects.lease(key)
        self._holder = holder
        self._seq = 0
        self._sure = False
        """Whether `_seq` is known to be the subject's last sequence."""
        self._until_s = 0.0
        self._change = asyncio.Condition()

    @property
    def held(self) -> bool:
        """Return whether this candidate may still believe that it leads."""
        return self._clock.boottime_s() < self._until_s

    async def keep(self) -> None:
        """Acquire and renew until cancelled; then give the lease back."""
        try:
            while True:
                renewed = await self._try()
                await asyncio.sleep(RENEW_EVERY_S if renewed else LOOK_EVERY_S)
        finally:
            await self._release()

    async def wait_held(self) -> None:
        """Wait until this candidate leads."""
        async with self._change:
            await self._change.wait_for(lambda: self.held)

    async def wait_lost(self) -> None:
        """Wait until this candidate does not lead any more."""
        async with self._change:
            while self.held:
                left_s = self._until_s - self._clock.boottime_s()
                try:
                    async with asyncio.timeout(max(left_s, SHORT_WAIT_S)):
                        await self._change.wait()
                except TimeoutError:
                    continue

    async def _try(self) -> bool:
        """Acquire or renew; return whether that was done, so that a failure is retried soon."""
        sent_s = self._clock.boottime_s()
        try:
            if not (self._sure and self.held) and not await self._look():
                await self._give_up()
                return False
            ack = await self._js.publish(
                self._subject,
                self._holder.encode(),
                headers={HEADER_TTL: f"{TTL_S:.0f}s"},
                expected_last_subject_seq=self._seq,
                timeout_s=REQUEST_TIMEOUT_S,
            )
        except Conflict:
            # Another's, or our own renewal whose answer was lost; the next try looks.
            self._sure = False
            await self._give_up()
            return False
        except Unavailable as error:
            _log.warning("lease not renewed", extra={"reason": error.message})
            self._sure = False
            return False
        was_held, self._seq, self._sure = self.held, ack.seq, True
        self._until_s = sent_s + TTL_S - MARGIN_S
        if not was_held:
            _log.info("lease acquired", extra={"lease": self._subject, "holder": self._holder})
            await self._tell()
        return True

    async def _look(self) -> bool:
        """Learn the sequence to renew on; return whether the lease is free or ours."""
        standing = await self._js.last_from_leader(subjects.STREAM_LEASES, self._subject)
        if standing is not None and standing.body not in (b"", self._holder.encode()):
            return False
        self._seq = 0 if standing is None else standing.seq
        return True

    async def _give_up(self) -> None:
        if self.held:
            _log.warning("lease was taken by another", extra={"lease": self._subject})
        self._until_s = 0.0
        await self._tell()

    async def _tell(self) -> None:
        async with self._change:
            self._change.notify_all()

    async def _release(self) -> None:
        if not self.held:
            return
        self._until_s = 0.0
        await self._tell()
        try:
            await self._js.publish(
                self._subject,
                b"",
                headers={HEADER_TTL: "1s"},
                expected_last_subject_seq=self._seq,
                timeout_s=1.0,
            )
        except Unavailable:
            _log.info("lease left to run out", extra={"lease": self._subject})
