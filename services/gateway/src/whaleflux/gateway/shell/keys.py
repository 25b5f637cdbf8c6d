"""Tenants and keys, kept in the gateway's own log; every gateway follows it."""

import asyncio
import hashlib
import logging
from pathlib import Path

from whaleflux.common.bus import Bus, BusMessage
from whaleflux.common.clock import Clock
from whaleflux.common.contracts.gateway import GatewayEvent
from whaleflux.common.decider import Decider
from whaleflux.common.errors import Refused, Unavailable
from whaleflux.common.ids import Ids
from whaleflux.common.log import Log
from whaleflux.gateway.core.access import identify
from whaleflux.gateway.core.decide import AdmitFirstKey, Thought, decide
from whaleflux.gateway.core.evolve import evolve
from whaleflux.gateway.core.state import Key, State
from whaleflux.gateway.shell.settings import KEY_FOLLOW_EVERY_S, KEY_LOOK_EVERY_S

_log = logging.getLogger(__name__)


class Keys:
    """Tells whose key it is."""

    def __init__(self, log: Log[GatewayEvent], clock: Clock, ids: Ids) -> None:
        """Fold *log*."""
        self._decider: Decider[State, Thought, GatewayEvent] = Decider(
            log=log, clock=clock, new_state=State, decide=decide, evolve=evolve
        )
        self._clock = clock
        self._ids = ids
        self._looked_s = 0.0
        self._wake = asyncio.Event()

    async def open(self, *, bootstrap_file: str, tenant: str) -> None:
        """Read the log; make the first key from *bootstrap_file* if there is none.

        Raises:
            Refused: The file cannot be read.

        """
        await self._decider.restore()
        if self._decider.state.keys or not bootstrap_file:
            return
        try:
            secret = Path(bootstrap_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise Refused(
                f"The first key's file {bootstrap_file} cannot be read: {error.strerror}."
            ) from error
        await self._decider.cycle(
            [AdmitFirstKey(tenant, self._ids.new("key"), secret_hash(secret))]
        )

    async def follow(self, bus: Bus) -> None:
        """Take in what other gateways decide about keys, until cancelled.

        Without this a key that was revoked elsewhere would be good here until the next start.
        """
        await bus.subscribe("wf.evt.gateway.>", self._on_event)
        while True:
            self._wake.clear()
            try:
                await self._decider.catch_up()
            except Unavailable as error:
                _log.warning("keys cannot be followed now", extra={"reason": error.message})
            try:
                async with asyncio.timeout(KEY_FOLLOW_EVERY_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _on_event(self, _message: BusMessage) -> None:
        self._wake.set()

    async def identify(self, secret: str) -> Key:
        """Return the key with *secret*; an unknown one makes us look at the log again.

        Raises:
            Refused: code `unauthenticated`.

        """
        hashed = secret_hash(secret)
        now_s = self._clock.boottime_s()
        if hashed not in self._decider.state.keys and now_s - self._looked_s > KEY_LOOK_EVERY_S:
            self._looked_s = now_s
            await self._decider.catch_up()
        return identify(self._decider.state, hashed, self._clock.now())


def secret_hash(secret: str) -> str:
    """Return what is kept of a secret; it is random, so a plain hash gives nothing away."""
    return hashlib.sha256(secret.encode()).hexdigest()
