"""When a request is sent again: bounded attempts, bounded time, jitter, the server's own wish."""

from typing import Any

from tenacity import RetryCallState, retry_if_exception, stop_after_attempt, stop_after_delay
from tenacity.wait import wait_random_exponential

from whaleflux.client.errors import Conflict, ServerProblem, Unreachable

ATTEMPTS_MAX = 6
"""With full jitter between 0 and 0.2, 0.4, … 3.2 s: about three seconds on average."""
TOTAL_S_MAX = 20.0
"""A new leader of the log takes up to 9 s; nobody wants to wait for an error much longer."""
PAUSE_S_MAX = 5.0
RETRY_AFTER_S_MAX = 10.0
"""A longer wish of the server is for programs that wait by themselves."""
RETRIED_STATUSES = frozenset({429, 502, 503, 504})
IN_FLIGHT = "idempotency_in_flight"
"""The same submission is being decided right now."""

_JITTER = wait_random_exponential(multiplier=0.2, max=PAUSE_S_MAX)


def may_help(error: BaseException) -> bool:
    """Whether sending the same request again may succeed."""
    if isinstance(error, ServerProblem):
        return error.status in RETRIED_STATUSES
    if isinstance(error, Conflict):
        return error.code == IN_FLIGHT
    return isinstance(error, Unreachable)


def pause_s(state: RetryCallState) -> float:
    """Return how long to wait before the next attempt, in seconds."""
    pause = float(_JITTER(state))
    error = state.outcome.exception() if state.outcome is not None else None
    if isinstance(error, ServerProblem):
        return max(pause, min(error.retry_after_s, RETRY_AFTER_S_MAX))
    return pause


def policy(*, retries: bool) -> dict[str, Any]:
    """Return tenacity's arguments; every request of the SDK is safe to repeat."""
    attempts = ATTEMPTS_MAX if retries else 1
    return {
        "stop": stop_after_attempt(attempts) | stop_after_delay(TOTAL_S_MAX),
        "wait": pause_s,
        "retry": retry_if_exception(may_help),
        "reraise": True,
    }
