"""How every service starts, says how it is, and stops."""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib.metadata import version

from whaleflux.common.bus import Bus, BusMessage
from whaleflux.common.clock import Clock, SystemClock
from whaleflux.common.contracts import subjects
from whaleflux.common.errors import Unavailable
from whaleflux.common.ids import Ids, RandomIds
from whaleflux.common.jetstream import JetStream
from whaleflux.common.observe import configure_logging, configure_tracing, serve_metrics
from whaleflux.common.settings import ServiceSettings

START_TIMEOUT_S = 30.0
"""How long a service waits for the bus before its supervisor may start it again."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Health:
    """How the parts of a service are; all are well until one says otherwise."""

    _parts: dict[str, tuple[bool, str]] = field(default_factory=dict[str, tuple[bool, str]])

    def set(self, part: str, ok: bool, detail: str = "") -> None:
        """Say how *part* is."""
        self._parts[part] = (ok, detail)

    @property
    def ok(self) -> bool:
        """Return whether every part is well."""
        return all(ok for ok, _ in self._parts.values())

    def report(self) -> dict[str, object]:
        """Return what `wf.qry.<service>.health` answers."""
        return {
            "ok": self.ok,
            "parts": {name: {"ok": ok, "detail": d} for name, (ok, d) in self._parts.items()},
            "pid": os.getpid(),
            "version": version("whaleflux-common"),
            "resident_mib": resident_mib(),
        }


@dataclass(slots=True, kw_only=True)
class Runtime:
    """What a service's `serve` gets to work with."""

    settings: ServiceSettings
    bus: Bus
    js: JetStream
    clock: Clock
    ids: Ids
    group: asyncio.TaskGroup
    """Owned by the runtime: a task that fails ends the service."""
    health: Health


Serve = Callable[[Runtime], Awaitable[None]]


def run(service: str, serve: Serve, settings: ServiceSettings) -> None:
    """Run *serve* until SIGTERM or SIGINT (exit 0) or until it fails (exit 1).

    A service whose settings have a `node_id` is an agent: its inbox and its health question lie
    below its node's own subjects.
    """
    configure_logging(service, log_format=settings.log_format)
    configure_tracing(service, settings.otlp_endpoint)
    serve_metrics(settings.metrics_port)
    sys.exit(asyncio.run(_run(service, serve, settings)))


async def _run(service: str, serve: Serve, settings: ServiceSettings) -> int:
    main = asyncio.current_task()
    assert main is not None
    loop = asyncio.get_running_loop()
    stopping = False

    def stop() -> None:
        nonlocal stopping
        stopping = True
        main.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await _serve(service, serve, settings)
    except asyncio.CancelledError:
        if not stopping:
            raise
        _log.info("stopped")
        return 0
    except Unavailable as error:
        _log.error("cannot start", extra={"reason": error.message})
        return 1
    except BaseExceptionGroup as errors:
        if stopping:
            _log.info("stopped")
            return 0
        _log.error("failed", exc_info=errors)
        return 1
    return 0


async def _serve(service: str, serve: Serve, settings: ServiceSettings) -> None:
    node_id: str | None = getattr(settings, "node_id", None)
    bus = await Bus.connect(
        url=settings.nats_url,
        user=settings.nats_user,
        password=settings.nats_password.get_secret_value(),
        name=service if node_id is None else f"{service}-{node_id}",
        inbox_prefix="_INBOX" if node_id is None else f"_INBOX_{node_id}",
        connect_timeout_s=START_TIMEOUT_S,
    )
    health = Health()

    async def answer(_message: BusMessage) -> bytes:
        return json.dumps(health.report()).encode()

    question = subjects.question(service, "health")
    if node_id is not None:
        question = subjects.agent_question(node_id, "health")
    try:
        await bus.answer(question, answer)
        async with asyncio.TaskGroup() as group:
            _log.info("started", extra={"pid": os.getpid()})
            await serve(
                Runtime(
                    settings=settings,
                    bus=bus,
                    js=JetStream(bus),
                    clock=SystemClock(),
                    ids=RandomIds(),
                    group=group,
                    health=health,
                )
            )
    finally:
        await bus.close()


def resident_mib() -> float:
    """Return this process's resident memory in MiB; 0.0 where the kernel does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except OSError:
        return 0.0
    return round(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), 1)
