"""The logs that views and public events are folded from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.agent import read_agent_event
from whaleflux.common.contracts.base import UnknownEvent
from whaleflux.common.contracts.failover import read_failover_event
from whaleflux.common.contracts.scheduler import read_scheduler_event
from whaleflux.common.jetstream import JetStream
from whaleflux.gateway.core.view import Shown
from whaleflux.gateway.shell.settings import PROJECT_EVENTS_MAX


@dataclass(frozen=True, slots=True)
class SourceLog:
    """One stream and how its messages are read."""

    stream: str
    read: Callable[[bytes], Any]


def source_logs(cell: str) -> tuple[SourceLog, ...]:
    """Return the logs, those that others refer to first."""
    return (
        SourceLog(subjects.stream_scheduler(cell), read_scheduler_event),
        SourceLog(subjects.STREAM_FAILOVER, read_failover_event),
        SourceLog(subjects.STREAM_AGENT, read_agent_event),
    )


async def read_events(
    js: JetStream, source: SourceLog, *, after_seq: int
) -> list[tuple[int, Shown | None]]:
    """Return (sequence, event) of what follows *after_seq*; None where it cannot be read."""
    messages = await js.read(source.stream, after_seq=after_seq, limit=PROJECT_EVENTS_MAX)
    return [(message.seq, _event(source, message.body)) for message in messages]


def _event(source: SourceLog, body: bytes) -> Shown | None:
    try:
        event: Shown | UnknownEvent = source.read(body)
    except ValidationError:
        return None
    return None if isinstance(event, UnknownEvent) else event
