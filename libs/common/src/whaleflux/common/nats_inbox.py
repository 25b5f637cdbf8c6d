"""A durable consumer, pulled by a callback, so that a message wakes its reader at once."""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Mapping, Sequence

from whaleflux.common.bus import BusMessage, Unsubscribe
from whaleflux.common.contracts import subjects
from whaleflux.common.errors import Broken, Unavailable, WhalefluxError
from whaleflux.common.jetstream import JetStream
from whaleflux.common.log import Delivery
from whaleflux.common.streams import ConsumerSpec

PULL_MESSAGES = 256
"""Messages asked for or held at once; a full inbox is decided in well under the ack wait."""
PULL_EXPIRES_S = 5.0
"""How long the server keeps a pull; after a restart of the server it is forgotten at once."""
PULL_MARGIN_S = 1.0
"""How much later than the server we give a pull up, should its end get lost."""
RETRY_WAIT_S = 0.25
"""Between attempts when the server does not serve our pulls."""

_NS = 1_000_000_000
_ACK_TOKENS_V1 = 9
_log = logging.getLogger(__name__)


class NatsDelivery:
    """Implements `Delivery`."""

    def __init__(self, inbox: "NatsInbox", message: BusMessage) -> None:
        tokens = message.reply.split(".")
        # v1: $JS.ACK.<stream>.<consumer>.<delivered>.<seq>…; v2 has domain and account first.
        first = 4 if len(tokens) == _ACK_TOKENS_V1 else 6
        self._inbox = inbox
        self._message = message
        self._settled = False
        self.subject = message.subject
        self.body = message.body
        self.headers: Mapping[str, str] = message.headers
        self.deliveries = int(tokens[first])
        self.stream_seq = int(tokens[first + 1])

    async def ack(self) -> None:
        """Say that its consequences are durable."""
        await self._settle(b"+ACK")

    async def nak(self, *, delay_s: float = 0.0) -> None:
        """Ask for it again after *delay_s*."""
        await self._settle(b"-NAK " + json.dumps({"delay": int(delay_s * _NS)}).encode())

    async def dead_letter(self, *, service: str, reason: str) -> None:
        """Move it to the dead-letter stream, durably, and never see it again."""
        await self._inbox.bury(self, service=service, reason=reason)
        await self._settle(b"+TERM " + reason.encode()[:200].replace(b"\n", b" "))

    async def _settle(self, how: bytes) -> None:
        if self._settled:
            raise Broken(f"message {self.stream_seq} on {self.subject} was settled before")
        await self._inbox.settle(self._message.reply, how)
        self._settled = True


