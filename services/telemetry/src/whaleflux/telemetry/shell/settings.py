"""Telemetry's limits, each with its unit and its reason."""

from whaleflux.common.settings import ServiceSettings

STALE_AFTER_S = 30.0
"""Figures this old are not shown any more; nodes send once a second."""
RING_LENGTH = 120
"""Samples kept for each GPU: the last two minutes."""
RING_EXPIRES_S = 3_600.0
"""How long the ring of a GPU that is gone stays."""
FLUSH_EVERY_S = 0.5
"""How long figures wait to be written together; half of what a sample is apart."""
PENDING_MAX = 65_536
"""Figures that may wait: two seconds of 32,000 GPUs. More are dropped, and counted."""
WRITE_READINGS_MAX = 500
"""Figures in one round trip to the cache, so that other readers of it are not held up."""
PAGE_BYTES_MAX = 900_000
"""Of one answer; the bus takes 1 MiB in one message."""
SWEEP_EVERY_S = 10.0
"""How often figures that nobody will see again are let go."""


class TelemetrySettings(ServiceSettings):
    """Everything telemetry is told at start."""
