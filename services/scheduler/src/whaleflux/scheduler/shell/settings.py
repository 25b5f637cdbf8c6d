"""The scheduler's limits, each with its unit and its reason."""

from whaleflux.common.settings import ServiceSettings

BATCH_MAX = 256
"""Messages decided in one cycle: enough to amortise the fsync of an append, few enough that the
first of them does not wait noticeably for the last."""
TAKE_WAIT_S = 1.0
"""How long one look into an inbox lasts, so that a stop is noticed."""
RETRY_DELAY_S = 1.0
"""How long messages wait in their stream after the log could not be written."""


class SchedulerSettings(ServiceSettings):
    """Everything the scheduler is told at start."""
