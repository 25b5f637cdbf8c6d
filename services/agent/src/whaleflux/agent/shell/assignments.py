"""Hears what the node should be running, and keeps the newest of it on disk.

The long poll (`MSG.NEXT` of the durable consumer that bears the node's name) wakes the agent within
a millisecond. It acknowledges nothing, so whatever a broken connection swallowed is fetched again
by a direct read of the last value: at the start, after each disturbance, and with each new poll.
"""

import asyncio
import json
import logging
from collections.abc import Callable

from whaleflux.agent.shell.folders import NodeFolder
from whaleflux.agent.shell.shim_parts.kernel import write_atomically
from whaleflux.common.bus import Bus, BusMessage
from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.assignment import Assignment
from whaleflux.common.errors import Unavailable, WhalefluxError
from whaleflux.common.jetstream import JetStream

POLL_EXPIRES_S = 30.0
POLL_MARGIN_S = 2.0
"""How much later than the server we give up a poll, should its end get lost."""
RETRY_FIRST_S = 0.05
RETRY_MOST_S = 1.0
"""Time between two polls that the server does not serve grows from one to the other."""

POLL_EXPIRED = "408"
POLL_LOST = "lost"

_NS = 1_000_000_000
_log = logging.getLogger(__name__)


class Assignments:
    """The newest assignment, and the ears for newer ones."""

    def __init__(
        self,
        js: JetStream,
        *,
        node_id: str,
        folder: NodeFolder,
        accept: Callable[[Assignment], None],
    ) -> None:
        """Hand each assignment that is newer than all before it to *accept*."""
        self._js = js
        self._bus: Bus = js.bus
        self._node_id = node_id
        self._folder = folder
        self._accept = accept
        self.current: Assignment | None = None
        self._inbox = ""
        self._polls = 0
        self._answered: asyncio.Future[str] | None = None

    def restore(self) -> None:
        """Go on with what the disk has, before the bus has answered."""
        try:
            raw = self._folder.assignment.read_bytes()
            self.current = Assignment.model_validate_json(raw, extra="ignore")
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            _log.error("kept assignment cannot be read", extra={"reason": str(error)})
            return
        self._accept(self.current)

    def take(self, body: bytes) -> bool:
        """Accept *body* if it is newer than what we have; True if it was."""
        try:
            heard = Assignment.model_validate_json(body, extra="ignore")
        except ValueError as error:
            _log.error("assignment cannot be read", extra={"reason": str(error)})
            return False
        if heard.node_id != self._node_id:
            _log.error("assignment is for another node", extra={"node_id": heard.node_id})
            return False
        if self.current is not None and _age(heard) <= _age(self.current):
            return False
        # Only the disk makes "ignores older ones" true after a power cut, hence durable.
        write_atomically(str(self._folder.assignment), heard.model_dump_json(), durable=True)
        self.current = heard
        self._accept(heard)
        return True

    async def refresh(self) -> None:
        """Read the last value of the node's subject.

        Raises:
            Unavailable: The stream did not answer.

        """
        subject = subjects.assignment(self._node_id)
        stored = await self._js.last(subjects.STREAM_ASSIGNMENTS, subject)
        if stored is not None:
            self.take(stored.body)

    async def follow(self) -> None:
        """Poll until cancelled."""
        self._inbox = self._bus.new_inbox()
        unsubscribe = await self._bus.subscribe(f"{self._inbox}.*", self._hear)
        stop_listening = self._bus.on_reconnect(lambda: self._settle(POLL_LOST))
        try:
            await self._follow()
        finally:
            stop_listening()
            await unsubscribe()

    async def _follow(self) -> None:
        wait_s = RETRY_FIRST_S
        fetch = True
        while True:
            try:
                if fetch:
                    await self.refresh()
                status = await self._poll_once()
                fetch = status != ""
                if status in ("", POLL_EXPIRED, POLL_LOST):
                    wait_s = RETRY_FIRST_S
                    continue
                raise Unavailable(f"poll refused with status {status}", code="not_served")
            except WhalefluxError as error:
                _log.debug("assignment not polled", extra={"reason": str(error)})
                fetch = True
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_MOST_S)

    async def _poll_once(self) -> str:
        """Wait for the next message; return the status that came instead, if one did."""
        self._polls += 1
        self._answered = asyncio.get_running_loop().create_future()
        name = f"$JS.API.CONSUMER.MSG.NEXT.{subjects.STREAM_ASSIGNMENTS}.{self._node_id}"
        body = json.dumps({"batch": 1, "expires": int(POLL_EXPIRES_S * _NS)}).encode()
        await self._bus.wait_connected(POLL_EXPIRES_S)
        await self._bus.publish(name, body, reply=f"{self._inbox}.{self._polls}")
        try:
            async with asyncio.timeout(POLL_EXPIRES_S + POLL_MARGIN_S):
                return await self._answered
        except TimeoutError:
            return POLL_LOST

    async def _hear(self, message: BusMessage) -> None:
        if not message.status:
            # A message of the stream bears the stream's subject, not that of our poll.
            self.take(message.body)
            self._settle("")
        elif message.subject == f"{self._inbox}.{self._polls}":
            self._settle(message.status)

    def _settle(self, status: str) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(status)


def _age(assignment: Assignment) -> tuple[int, int]:
    return assignment.incarnation, assignment.version
