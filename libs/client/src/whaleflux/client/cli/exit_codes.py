"""What the command line's exit codes mean; documented for scripts, so never changed."""

OK = 0
GENERAL = 1
USAGE = 2
NOT_FOUND = 3
NOT_ALLOWED = 4
CONFLICT = 5
UNREACHABLE = 6
TIMED_OUT = 8
FAILED = 10
CANCELLED = 11
GIVEN_UP = 12
"""Preempted or lost, and no retry was left."""
INTERRUPTED = 130
PIPE_CLOSED = 141

_OF_STATE = {
    "succeeded": OK,
    "failed": FAILED,
    "refused": FAILED,
    "cancelled": CANCELLED,
    "preempted": GIVEN_UP,
    "lost": GIVEN_UP,
}


def of_state(state: str) -> int:
    """Return the exit code for a workload that ended in *state*."""
    return _OF_STATE.get(state, GENERAL)
