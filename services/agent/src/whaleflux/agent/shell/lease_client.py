"""Renews the node's lease with failover, and with it the fence deadline of every member.

The deadline counts from the moment the answered request was *sent*. `frozen` extends it as
`granted` does: failover is there and starts nothing elsewhere. `fenced` means that the node was
given up: every member ends, and only a node that is clean is granted anything again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from whaleflux.agent.shell.environment import Node
from whaleflux.agent.shell.shim_parts.kernel import to_json, write_atomically
from whaleflux.common.clock import Clock
from whaleflux.common.contracts.failover import (
    RENEW_EVERY_S,
    LeaseAnswer,
    LeaseReply,
    LeaseRequest,
)
from whaleflux.common.errors import WhalefluxError

ANSWER_TIMEOUT_S = 2.0
"""Longer than any healthy answer, and short enough for several tries before a node is lost."""

_log = logging.getLogger(__name__)


class Leased(Protocol):
    """What the lease rules over."""

    @property
    def alive(self) -> int:
        """Return how many members are alive or about to be."""
        ...

    def extend(self, renewed_s: float) -> None:
        """Take note that the lease was renewed at *renewed_s* (CLOCK_BOOTTIME)."""
        ...

    def allow_starts(self) -> None:
        """Let new members start."""
        ...

    def give_up(self) -> None:
        """End every member at once, and start none until `allow_starts`."""
        ...


class LeaseClient:
    """Asks every RENEW_EVERY_S, and acts on the answer."""

    def __init__(
        self,
        *,
        node: Node,
        clock: Clock,
        ask: Callable[[bytes], Awaitable[bytes]],
        leased: Leased,
        before_clean: Callable[[], Awaitable[None]],
        on_granted_again: Callable[[], None],
        say_health: Callable[[str, bool, str], None],
    ) -> None:
        """Ask by *ask*; run *before_clean* before a given-up node says that it is clean."""
        self._node = node
        self._clock = clock
        self._ask = ask
        self._leased = leased
        self._before_clean = before_clean
        self._on_granted_again = on_granted_again
        self._say_health = say_health
        self._granted = False
        self._given_up = False
        self._told = ""

    async def keep(self) -> None:
        """Renew until cancelled."""
        self._say("lease not granted yet")
        while True:
            began = self._clock.boottime_s()
            again_at_once = await self.renew()
            if not again_at_once:
                spent = self._clock.boottime_s() - began
                await asyncio.sleep(max(0.05, RENEW_EVERY_S - spent))

    async def renew(self) -> bool:
        """Ask once; True if the answer calls for asking again at once."""
        try:
            clean = await self._is_clean()
            request = LeaseRequest(
                node_id=self._node.node_id,
                boot_id=self._node.boot_id,
                agent_id=self._node.agent_id,
                clean=clean,
            )
            sent_s = self._clock.boottime_s()
            reply = LeaseReply.model_validate_json(
                await self._ask(request.model_dump_json().encode()), extra="ignore"
            )
        except (WhalefluxError, ValueError) as error:
            self._say("lease not renewed", reason=str(error))
            return False
        return self._heed(reply.answer, sent_s, clean=clean)

    def _heed(self, answer: LeaseAnswer, sent_s: float, *, clean: bool) -> bool:
        if answer is LeaseAnswer.FENCED:
            first = not self._given_up
            self._given_up, self._granted = True, False
            self._say("node was given up: ending every member")
            self._leased.give_up()
            return first and self._leased.alive == 0
        if self._given_up and not clean:
            return False  # An answer of before the node was given up extends nothing.
        self._extend(sent_s)
        if answer is LeaseAnswer.GRANTED and not self._granted:
            self._granted = True
            self._leased.allow_starts()
            if self._given_up:
                self._given_up = False
                self._on_granted_again()
        self._say(f"lease {answer.value}")
        return False

    async def _is_clean(self) -> bool:
        """Say `clean` only while nothing may start, so that no late request can be overtaken."""
        if self._granted or self._leased.alive:
            return False
        if self._given_up:
            await self._before_clean()
        return self._leased.alive == 0

    def _extend(self, sent_s: float) -> None:
        text = to_json({"renewed_boottime_s": sent_s, "boot_id": self._node.boot_id})
        write_atomically(str(self._node.folder.fence), text, durable=False)
        self._leased.extend(sent_s)

    def _say(self, what: str, reason: str = "") -> None:
        self._say_health("lease", self._granted and not reason, reason or what)
        if what != self._told:
            self._told = what
            _log.info("node lease", extra={"lease": what, "reason": reason})
