"""The NATS client's own calls and types, at the edge of the bus."""

import logging
from dataclasses import dataclass, field
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from whaleflux.common.bus_limits import (
    CLIENT_CONNECT_TIMEOUT_S,
    CLOSE_TIMEOUT_S,
    PING_INTERVAL_S,
    PINGS_OUTSTANDING_MAX,
    RECONNECT_WAIT_S,
)
from whaleflux.common.bus_message import BusMessage, Handler
from whaleflux.common.cancellation import heeding_cancellation

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Address:
    """Where the servers are and who we are there."""

    url: str
    user: str
    password: str = field(repr=False)
    name: str
    inbox_prefix: str


@dataclass(eq=False)
class Subscribed:
    """A subscription that outlives the client's own."""

    subject: str
    queue: str
    handler: Handler
    wire: Subscription | None = None

    async def end(self) -> None:
        """Stop hearing."""
        if self.wire is None:
            return
        try:
            with heeding_cancellation():
                await self.wire.unsubscribe()
        except (NatsError, OSError):
            # The client is gone, and its subscriptions with it.
            _log.debug("subscription ended with its client", extra={"subject": self.subject})


async def connect_client(client: Client, address: Address, **callbacks: Any) -> None:  # noqa: ANN401 - the client's own callbacks
    """Connect *client*, which then reconnects for ever; *callbacks* are told what happens."""
    with heeding_cancellation():
        await client.connect(
            servers=[part.strip() for part in address.url.split(",")],
            name=address.name,
            user=address.user or None,
            password=address.password or None,
            inbox_prefix=address.inbox_prefix,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]  # floats work
            ping_interval=PING_INTERVAL_S,
            max_outstanding_pings=PINGS_OUTSTANDING_MAX,
            connect_timeout=CLIENT_CONNECT_TIMEOUT_S,
            drain_timeout=int(CLOSE_TIMEOUT_S) - 1,
            **callbacks,
        )


def message_of(raw: Msg) -> BusMessage:
    """Return a message of the client as one of ours."""
    # The client keys the status description by an enum member, which hashes unlike its text.
    headers = (
        {str(getattr(k, "value", k)): v for k, v in raw.headers.items()} if raw.headers else {}
    )
    return BusMessage(raw.subject, raw.data, headers, raw.reply)
