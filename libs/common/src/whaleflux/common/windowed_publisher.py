"""Many messages into a stream, each acknowledged, without waiting for each."""

import asyncio
from collections import deque
from collections.abc import Mapping

from whaleflux.common.bus_message import BusMessage
from whaleflux.common.contracts.subjects import HEADER_MSG_ID
from whaleflux.common.errors import WhalefluxError
from whaleflux.common.jetstream import API_TIMEOUT_S, JetStream, ack_of

UNACKED_MAX = 1_000
"""Publishes on the way at once; more only grows the server's queue (it drops at 10,000)."""


class WindowedPublisher:
    """Stores many messages with a bounded number unacknowledged; no error is lost.

    After an error nothing is on its way any more: publish everything since the last successful
    `flush` again, with the same ids; the stream drops what it has already.
    """

    def __init__(self, js: JetStream, *, window: int = UNACKED_MAX) -> None:
        """Have at most *window* messages on the way."""
        self._bus = js.bus
        self._window = window
        self._flying: deque[asyncio.Future[BusMessage]] = deque()

    async def publish(
        self,
        subject: str,
        body: bytes,
        *,
        msg_id: str,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = API_TIMEOUT_S,
    ) -> None:
        """Send, after waiting for room in the window.

        Raises:
            Unavailable: This or an earlier message may not be stored.
            Refused: The stream does not take this or an earlier message.

        """
        try:
            while self._flying and (self._flying[0].done() or len(self._flying) >= self._window):
                ack_of(await self._flying.popleft())
            merged = {**(headers or {}), HEADER_MSG_ID: msg_id}
            await self._bus.wait_connected(timeout_s)
            self._flying.append(
                await self._bus.ask(subject, body, headers=merged, timeout_s=timeout_s)
            )
        except WhalefluxError:
            await self._settle_all()
            raise

    async def flush(self) -> None:
        """Wait until everything sent is stored; raises the first error, as `publish` does."""
        error = await self._settle_all()
        if error is not None:
            raise error

    async def _settle_all(self) -> WhalefluxError | None:
        first: WhalefluxError | None = None
        while self._flying:
            try:
                ack_of(await self._flying.popleft())
            except WhalefluxError as error:
                first = first or error
        return first
