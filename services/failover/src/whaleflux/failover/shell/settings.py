"""Failover's limits, each with its unit and its reason."""

from whaleflux.common.settings import ServiceSettings

HEARD_MAX = 8_192
"""Renewals waiting to be answered: two seconds of 4,000 nodes. More are dropped; agents ask again
a second later, and an answer that late would be of no use to them."""
BATCH_MAX = 512
"""Renewals decided in one cycle; nearly all of them change nothing."""
SWEEP_EVERY_S = 1.0
"""How often silence is judged; a node is noticed at most this late."""
APPEND_WITHIN_S = 3.0
"""How long nodes may wait for an append before they are told `frozen`. Members with fast fencing
start to end 15 s after the last answer, so several answers must fit before that."""
FROZEN_RETRY_S = 1.0
"""Between attempts to read the log after it could not be written."""
RESTORE_WITHIN_S = 60.0
"""How long one attempt to read the log may take; nodes hear `frozen` all the while."""


class FailoverSettings(ServiceSettings):
    """Everything failover is told at start."""
