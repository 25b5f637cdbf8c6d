"""One supervised connection to NATS; only `bus_client` beside it imports the client.

The client is used for its wire protocol alone: connect, publish, subscribe with a callback. What
its own helpers lose (errors, a client that closed for good, requests in flight) is kept here.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from whaleflux.common.bus_client import Address, Subscribed, connect_client, message_of
from whaleflux.common.bus_limits import (
    CLIENT_CONNECT_TIMEOUT_S,
    CLOSE_TIMEOUT_S,
    PENDING_BYTES_MAX,
    PENDING_MESSAGES_MAX,
    REBUILD_WAIT_S_MAX,
    RECONNECT_WAIT_S,
    SUBSCRIBE_CHECK_S,
)
from whaleflux.common.bus_message import (
    HEADER_ERROR_CODE,
    Answerer,
    BusMessage,
    Handler,
    Unsubscribe,
    error_of,
    headers_of,
)
from whaleflux.common.bus_replies import Replies, ReplyHandler
from whaleflux.common.cancellation import heeding_cancellation
from whaleflux.common.errors import Broken, Refused, Unavailable, WhalefluxError

__all__ = ["Bus", "BusMessage", "Unsubscribe"]

_log = logging.getLogger(__name__)
_VIOLATION = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"', re.I)


class Bus:
    """A connection that outlives its client."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._client = Client()
        self._subscriptions: list[Subscribed] = []
        self._replies = Replies()
        self._violations: set[str] = set()
        self._listeners: list[Callable[[], None]] = []
        self._up = asyncio.Event()
        self._client_closed = asyncio.Event()
        self._closing = False
        self._last_error = "no server answered"
        self._supervisor: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        *,
        url: str,
        user: str,
        password: str,
        name: str,
        inbox_prefix: str = "_INBOX",
        connect_timeout_s: float = 10.0,
    ) -> "Bus":
        """Return a connected bus.

        *url* is one address or several with commas between them.

        Raises:
            Unavailable: No server let us in within *connect_timeout_s*.

        """
        bus = cls(Address(url, user, password, name, inbox_prefix))
        await bus._open(connect_timeout_s)
        # The supervisor belongs to the connection as its read loop does: `close` ends it, and it
        # cannot raise, so no TaskGroup of the service needs to watch it.
        bus._supervisor = asyncio.get_running_loop().create_task(bus._supervise())
        return bus

    @property
    def connected(self) -> bool:
        """Return whether a server is reachable now, as far as we have noticed."""
        return self._up.is_set() and self._client.is_connected

    async def publish(
        self,
        subject: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        reply: str = "",
    ) -> None:
        """Send once, without knowing whether anybody hears.

        Raises:
            Unavailable: There is no connection; nothing was sent.
            Refused: The message is larger than the server takes.

        """
        if not self.connected:
            raise Unavailable(f"not connected to the bus: {self._last_error}", code="disconnected")
        await self._send(subject, body, headers, reply)

    async def request(
        self,
        subject: str,
        body: bytes,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> BusMessage:
        """Ask and wait for one answer.

        Without a connection it waits for one within *timeout_s*, so that a server's restart costs
        its callers a pause and no error.

        Raises:
            Unavailable: code `no_responders`, `timeout` or `disconnected`; after the last two the
                question may have arrived.
            Refused: The answerer refuses, or this user may not ask there.

        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        await self.wait_connected(timeout_s)
        answer = await self.ask(
            subject, body, headers=headers, timeout_s=max(deadline - loop.time(), 0.001)
        )
        message = await answer
        if HEADER_ERROR_CODE in message.headers:
            raise error_of(message)
        return message

    async def ask(
        self,
        subject: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> "asyncio.Future[BusMessage]":
        """Send a question and return the future of its answer, which ends within *timeout_s*."""
        reply, future = self._replies.future(subject, timeout_s)
        try:
            await self.publish(subject, body, headers=headers, reply=reply)
        except BaseException:
            future.cancel()
            raise
        return future

    def open_reply(self, handler: ReplyHandler, *, of: str) -> tuple[str, Callable[[], None]]:
        """Return a subject on which *handler* hears any number of replies, and how to stop.

        *handler* also gets the error, once, when the connection drops or when publishing to *of*
        is not permitted.
        """
        return self._replies.open(handler, of=of)

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> Unsubscribe:
        """Hear *subject*; messages are handled one after another; survives every reconnect.

        Raises:
            Refused: This user may not hear that subject.

        """
        subscribed = Subscribed(subject, queue, handler)
        self._subscriptions.append(subscribed)
        if self.connected:
            await self._subscribe_wire(subscribed)
            await self._check_permitted(subscribed)

        async def unsubscribe() -> None:
            if subscribed in self._subscriptions:
                self._subscriptions.remove(subscribed)
            await subscribed.end()

        return unsubscribe

    async def answer(self, subject: str, handler: Answerer, *, queue: str = "") -> Unsubscribe:
        """Serve a question: what *handler* returns, or raises, goes to the asker."""

        async def respond(message: BusMessage) -> None:
            headers: dict[str, str] | None = None
            try:
                body = await handler(message)
            except WhalefluxError as error:
                body, headers = b"", headers_of(error)
            except Exception:
                _log.exception("question could not be answered", extra={"subject": subject})
                body, headers = b"", headers_of(Broken("the answering service failed"))
            if message.reply:
                await self.publish(message.reply, body, headers=headers)

        return await self.subscribe(subject, respond, queue=queue)

    def on_reconnect(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call *listener* each time the connection is back; return how to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def new_inbox(self) -> str:
        """Return a subject that nobody else hears."""
        return self._client.new_inbox()

    async def wait_connected(self, timeout_s: float) -> None:
        """Wait for a connection.

        Raises:
            Unavailable: code `disconnected`: there was none for *timeout_s*.

        """
        if self.connected:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            raise Unavailable(
                f"not connected to the bus: {self._last_error}", code="disconnected"
            ) from None

    async def close(self) -> None:
        """Let handlers finish what they have, then end the connection; never hangs."""
        self._closing = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor})
        self._replies.fail(Unavailable("the bus was closed", code="disconnected"))
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._client.drain()
        except (NatsError, OSError, TimeoutError):
            await self._abandon()
        self._up.clear()

    async def _abandon(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._client.close()
        except (NatsError, OSError, TimeoutError):
            _log.warning("connection did not close in time")

    async def _open(self, timeout_s: float) -> None:
        self._client = Client()
        self._client_closed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await connect_client(
                    self._client,
                    self._address,
                    error_cb=self._on_error,
                    disconnected_cb=self._on_disconnected,
                    reconnected_cb=self._on_connected,
                    closed_cb=self._on_closed,
                    lame_duck_mode_cb=self._on_lame_duck,
                )
                await self._subscribe_replies()
                for subscribed in self._subscriptions:
                    await self._subscribe_wire(subscribed)
        except (NatsError, OSError, TimeoutError) as error:
            await self._abandon()
            raise Unavailable(
                f"cannot connect to {self._address.url} as {self._address.user or 'nobody'}:"
                f" {self._last_error}",
                code="disconnected",
            ) from error
        self._up.set()

    async def _subscribe_replies(self) -> None:
        self._replies.root = self._client.new_inbox() + "."
        await self._client.subscribe(
            self._replies.root + "*",
            cb=self._on_reply,
            pending_msgs_limit=0,
            pending_bytes_limit=0,
        )

    async def _subscribe_wire(self, subscribed: Subscribed) -> None:
        async def forward(raw: Msg) -> None:
            try:
                await subscribed.handler(message_of(raw))
            except Exception:
                _log.exception("message handler failed", extra={"subject": raw.subject})

        with heeding_cancellation():
            subscribed.wire = await self._client.subscribe(
                subscribed.subject,
                queue=subscribed.queue,
                cb=forward,
                pending_msgs_limit=PENDING_MESSAGES_MAX,
                pending_bytes_limit=PENDING_BYTES_MAX,
            )

    async def _check_permitted(self, subscribed: Subscribed) -> None:
        # The server says no by an error on the side; a message to ourselves comes after it. (The
        # client's flush overtakes what is queued and, when cancelled, breaks its read loop.)
        reply, spoken = self._replies.future("", SUBSCRIBE_CHECK_S)
        try:
            await self._send(reply, b"", None, "")
            await spoken
        except Unavailable:
            return
        except Refused:
            pass  # Not even this was permitted; the word on the subscription came before.
        finally:
            spoken.cancel()
        if subscribed.subject in self._violations:
            self._violations.discard(subscribed.subject)
            self._subscriptions.remove(subscribed)
            raise Refused(
                f"user {self._address.user or 'nobody'} may not hear {subscribed.subject}",
                code="not_permitted",
            )

    async def _send(
        self, subject: str, body: bytes, headers: Mapping[str, str] | None, reply: str
    ) -> None:
        try:
            with heeding_cancellation():
                await self._client.publish(
                    subject, body, reply=reply, headers=dict(headers) if headers else None
                )
        except NatsError as error:
            if "maximum payload" in str(error).lower() or "MaxPayload" in type(error).__name__:
                raise Refused(
                    f"{len(body)} bytes are more than the bus takes in one message"
                    f" ({self._client.max_payload})",
                    code="too_large",
                ) from error
            raise Unavailable(f"the bus did not take it: {error}", code="disconnected") from error

    async def _supervise(self) -> None:
        """Rebuild the client whenever it closed for good: revoked login, protocol error."""
        wait_s = RECONNECT_WAIT_S
        while True:
            await self._client_closed.wait()
            try:
                await self._open(CLIENT_CONNECT_TIMEOUT_S + 1)
            except Unavailable as error:
                _log.warning("bus client could not be rebuilt", extra={"reason": error.message})
                self._client_closed.set()
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, REBUILD_WAIT_S_MAX)
                continue
            wait_s = RECONNECT_WAIT_S
            _log.warning("bus client was rebuilt")
            self._tell_listeners()

    async def _on_reply(self, raw: Msg) -> None:
        self._replies.hear(message_of(raw))

    async def _on_connected(self) -> None:
        for subscribed in self._subscriptions:
            # The client replays what it knows; what came while it was away it never heard of.
            if subscribed.wire is None:
                await self._subscribe_wire(subscribed)
        self._up.set()
        _log.info("bus is connected again")
        self._tell_listeners()

    async def _on_disconnected(self) -> None:
        self._up.clear()
        if not self._closing:
            _log.warning("bus connection is lost", extra={"reason": self._last_error})
        self._replies.fail(Unavailable("the bus connection was lost", code="disconnected"))

    async def _on_closed(self) -> None:
        self._up.clear()
        self._client_closed.set()

    async def _on_lame_duck(self) -> None:
        await self._client.force_reconnect()

    async def _on_error(self, error: Exception) -> None:
        before, self._last_error = self._last_error, str(error) or type(error).__name__
        violation = _VIOLATION.search(self._last_error)
        if violation is None:
            # While a server is away the client says the same four times a second.
            level = logging.DEBUG if self._last_error == before else logging.INFO
            _log.log(level, "bus client reports", extra={"reason": self._last_error})
            return
        verb, subject = violation.groups()
        _log.warning("bus permission denied", extra={"verb": verb, "subject": subject})
        if verb.lower() == "subscription":
            self._violations.add(subject)
            return
        user = self._address.user or "nobody"
        refusal = Refused(f"user {user} may not publish to {subject}", code="not_permitted")
        self._replies.refuse(subject, refusal)

    def _tell_listeners(self) -> None:
        for listener in list(self._listeners):
            listener()
