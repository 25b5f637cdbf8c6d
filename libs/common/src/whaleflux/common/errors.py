"""Whose fault it is, whether to retry, and whom to wake.

WhalefluxError(message, code, fields)
├── Refused        the caller is wrong: bad request, quota, unknown id       → 4xx, no retry, info
├── Unavailable    the world is wrong now: timeout, conflict, no leader      → 503, retried, warning
└── Broken         we are wrong: invariant, impossible message               → 500, stop, error
"""

from collections.abc import Mapping


class WhalefluxError(Exception):
    """Something a caller of WhaleFlux may catch."""

    def __init__(
        self, message: str, *, code: str = "error", fields: Mapping[str, object] | None = None
    ) -> None:
        """Keep the sentence for people and *code* and *fields* for programs."""
        super().__init__(message)
        self.message = message
        self.code = code
        self.fields: dict[str, object] = dict(fields or {})


class Refused(WhalefluxError):
    """The request cannot be served as it stands; asking again will not help."""


class Unavailable(WhalefluxError):
    """The request may succeed later; `retry_after_s` says when to ask again."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "unavailable",
        retry_after_s: float = 1.0,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        """Keep when to ask again beside the message."""
        super().__init__(message, code=code, fields=fields)
        self.retry_after_s = retry_after_s


class Broken(WhalefluxError):
    """An invariant does not hold; going on would make it worse."""
