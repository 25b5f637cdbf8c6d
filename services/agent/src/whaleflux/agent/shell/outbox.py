"""What the agent has to say, kept on disk until JetStream has acknowledged it.

Each message is a file before it is sent, and is deleted after its acknowledgement. Messages of one
lane (a member) go out in order; lanes do not wait for one another. A message that was sent twice
is one message to JetStream (`Nats-Msg-Id`) and to its readers (idempotent by content).
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from whaleflux.agent.shell.folders import read_json
from whaleflux.agent.shell.shim_parts.kernel import write_atomically
from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.agent import AgentEvent
from whaleflux.common.errors import WhalefluxError

RETRY_FIRST_S = 0.1
RETRY_MOST_S = 2.0
"""Time between two tries grows from one to the other, so that an outage costs little."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    """One event on its way."""

    subject: str
    type: str
    body: bytes
    msg_id: str


Publish = Callable[[OutboxMessage], Awaitable[None]]
"""Returns once JetStream has the message; raises a WhalefluxError otherwise."""


@dataclass(slots=True)
class _Entry:
    path: Path
    message: OutboxMessage
    acked: asyncio.Future[None]


class Outbox:
    """The only way by which lasting facts leave the agent."""

    def __init__(
        self, folder: Path, *, node_id: str, publish: Publish, group: asyncio.TaskGroup
    ) -> None:
        self._folder = folder
        self._node_id = node_id
        self._publish = publish
        self._group = group
        self._lanes: dict[str, deque[_Entry]] = {}
        self._by_id: dict[str, _Entry] = {}
        self._next = 1

    def restore(self) -> int:
        """Take up what an earlier agent left unsent; return how many messages."""
        for path in sorted(self._folder.glob("*.json")):
            self._next = max(self._next, int(path.stem) + 1)
            kept = read_json(path)
            if kept is None:
                path.unlink()
                continue
            message = OutboxMessage(
                kept["subject"], kept["type"], kept["body"].encode(), kept["msg_id"]
            )
            self._enqueue(kept["lane"], path, message)
        return len(self._by_id)

    def post(
        self, event: AgentEvent, *, about: str, lane: str, msg_id: str
    ) -> asyncio.Future[None]:
        """Keep *event* and send it; the future is done when it is acknowledged."""
        if msg_id in self._by_id:
            return self._by_id[msg_id].acked
        message = self.message(event, about=about, msg_id=msg_id)
        path = self._folder / f"{self._next:012d}.json"
        self._next += 1
        text = {
            "lane": lane,
            "subject": message.subject,
            "type": message.type,
            "msg_id": msg_id,
            "body": message.body.decode(),
        }
        write_atomically(str(path), json.dumps(text), durable=False)
        return self._enqueue(lane, path, message)

    def message(self, event: AgentEvent, *, about: str, msg_id: str) -> OutboxMessage:
        """Return *event* as it goes over the wire."""
        subject = subjects.agent_event(event.type, self._node_id, about)
        return OutboxMessage(subject, event.type, event.model_dump_json().encode(), msg_id)

    def pending(self, msg_id: str) -> asyncio.Future[None] | None:
        """Return the acknowledgement that *msg_id* waits for, or None."""
        entry = self._by_id.get(msg_id)
        return None if entry is None else entry.acked

    async def try_once(self, message: OutboxMessage) -> bool:
        """Send what may be lost; False if it was."""
        try:
            await self._publish(message)
        except WhalefluxError:
            return False
        return True

    def _enqueue(self, lane: str, path: Path, message: OutboxMessage) -> asyncio.Future[None]:
        entry = _Entry(path, message, asyncio.get_running_loop().create_future())
        self._by_id[message.msg_id] = entry
        waiting = self._lanes.get(lane)
        if waiting is None:
            self._lanes[lane] = deque([entry])
            self._group.create_task(self._run_lane(lane))
        else:
            waiting.append(entry)
        return entry.acked

    async def _run_lane(self, lane: str) -> None:
        waiting = self._lanes[lane]
        while waiting:
            entry = waiting[0]
            await self._send(entry.message)
            entry.path.unlink(missing_ok=True)
            waiting.popleft()
            del self._by_id[entry.message.msg_id]
            if not entry.acked.done():
                entry.acked.set_result(None)
        del self._lanes[lane]

    async def _send(self, message: OutboxMessage) -> None:
        wait_s, told = RETRY_FIRST_S, ""
        while True:
            try:
                await self._publish(message)
                return
            except WhalefluxError as error:
                if error.code != told:
                    told = error.code
                    _log.warning(
                        "event not acknowledged, trying on",
                        extra={"subject": message.subject, "reason": str(error)},
                    )
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, RETRY_MOST_S)
