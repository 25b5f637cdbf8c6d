"""What Prometheus reads about the scheduler itself."""

from prometheus_client import Counter, Gauge, Histogram

LEADING = Gauge("whaleflux_scheduler_leading", "1 while this process holds the leader lease")
EVENTS = Counter("whaleflux_scheduler_events", "Facts written to the log", ["type"])
COMMANDS = Counter("whaleflux_scheduler_commands", "Messages decided", ["type"])
PUT_ASIDE = Counter("whaleflux_scheduler_dead_letters", "Messages that could not be decided")
QUEUED = Gauge("whaleflux_scheduler_queued_runs", "Runs that wait")
WORKLOADS = Gauge("whaleflux_scheduler_live_workloads", "Workloads that have not ended")
CYCLE = Histogram(
    "whaleflux_scheduler_cycle_seconds",
    "From taking messages to their facts being durable and assignments published",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
)
