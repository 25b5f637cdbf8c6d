"""What Prometheus reads about failover itself."""

from prometheus_client import Counter, Gauge

LEADING = Gauge("whaleflux_failover_leading", "1 while this process holds the leader lease")
FROZEN = Gauge("whaleflux_failover_frozen", "1 while nodes are told to run on, come what may")
HOLDING = Gauge(
    "whaleflux_failover_holding", "1 while fencing waits because most nodes fell silent together"
)
RENEWALS = Counter("whaleflux_failover_renewals", "Lease renewals by answer", ["answer"])
EVENTS = Counter("whaleflux_failover_events", "Facts written to the log", ["type"])