class NatsInbox:
    """Implements `Inbox`."""

    def __init__(self, js: JetStream, spec: ConsumerSpec) -> None:
        self._js = js
        self._bus = js.bus
        self._spec = spec
        self._arrived = asyncio.Event()
        self._queue: deque[NatsDelivery] = deque()
        self._pulls: dict[str, _Pull] = {}
        self._pull_count = 0
        self._root = ""
        self._recreate = False
        self._not_before = 0.0
        self._unsubscribe: Unsubscribe | None = None
        self._unlisten = self._bus.on_reconnect(self._on_reconnect)

    @classmethod
    async def open(
        cls,
        js: JetStream,
        *,
        stream: str,
        durable: str,
        filters: tuple[str, ...] = (),
        ack_wait_s: float = 30.0,
    ) -> "NatsInbox":
        """Create or update the consumer *durable* and start to pull from it."""
        spec = ConsumerSpec(stream=stream, durable=durable, filters=filters, ack_wait_s=ack_wait_s)
        await js.ensure_consumer(spec)
        inbox = cls(js, spec)
        inbox._root = js.bus.new_inbox() + "."
        inbox._unsubscribe = await js.bus.subscribe(inbox._root + "*", inbox._on_message)
        await inbox._pull()
        return inbox

    async def take(self, *, limit: int, wait_s: float) -> Sequence[Delivery]:
        """Return what is waiting, at most *limit*; wait up to *wait_s* for the first one."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while not self._queue:
            self._arrived.clear()
            retry_at = await self._pull()
            now = loop.time()
            if now >= deadline:
                return ()
            if self._queue:
                break
            try:
                async with asyncio.timeout(min(deadline, retry_at) - now):
                    await self._arrived.wait()
            except TimeoutError:
                continue
        taken = [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]
        await self._pull()
        return taken

    async def close(self) -> None:
        """Stop pulling; what was taken and not acknowledged comes again to the next reader."""
        self._unlisten()
        if self._unsubscribe is not None:
            await self._unsubscribe()
        self._queue.clear()
        self._pulls.clear()

    async def settle(self, reply: str, how: bytes) -> None:
        """Tell the server what became of a message."""
        await self._bus.wait_connected(PULL_EXPIRES_S)
        await self._bus.publish(reply, how)

    async def bury(self, delivery: NatsDelivery, *, service: str, reason: str) -> None:
        """Store a message in the dead-letter stream, once."""
        spec = self._spec
        headers = {
            **{k: v for k, v in delivery.headers.items() if not k.startswith("Nats-")},
            "Wf-Dead-Subject": delivery.subject,
            "Wf-Dead-Stream": spec.stream,
            "Wf-Dead-Seq": str(delivery.stream_seq),
            "Wf-Dead-Consumer": spec.durable,
            "Wf-Dead-Deliveries": str(delivery.deliveries),
            "Wf-Dead-Reason": " ".join(reason.split())[:1_000],
        }
        msg_id = f"{spec.stream}:{delivery.stream_seq}:{spec.durable}"
        await self._js.publish(
            subjects.dead_letter(service), delivery.body, msg_id=msg_id, headers=headers
        )
        _log.error(
            "message moved to the dead letters",
            extra={"subject": delivery.subject, "seq": delivery.stream_seq, "reason": reason},
        )

    async def _on_message(self, message: BusMessage) -> None:
        if message.status:
            self._on_status(message)
            return
        for token, pull in self._pulls.items():
            # The server serves pulls in the order in which they came.
            pull.left -= 1
            if pull.left == 0:
                del self._pulls[token]
            break
        self._queue.append(NatsDelivery(self, message))
        self._arrived.set()

    def _on_status(self, message: BusMessage) -> None:
        """Note that a pull is over: 404 and 408 by time, 409 and 503 by trouble."""
        self._pulls.pop(message.subject.rsplit(".", 1)[-1], None)
        if message.status in ("409", "503"):
            reason = message.headers.get("Description", "")
            _log.info("pull refused", extra={"durable": self._spec.durable, "reason": reason})
            self._recreate = True
            self._not_before = asyncio.get_running_loop().time() + RETRY_WAIT_S
        self._arrived.set()

    def _on_reconnect(self) -> None:
        self._pulls.clear()
        self._recreate = True
        self._arrived.set()

    async def _pull(self) -> float:
        """Ask for more when half of it is used; return when to look again, in loop time."""
        now = asyncio.get_running_loop().time()
        for token, pull in list(self._pulls.items()):
            if pull.until <= now:
                del self._pulls[token]
        wanted = PULL_MESSAGES - len(self._queue) - sum(p.left for p in self._pulls.values())
        if wanted >= PULL_MESSAGES // 2:
            if now < self._not_before:
                return self._not_before
            try:
                await self._send_pull(wanted, now)
            except WhalefluxError as error:
                _log.info("cannot pull", extra={"durable": self._spec.durable, "why": str(error)})
                self._not_before = now + RETRY_WAIT_S
                return self._not_before
        return min((p.until for p in self._pulls.values()), default=now + PULL_EXPIRES_S)

    async def _send_pull(self, wanted: int, now: float) -> None:
        if not self._bus.connected:
            raise Unavailable("not connected to the bus", code="disconnected")
        if self._recreate:
            await self._js.ensure_consumer(self._spec)
            self._recreate = False
        self._pull_count += 1
        token = str(self._pull_count)
        spec = self._spec
        body = json.dumps({"batch": wanted, "expires": int(PULL_EXPIRES_S * _NS)}).encode()
        self._pulls[token] = _Pull(wanted, now + PULL_EXPIRES_S + PULL_MARGIN_S)
        await self._bus.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{spec.stream}.{spec.durable}",
            body,
            reply=self._root + token,
        )


class _Pull:
    """How many messages a pull may still bring, and until when, in loop time."""

    def __init__(self, left: int, until: float) -> None:
        self.left = left
        self.until = until
