"""`/v1/events`: what happens, as server-sent events that resume by cursor."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Header, Query

from whaleflux.common.errors import Refused, Unavailable
from whaleflux.gateway.core.access import Permission
from whaleflux.gateway.shell.feed import Feed, FeedEvent, Resync
from whaleflux.gateway.shell.gate import Gated
from whaleflux.gateway.shell.problems import Problem
from whaleflux.gateway.shell.settings import HEARTBEAT_S
from whaleflux.gateway.shell.stream_out import StreamOut

RETRY_MS = 1_000
RESYNC_DETAIL = {
    "too_old": "older events are not kept any more",
    "too_new": "this cursor was made for another stream; all that is kept follows",
}

router = APIRouter(
    prefix="/v1",
    tags=["events"],
    responses={code: {"model": Problem} for code in (401, 403, 422)},
)


@router.get(
    "/events",
    operation_id="streamEvents",
    response_class=StreamOut,
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "CloudEvents, one a frame"}
    },
)
async def stream(
    caller: Gated,
    since: Annotated[int | None, Query(ge=0, description="cursor; absent: from now on")] = None,
    types: Annotated[str | None, Query(description="`run.placed,workload.*`")] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamOut:
    """Stream the tenant's events; `Last-Event-ID` or `since` resumes without a gap."""
    caller.need(Permission.READ)
    cursor = since
    if last_event_id:
        if not last_event_id.isdigit():
            raise Refused(
                "Last-Event-ID is the number of the last event seen.", code="invalid_request"
            )
        cursor = int(last_event_id)
    wanted = tuple(t.strip() for t in types.split(",")) if types else ()
    frames = _frames(caller.parts.feed, caller.key.tenant, cursor, wanted)
    return StreamOut(
        frames,
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


async def _frames(
    feed: Feed, tenant: str, cursor: int | None, wanted: tuple[str, ...]
) -> AsyncGenerator[bytes, None]:
    cursor = feed.last_seq if cursor is None else cursor
    # The id of a frame without data is remembered: a reader that drops before the first event
    # still resumes here.
    yield f"retry: {RETRY_MS}\nid: {cursor}\n\n".encode()
    while True:
        try:
            async for frame in _live(feed, tenant, cursor, wanted):
                yield frame
        except Resync as error:
            cursor = error.first_seq - 1
            note = {"first_seq": error.first_seq, "detail": RESYNC_DETAIL[error.code]}
            yield f"id: {cursor}\nevent: resync\ndata: {json.dumps(note)}\n\n".encode()
        except Unavailable:
            # The reader comes back with its cursor; until then nobody pretends to be well.
            return


async def _live(
    feed: Feed, tenant: str, cursor: int, wanted: tuple[str, ...]
) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    events = feed.follow(tenant, after_seq=cursor)
    coming: asyncio.Future[FeedEvent] = asyncio.ensure_future(anext(events))
    quiet_until_s = loop.time() + HEARTBEAT_S
    try:
        while True:
            await asyncio.wait({coming}, timeout=max(quiet_until_s - loop.time(), 0.0))
            frame = b""
            if coming.done():
                event = coming.result()
                cursor = event.seq
                frame = _frame(event) if _matches(event.type, wanted) else b""
                coming = asyncio.ensure_future(anext(events))
            if not frame and loop.time() >= quiet_until_s:
                # With the cursor, because what a filter left out need not be looked at again.
                frame = b": still here\nid: %d\n\n" % cursor
            if frame:
                quiet_until_s = loop.time() + HEARTBEAT_S
                yield frame
    finally:
        coming.cancel()
        await asyncio.wait({coming})
        await events.aclose()


def _frame(event: FeedEvent) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.type.encode(), event.body)


def _matches(type_: str, wanted: tuple[str, ...]) -> bool:
    if not wanted:
        return True
    return any(w == type_ or (w.endswith(".*") and type_.startswith(w[:-1])) for w in wanted)
