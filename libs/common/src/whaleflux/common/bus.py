"""One supervised connection to NATS, and the only place that imports its client.

The client is used for its wire protocol alone: connect, publish, subscribe with a callback. What
its own helpers lose (errors of asynchronous publishes, a client that closed for good, requests in
flight when the connection drops) is looked after here.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from whaleflux.common.errors import Broken, Refused, Unavailable, WhalefluxError

RECONNECT_WAIT_S = 0.25
"""Between attempts to reach a server that went away; a restart takes 20 ms to 700 ms."""
PING_INTERVAL_S = 5
PINGS_OUTSTANDING_MAX = 2
"""A frozen server is noticed after 15 s at the latest; the library's default takes six minutes."""
CLIENT_CONNECT_TIMEOUT_S = 2
REBUILD_WAIT_S_MAX = 5.0
"""Longest pause between attempts to rebuild a client that closed for good."""
SUBSCRIBE_CHECK_S = 2.0
"""How long a new subscription waits for the server to say that it is not permitted."""
CLOSE_TIMEOUT_S = 3.0
"""A close that takes longer is given up; the process is ending anyway."""
PENDING_MESSAGES_MAX = 65_536
PENDING_BYTES_MAX = 64 * 1024 * 1024
"""What one subscription may hold before the client drops messages and says so."""

HEADER_STATUS = "Status"
HEADER_ERROR = "Nats-Service-Error"
HEADER_ERROR_CODE = "Nats-Service-Error-Code"
STATUS_NO_RESPONDERS = "503"

_log = logging.getLogger(__name__)
_VIOLATION = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"', re.I)


@dataclass(frozen=True, slots=True)
class BusMessage:
    """What came over the wire."""

    subject: str
    body: bytes
    headers: Mapping[str, str]
    reply: str

    @property
    def status(self) -> str:
        """Return the server's status code, or an empty string for an ordinary message."""
        return self.headers.get(HEADER_STATUS, "")


Handler = Callable[[BusMessage], Awaitable[None]]
Answerer = Callable[[BusMessage], Awaitable[bytes]]
Unsubscribe = Callable[[], Awaitable[None]]
ReplyHandler = Callable[["BusMessage | WhalefluxError"], None]


@dataclass(eq=False)
class _Subscribed:
    subject: str
    queue: str
    handler: Handler
    wire: Subscription | None = None


@dataclass(eq=False)
class _Pending:
    subject: str
    handler: ReplyHandler


@dataclass(frozen=True)
class _Address:
    url: str
    user: str
    password: str = field(repr=False)
    name: str
    inbox_prefix: str


