"""The public events as one stream that survives a lost connection."""

import json
from typing import Any

from whaleflux.client.models import PublicEvent
from whaleflux.client.sse import Frame, SseReader
from whaleflux.client.wire import Call, Emit, Flow, Listen, NextLine, Pause, query

SILENCE_S_MAX = 45.0
"""Three missed heartbeats."""
CAUGHT_UP_S = 1.0
"""Without `follow`, a second of silence means that everything has been said."""
RECONNECT_PAUSE_S = 0.5
"""The client's retries, which have jitter, come on top."""
RESYNC = "resync"
"""The cursor was too old: events between it and the next one are gone."""


def events(*, since: int | None, follow: bool) -> Flow[None]:
    """Emit events after the cursor *since*, each of them once.

    None is from now on with *follow*, and everything that is kept without it.
    """
    cursor = since if follow or since is not None else 0
    while True:
        yield Listen(
            Call(
                "GET",
                "/v1/events",
                params=query(since=cursor),
                headers={
                    "accept": "text/event-stream",
                    **({} if cursor is None else {"last-event-id": str(cursor)}),
                },
                timeout_s=SILENCE_S_MAX if follow else CAUGHT_UP_S,
            )
        )
        reader = SseReader()
        while (line := (yield NextLine())) is not None:
            frame = reader.feed(line)
            event = None if frame is None else read_event(frame)
            if event is None or (cursor is not None and event.sequence <= cursor):
                continue
            cursor = event.sequence
            yield Emit(event)
        if not follow:
            return
        yield Pause(RECONNECT_PAUSE_S)


def read_event(frame: Frame) -> PublicEvent | None:
    """Return the event in *frame*, or None when it is none of ours."""
    try:
        sequence = int(frame.id)
        body: Any = json.loads(frame.data) if frame.data else {}
    except ValueError:
        return None
    if not isinstance(body, dict):
        return None
    if "data" in body or "specversion" in body:
        named = {"type": frame.event, **body}
    else:
        named = {"type": body.get("type", frame.event), "time": body.get("at"), "data": body}
    return PublicEvent.model_validate({**named, "sequence": sequence})
