"""What a service lets one see: JSON log lines, Prometheus metrics, trace context.

Everything heavy is imported only when it is asked for: eight agents share a small machine.
"""

import json
import logging
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from whaleflux.common.contracts.subjects import HEADER_TRACE

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_trace: ContextVar[str] = ContextVar("whaleflux_trace", default="")
_QUIET = ("asyncio", "httpx", "httpcore", "nats", "uvicorn", "uvicorn.access")


class _JsonFormatter(logging.Formatter):
    """One JSON object per line; `extra=` fields become keys."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "message": record.getMessage(),
        }
        line |= {k: v for k, v in record.__dict__.items() if k not in _PLAIN}
        if trace := _trace.get():
            line["trace_id"] = trace.split("-")[1]
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class _TextFormatter(logging.Formatter):
    """For a person at a terminal."""

    def __init__(self, service: str) -> None:
        super().__init__(f"%(asctime)s {service} %(levelname)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        extra = {k: v for k, v in record.__dict__.items() if k not in _PLAIN}
        fields = "".join(f" {k}={v}" for k, v in extra.items())
        return super().format(record) + fields


def configure_logging(service: str, *, log_format: str) -> None:
    """Send all logging to stdout, as `json` lines or as `text`."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        _JsonFormatter(service) if log_format == "json" else _TextFormatter(service)
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in _QUIET:
        quiet = logging.getLogger(name)
        quiet.setLevel(logging.WARNING)
        # A web server that was configured before may have taken its loggers for itself.
        quiet.propagate, quiet.disabled = True, False


def serve_metrics(port: int) -> None:
    """Serve Prometheus metrics on loopback; port 0 serves none."""
    if port:
        from prometheus_client import start_http_server

        start_http_server(port, addr="127.0.0.1")


def configure_tracing(service: str, endpoint: str) -> None:
    """Export spans to *endpoint* (OTLP over HTTP); without one only headers travel."""
    if not endpoint:
        return
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": f"whaleflux-{service}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    trace.set_tracer_provider(provider)
    global _tracing
    _tracing = True


_tracing = False


def trace_headers() -> dict[str, str]:
    """Return the headers that carry the present trace to whoever hears the next message."""
    trace = _trace.get()
    return {HEADER_TRACE: trace} if trace else {}


@contextmanager
def span(name: str, headers: Mapping[str, str] | None = None, **attributes: str) -> Iterator[None]:
    """Continue the trace in *headers*, or begin one, while the block runs."""
    incoming = {k.lower(): v for k, v in (headers or {}).items()}.get(HEADER_TRACE, "")
    if not _tracing:
        token = _trace.set(_child(incoming or _trace.get()))
        try:
            yield
        finally:
            _trace.reset(token)
        return
    from opentelemetry import propagate, trace

    carrier = {HEADER_TRACE: incoming or _trace.get()}
    tracer = trace.get_tracer("whaleflux")
    with tracer.start_as_current_span(
        name, context=propagate.extract(carrier), attributes=attributes
    ):
        outgoing: dict[str, str] = {}
        propagate.inject(outgoing)
        token = _trace.set(outgoing.get(HEADER_TRACE, ""))
        try:
            yield
        finally:
            _trace.reset(token)


def _child(parent: str) -> str:
    """Return a W3C traceparent with a new span in the parent's trace."""
    parts = parent.split("-")
    trace_id = parts[1] if len(parts) == 4 else secrets.token_hex(16)
    return f"00-{trace_id}-{secrets.token_hex(8)}-01"