class Bus:
    """A connection that outlives its client."""

    def __init__(self, address: _Address) -> None:
        self._address = address
        self._client = Client()
        self._subscriptions: list[_Subscribed] = []
        self._pending: dict[str, _Pending] = {}
        self._reply_root = ""
        self._reply_count = 0
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
        bus = cls(_Address(url, user, password, name, inbox_prefix))
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
            raise _error_of(message)
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

        reply, close = self.open_reply(settle, of=subject)
        timer = loop.call_later(timeout_s, expire)

        def finish(_: "asyncio.Future[BusMessage]") -> None:
            timer.cancel()
            close()

        future.add_done_callback(finish)
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
        self._reply_count += 1
        token = str(self._reply_count)
        self._pending[token] = _Pending(of, handler)
        return self._reply_root + token, lambda: self._forget(token)

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> Unsubscribe:
        """Hear *subject*; messages are handled one after another; survives every reconnect.

        Raises:
            Refused: This user may not hear that subject.

        """
        subscribed = _Subscribed(subject, queue, handler)
        self._subscriptions.append(subscribed)
        if self.connected:
            await self._subscribe_wire(subscribed)
            await self._check_permitted(subscribed)

        async def unsubscribe() -> None:
            if subscribed in self._subscriptions:
                self._subscriptions.remove(subscribed)
            await _unsubscribe_wire(subscribed)

        return unsubscribe

    async def answer(self, subject: str, handler: Answerer, *, queue: str = "") -> Unsubscribe:
        """Serve a question: what *handler* returns, or raises, goes to the asker."""

        async def respond(message: BusMessage) -> None:
            headers: dict[str, str] | None = None
            try:
                body = await handler(message)
            except WhalefluxError as error:
                body, headers = b"", _headers_of(error)
            except Exception:
                _log.exception("question could not be answered", extra={"subject": subject})
                body, headers = b"", _headers_of(Broken("the answering service failed"))
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
        self._fail_pending(Unavailable("the bus was closed", code="disconnected"))
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
                await self._client.connect(
                    servers=[part.strip() for part in self._address.url.split(",")],
                    name=self._address.name,
                    user=self._address.user or None,
                    password=self._address.password or None,
                    inbox_prefix=self._address.inbox_prefix,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]  # floats work
                    ping_interval=PING_INTERVAL_S,
                    max_outstanding_pings=PINGS_OUTSTANDING_MAX,
                    connect_timeout=CLIENT_CONNECT_TIMEOUT_S,
                    drain_timeout=int(CLOSE_TIMEOUT_S) - 1,
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
        self._reply_root = self._client.new_inbox() + "."
        await self._client.subscribe(
            self._reply_root + "*",
            cb=self._on_reply,
            pending_msgs_limit=0,
            pending_bytes_limit=0,
        )

    async def _subscribe_wire(self, subscribed: _Subscribed) -> None:
        async def forward(raw: Msg) -> None:
            try:
                await subscribed.handler(_message(raw))
            except Exception:
                _log.exception("message handler failed", extra={"subject": raw.subject})

        subscribed.wire = await self._client.subscribe(
            subscribed.subject,
            queue=subscribed.queue,
            cb=forward,
            pending_msgs_limit=PENDING_MESSAGES_MAX,
            pending_bytes_limit=PENDING_BYTES_MAX,
        )

    async def _check_permitted(self, subscribed: _Subscribed) -> None:
        # The server says no by an error on the side; a round trip makes sure that it has spoken.
        try:
            async with asyncio.timeout(SUBSCRIBE_CHECK_S):
                await self._client.flush()
        except (NatsError, OSError, TimeoutError):
            return
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
        pending = self._pending.get(raw.subject[len(self._reply_root) :])
        if pending is not None:
            pending.handler(_message(raw))

    async def _on_connected(self) -> None:
        self._up.set()
        _log.info("bus is connected again")
        self._tell_listeners()

    async def _on_disconnected(self) -> None:
        self._up.clear()
        if not self._closing:
            _log.warning("bus connection is lost", extra={"reason": self._last_error})
        self._fail_pending(Unavailable("the bus connection was lost", code="disconnected"))

    async def _on_closed(self) -> None:
        self._up.clear()
        self._client_closed.set()

    async def _on_lame_duck(self) -> None:
        await self._client.force_reconnect()

    async def _on_error(self, error: Exception) -> None:
        self._last_error = str(error) or type(error).__name__
        violation = _VIOLATION.search(self._last_error)
        if violation is None:
            _log.info("bus client reports", extra={"reason": self._last_error})
            return
        verb, subject = violation.groups()
        _log.warning("bus permission denied", extra={"verb": verb, "subject": subject})
        if verb.lower() == "subscription":
            self._violations.add(subject)
            return
        user = self._address.user or "nobody"
        refusal = Refused(f"user {user} may not publish to {subject}", code="not_permitted")
        for token, pending in list(self._pending.items()):
            if pending.subject == subject:
                self._forget(token)
                pending.handler(refusal)

    def _tell_listeners(self) -> None:
        for listener in list(self._listeners):
            listener()

    def _fail_pending(self, error: WhalefluxError) -> None:
        pending, self._pending = self._pending, {}
        for entry in pending.values():
            entry.handler(error)

    def _forget(self, token: str) -> None:
        self._pending.pop(token, None)


def _message(raw: Msg) -> BusMessage:
    # The client keys the status description by an enum member, which hashes unlike its text.
    headers = (
        {str(getattr(k, "value", k)): v for k, v in raw.headers.items()} if raw.headers else {}
    )
    return BusMessage(raw.subject, raw.data, headers, raw.reply)


async def _unsubscribe_wire(subscribed: _Subscribed) -> None:
    if subscribed.wire is None:
        return
    try:
        await subscribed.wire.unsubscribe()
    except (NatsError, OSError):
        # The client is gone, and its subscriptions with it.
        _log.debug("subscription ended with its client", extra={"subject": subscribed.subject})


def _headers_of(error: WhalefluxError) -> dict[str, str]:
    match error:
        case Refused():
            status = "400"
        case Unavailable():
            status = "503"
        case _:
            status = "500"
    return {HEADER_ERROR: f"{error.code}: {error.message}", HEADER_ERROR_CODE: status}


def _error_of(message: BusMessage) -> WhalefluxError:
    code, _, sentence = message.headers.get(HEADER_ERROR, "").partition(": ")
    if message.headers[HEADER_ERROR_CODE] == "400":
        return Refused(sentence, code=code)
    return Unavailable(sentence, code=code)
