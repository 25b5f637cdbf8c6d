"""What can go wrong between a client and the gateway.

WhalefluxError
├── Refused
│   └── ApiProblem        the gateway refused the request (RFC 9457)
│       ├── NotAllowed    401 or 403
│       ├── NotFound      404
│       └── Conflict      409, or an idempotency key used for something else
└── Unavailable
    ├── Unreachable       no gateway answers at the address
    ├── ServerProblem     5xx, after all retries
    └── WaitTimedOut      the wait ended before what was waited for
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whaleflux.common.errors import Refused, Unavailable


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing that is wrong with a request; *pointer* is a JSON pointer into its body."""

    pointer: str
    detail: str


class ApiProblem(Refused):
    """The gateway refused the request; asking again as it stands will not help."""

    def __init__(
        self,
        detail: str,
        *,
        status: int,
        code: str = "problem",
        request_id: str = "",
        errors: Sequence[FieldError] = (),
        fields: Mapping[str, object] | None = None,
    ) -> None:
        """Keep the sentence, the HTTP *status*, and what is wrong with each field."""
        super().__init__(detail, code=code, fields=fields)
        self.status = status
        self.request_id = request_id
        self.errors = tuple(errors)


class NotAllowed(ApiProblem):
    """The API key is missing, unknown, or may not do this."""


class NotFound(ApiProblem):
    """There is no such thing, or it belongs to somebody else."""


class Conflict(ApiProblem):
    """The request contradicts what is there already."""


class Unreachable(Unavailable):
    """No gateway answers at the address."""

    def __init__(self, message: str, *, url: str) -> None:
        """Keep the address that was tried."""
        super().__init__(message, code="unreachable")
        self.url = url


class ServerProblem(Unavailable):
    """The gateway answered that it cannot serve the request now."""

    def __init__(
        self, message: str, *, status: int, request_id: str = "", retry_after_s: float = 0.0
    ) -> None:
        """Keep the HTTP *status*, and after how many seconds the server asks to be asked again."""
        super().__init__(message, code="server_problem", retry_after_s=retry_after_s)
        self.status = status
        self.request_id = request_id


class WaitTimedOut(Unavailable):
    """What was waited for did not happen in time; it may still happen."""

    def __init__(self, message: str, *, state: str) -> None:
        """Keep the last *state* that was seen."""
        super().__init__(message, code="timed_out")
        self.state = state
