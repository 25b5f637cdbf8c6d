"""Every stream of the product, as data."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from whaleflux.common.contracts import subjects
from whaleflux.common.errors import Broken

_NS = 1_000_000_000
_DAY_S = 86_400.0
DUPLICATE_WINDOW_S = 120.0
"""How long a repeated `Nats-Msg-Id` is recognised; longer than any publisher retries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """A stream as it should be; times in seconds, 0 for no limit."""

    name: str
    subjects: tuple[str, ...]
    storage: Literal["file", "memory"] = "file"
    retention: Literal["limits", "workqueue"] = "limits"
    max_age_s: float = 0.0
    max_bytes: int = -1
    max_msgs_per_subject: int = -1
    duplicate_window_s: float = DUPLICATE_WINDOW_S
    allow_direct: bool = False
    allow_atomic: bool = False
    allow_msg_ttl: bool = False
    deny_delete: bool = False
    """Neither single messages nor all of them can be removed, by whomever."""
    replicas: int = 1

    def config(self) -> dict[str, Any]:
        """Return the server's own form."""
        window_s = self.duplicate_window_s
        if self.max_age_s:
            window_s = min(window_s, self.max_age_s)
        return {
            "name": self.name,
            "subjects": list(self.subjects),
            "storage": self.storage,
            "retention": self.retention,
            "max_age": int(self.max_age_s * _NS),
            "max_bytes": self.max_bytes,
            "max_msgs_per_subject": self.max_msgs_per_subject,
            "duplicate_window": int(window_s * _NS),
            "discard": "old",
            "allow_direct": self.allow_direct,
            "allow_atomic": self.allow_atomic,
            "allow_msg_ttl": self.allow_msg_ttl,
            "deny_delete": self.deny_delete,
            "deny_purge": self.deny_delete,
            "num_replicas": self.replicas,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSpec:
    """A durable pull consumer as it should be."""

    stream: str
    durable: str
    filters: tuple[str, ...] = ()
    ack: Literal["explicit", "none"] = "explicit"
    deliver: Literal["all", "new", "last_per_subject"] = "all"
    ack_wait_s: float = 30.0
    max_ack_pending: int = 4_096
    """More than any inbox holds, so that a slow reader never stalls its own acknowledgements."""

    def config(self) -> dict[str, Any]:
        """Return the server's own form."""
        config: dict[str, Any] = {
            "name": self.durable,
            "durable_name": self.durable,
            "ack_policy": self.ack,
            "deliver_policy": self.deliver,
            "replay_policy": "instant",
            "max_deliver": -1,
        }
        if self.ack == "explicit":
            config["ack_wait"] = int(self.ack_wait_s * _NS)
            config["max_ack_pending"] = self.max_ack_pending
        if len(self.filters) == 1:
            config["filter_subject"] = self.filters[0]
        elif self.filters:
            config["filter_subjects"] = list(self.filters)
        return config


def commands(service: str) -> StreamSpec:
    """Return the work queue of *service*: a command leaves it when it is acknowledged."""
    return StreamSpec(
        name=subjects.stream_commands(service),
        subjects=(f"wf.cmd.{service}.>",),
        retention="workqueue",
    )


def _decisions(name: str, service: str) -> StreamSpec:
    return StreamSpec(
        name=name,
        subjects=(f"wf.evt.{service}.>",),
        allow_direct=True,
        allow_atomic=True,
        deny_delete=True,
    )


def all_streams(cell: str = subjects.CELL_DEFAULT) -> dict[str, StreamSpec]:
    """Return every stream by name."""
    specs = (
        commands("scheduler"),
        commands("failover"),
        _decisions(subjects.stream_scheduler(cell), "scheduler"),
        _decisions(subjects.STREAM_FAILOVER, "failover"),
        _decisions(subjects.STREAM_GATEWAY, "gateway"),
        StreamSpec(
            name=subjects.STREAM_AGENT,
            subjects=("wf.evt.agent.>",),
            max_age_s=90 * _DAY_S,
            allow_direct=True,
        ),
        StreamSpec(
            name=subjects.STREAM_ASSIGNMENTS,
            subjects=(subjects.assignment("*"),),
            max_msgs_per_subject=1,
            allow_direct=True,
        ),
        StreamSpec(
            name=subjects.STREAM_SAMPLES,
            subjects=(subjects.sample("*"),),
            storage="memory",
            max_age_s=300.0,
            max_bytes=256 * 1024 * 1024,
            allow_direct=True,
        ),
        StreamSpec(
            name=subjects.STREAM_PUB,
            subjects=("wf.pub.>",),
            max_age_s=30 * _DAY_S,
            allow_direct=True,
        ),
        StreamSpec(
            name=subjects.STREAM_DLQ,
            subjects=(subjects.dead_letter("*"),),
            max_age_s=30 * _DAY_S,
            allow_direct=True,
        ),
        StreamSpec(
            name=subjects.STREAM_LEASES,
            subjects=(subjects.lease("*"),),
            max_msgs_per_subject=1,
            allow_msg_ttl=True,
        ),
    )
    return {spec.name: spec for spec in specs}


def select(
    names: Iterable[str], *, cell: str = subjects.CELL_DEFAULT, replicas: int = 1
) -> list[StreamSpec]:
    """Return the named streams, *replicas* times each.

    Raises:
        Broken: There is no stream of that name.

    """
    known = all_streams(cell)
    chosen: list[StreamSpec] = []
    for name in names:
        if name not in known:
            raise Broken(f"there is no stream {name}; known are {', '.join(sorted(known))}")
        chosen.append(replace(known[name], replicas=replicas))
    return chosen


class _MakesStreams(Protocol):
    async def ensure_stream(self, spec: StreamSpec) -> None: ...


async def ensure_streams(
    js: _MakesStreams,
    names: Iterable[str],
    *,
    cell: str = subjects.CELL_DEFAULT,
    replicas: int = 1,
) -> None:
    """Make sure that the named streams are there and as they should be."""
    for spec in select(names, cell=cell, replicas=replicas):
        await js.ensure_stream(spec)
