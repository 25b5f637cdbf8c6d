"""The words in which flows ask for I/O, and how an HTTP answer becomes a value or an error.

A *flow* is a generator that yields steps and is sent their results, so that the sync and the async
client run the very same logic:

| step | is sent back |
|---|---|
| `Call` | a `Reply` |
| `Listen` | None, once the stream of lines is open |
| `NextLine` | the next line, or None when the stream has ended |
| `Pause` | None |
| `Now` | monotonic seconds |
| `Emit` | None; the value goes to whoever iterates |
"""

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from whaleflux.client.errors import (
    ApiProblem,
    Conflict,
    FieldError,
    NotAllowed,
    NotFound,
    ServerProblem,
)

T = TypeVar("T")

CALL_TIMEOUT_S = 30.0
"""The gateway answers a submission within 10 s; the rest is the network's."""


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request. *accepted* names statuses outside 2xx that are answers, not errors.

    A flow that asks again by itself says so with *retried* false.
    """

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    file: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    accepted: frozenset[int] = frozenset()
    timeout_s: float = CALL_TIMEOUT_S
    retried: bool = True


@dataclass(frozen=True, slots=True)
class Listen:
    """Open a stream of lines; a stream that is open already is closed first.

    Silence for longer than the call's `timeout_s` ends the stream.
    """

    call: Call


@dataclass(frozen=True, slots=True)
class NextLine:
    """Wait for the next line."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Now:
    """Ask for the monotonic clock."""


@dataclass(frozen=True, slots=True)
class Emit:
    """Hand a value to whoever iterates."""

    value: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    def json(self) -> Any:  # noqa: ANN401 - the caller's model checks it
        """Return the body as JSON values; None for an empty one."""
        return json.loads(self.body) if self.body else None


Step: TypeAlias = Call | Listen | NextLine | Pause | Now | Emit
Flow: TypeAlias = Generator[Step, Any, T]


def query(**params: object) -> dict[str, str]:
    """Return *params* as query parameters, those that are None left out."""
    said = {key: value for key, value in params.items() if value is not None}
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in said.items()}


def check(call: Call, reply: Reply) -> Reply:
    """Return *reply* if it is an answer to *call*.

    Raises:
        ApiProblem: The gateway refused the request.
        ServerProblem: The gateway cannot serve it now.

    """
    if reply.status < 300 or reply.status in call.accepted:
        return reply
    raise problem(reply, what=f"{call.method} {call.path}")


def problem(reply: Reply, *, what: str) -> ApiProblem | ServerProblem:
    """Return the error that *reply* to *what* stands for."""
    body = _object(reply)
    detail = _text(body, "detail") or _text(body, "title") or f"{what} was answered {reply.status}"
    request_id = _text(body, "request_id") or reply.headers.get("x-request-id", "")
    if reply.status >= 500 or reply.status == 429:
        return ServerProblem(
            detail,
            status=reply.status,
            request_id=request_id,
            retry_after_s=_seconds(reply.headers.get("retry-after")),
        )
    kinds: dict[int, type[ApiProblem]] = {
        401: NotAllowed,
        403: NotAllowed,
        404: NotFound,
        409: Conflict,
    }
    code = _text(body, "code") or _text(body, "type").rpartition("/")[2] or "problem"
    kind = kinds.get(reply.status, ApiProblem)
    if code.startswith("idempotency"):
        kind = Conflict
    return kind(
        detail,
        status=reply.status,
        code=code,
        request_id=request_id,
        errors=_field_errors(body.get("errors")),
        fields=body,
    )


def _object(reply: Reply) -> dict[str, Any]:
    try:
        body = json.loads(reply.body)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    return value if isinstance(value, str) else ""


def _seconds(value: str | None) -> float:
    return float(value) if value is not None and value.isdigit() else 0.0


def _field_errors(raw: object) -> tuple[FieldError, ...]:
    if not isinstance(raw, list):
        return ()
    return tuple(
        FieldError(pointer=str(e.get("pointer", "")), detail=str(e.get("detail", "")))
        for e in raw
        if isinstance(e, dict)
    )
