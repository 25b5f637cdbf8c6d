"""Members' logs: from the agent that has them, else the tail that was kept in the store."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

from whaleflux.common.bus import Bus
from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.agent import LogReply, LogRequest
from whaleflux.common.contracts.assignment import log_file, log_offset_file
from whaleflux.common.errors import Refused, Unavailable
from whaleflux.gateway.core.view import Document
from whaleflux.gateway.shell.settings import (
    AGENT_TIMEOUT_S,
    HEARTBEAT_S,
    LOG_MISSES_MAX,
    LOG_POLL_S,
)

PIECE_BYTES_MAX = 262_144


class Logs:
    """Reads logs by byte cursor."""

    def __init__(self, bus: Bus, store: str | None) -> None:
        """Ask agents over *bus*; *store* is the root of the pool's store."""
        self._bus = bus
        self._store = None if store is None else Path(store)

    async def read(self, run: Document, *, attempt: int, rank: int, offset: int) -> dict[str, Any]:
        """Return a piece of the log of one member, as the API shows it.

        Raises:
            Refused: There was no such member.
            Unavailable: Neither its agent nor the store can be read now.

        """
        node_id = node_of(run, attempt, rank)
        answer: LogReply | None = None
        reason = ""
        if node_id is not None:
            try:
                answer = await self._ask(node_id, run["id"], attempt, rank, offset)
            except Unavailable as error:
                reason = error.message
        if answer is not None and answer.found:
            return {"offset": offset, **answer.model_dump()}
        kept = await asyncio.to_thread(self._kept, (run["id"], attempt, rank), offset)
        if kept is not None:
            return kept
        if reason:
            raise Unavailable(
                f"The agent of {node_id} does not answer and no log was kept: {reason}",
                code="log_unavailable",
            )
        return {"found": False, "offset": offset, "text": "", "next_offset": offset, "ended": False}

    async def follow(
        self, look: Callable[[], Awaitable[Document]], *, attempt: int, rank: int, offset: int
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield a member's log piece by piece, from before its start to its end.

        *look* returns the run as it stands now. Silence is broken by empty pieces. The last piece
        says `ended`; without one the log could not be reached any more, and one may come back
        with the last `next_offset`.
        """
        loop = asyncio.get_running_loop()
        misses = 0
        quiet_until_s = loop.time() + HEARTBEAT_S
        while misses <= LOG_MISSES_MAX:
            # Looked at before the log is read: what was written before the end is not missed.
            run = await look()
            over = run["attempt"] > attempt or run["ended_at"] is not None
            try:
                piece = await self.read(run, attempt=attempt, rank=rank, offset=offset)
            except Unavailable:
                misses += 1
                await asyncio.sleep(LOG_POLL_S)
                continue
            misses = misses + 1 if over and not piece["found"] else 0
            offset = piece["next_offset"]
            if piece["text"] or piece["ended"] or loop.time() >= quiet_until_s:
                quiet_until_s = loop.time() + HEARTBEAT_S
                yield piece
            if piece["ended"]:
                return
            if not piece["text"]:
                await asyncio.sleep(LOG_POLL_S)

    async def _ask(
        self, node_id: str, run_id: str, attempt: int, rank: int, offset: int
    ) -> LogReply:
        request = LogRequest(run_id=run_id, attempt=attempt, rank=rank, offset=offset)
        answer = await self._bus.request(
            subjects.agent_question(node_id, "logs"),
            request.model_dump_json().encode(),
            timeout_s=AGENT_TIMEOUT_S,
        )
        return LogReply.model_validate_json(answer.body)

    def _kept(self, who: tuple[str, int, int], offset: int) -> dict[str, Any] | None:
        """Read the tail that the agent kept; what lies before it is a gap the answer shows."""
        if self._store is None:
            return None
        try:
            with (self._store / log_file(*who)).open("rb") as file:
                begins = _number(self._store / log_offset_file(*who))
                offset = max(offset, begins)
                file.seek(offset - begins)
                raw = file.read(PIECE_BYTES_MAX)
                more = bool(file.read(1))
        except OSError:
            return None
        return {
            "found": True,
            "offset": offset,
            "text": raw.decode(errors="replace"),
            "next_offset": offset + len(raw),
            "ended": not more,
        }


def _number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def node_of(run: Document, attempt: int, rank: int) -> str | None:
    """Return the node that runs or ran a member, None while that is not decided.

    Raises:
        Refused: There is no such attempt, or no such rank in it.

    """
    if attempt == run["attempt"]:
        members = run["members"]
    else:
        ended = [a for a in run["attempts"] if a["attempt"] == attempt]
        if not ended:
            raise Refused(
                f"Run {run['id']} has no attempt {attempt}; the newest is {run['attempt']}.",
                code="not_found",
            )
        members = ended[0]["members"]
    if not members:
        return None
    for member in members:
        if member["rank"] == rank:
            node: str = member["node_id"]
            return node
    raise Refused(
        f"Attempt {attempt} of {run['id']} has ranks 0 to {len(members) - 1}, not {rank}.",
        code="not_found",
    )
