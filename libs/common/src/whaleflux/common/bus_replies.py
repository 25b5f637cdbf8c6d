"""Answers on their way: who waits for what, and what becomes of them when the line drops."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from whaleflux.common.bus_message import STATUS_NO_RESPONDERS, BusMessage
from whaleflux.common.errors import Refused, Unavailable, WhalefluxError

ReplyHandler = Callable[[BusMessage | WhalefluxError], None]


@dataclass(eq=False)
class _Pending:
    subject: str
    handler: ReplyHandler


class Replies:
    """Reply subjects below `root` and those who wait there."""

    def __init__(self) -> None:
        """Wait for nothing; `root` is set once a client is connected."""
        self.root = ""
        self._count = 0
        self._pending: dict[str, _Pending] = {}

    def open(self, handler: ReplyHandler, *, of: str) -> tuple[str, Callable[[], None]]:
        """Return a subject on which *handler* hears replies to *of*, and how to stop.

        With an empty *of* one writes to the reply subject itself.
        """
        self._count += 1
        token = str(self._count)
        self._pending[token] = _Pending(of or self.root + token, handler)
        return self.root + token, lambda: self._forget(token)

    def future(self, subject: str, timeout_s: float) -> tuple[str, "asyncio.Future[BusMessage]"]:
        """Return a reply subject and the future of the one answer, which ends in time."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[BusMessage] = loop.create_future()

        def settle(outcome: BusMessage | WhalefluxError) -> None:
            if future.done():
                return
            if isinstance(outcome, WhalefluxError):
                future.set_exception(outcome)
            elif outcome.status == STATUS_NO_RESPONDERS and not outcome.body:
                future.set_exception(
                    Unavailable(f"nobody answers on {subject}", code="no_responders")
                )
            else:
                future.set_result(outcome)

        def expire() -> None:
            settle(Unavailable(f"no answer on {subject} in {timeout_s:.3g} s", code="timeout"))

        reply, close = self.open(settle, of=subject)
        timer = loop.call_later(timeout_s, expire)

        def finish(_: "asyncio.Future[BusMessage]") -> None:
            timer.cancel()
            close()

        future.add_done_callback(finish)
        return reply, future

    def hear(self, message: BusMessage) -> None:
        """Hand an answer to who waits for it; a late one is dropped."""
        pending = self._pending.get(message.subject[len(self.root) :])
        if pending is not None:
            pending.handler(message)

    def fail(self, error: WhalefluxError) -> None:
        """Tell everybody who waits that no answer will come."""
        pending, self._pending = self._pending, {}
        for entry in pending.values():
            entry.handler(error)

    def refuse(self, subject: str, error: Refused) -> None:
        """Tell those who asked *subject* that they may not."""
        for token, pending in list(self._pending.items()):
            if pending.subject == subject:
                self._forget(token)
                pending.handler(error)

    def _forget(self, token: str) -> None:
        self._pending.pop(token, None)
