"""The gateway's settings and limits, each with its unit and its reason."""

from collections.abc import Mapping

from pydantic import Field

from whaleflux.common.settings import ServiceSettings

BODY_BYTES_MAX = 512 * 1024
"""A workload travels in one bus message of at most 1 MiB."""
COMMAND_BYTES_MAX = 900 * 1024
"""A workload with all its defaults written out, and room for the fact that repeats it."""
BLOB_BYTES_MAX = 512 * 1024 * 1024
"""A working folder larger than this belongs in a store, not in an upload."""
PAGE_ITEMS_MAX = 200
PAGE_ITEMS_DEFAULT = 50
SCAN_ITEMS_MAX = 2_000
"""Workloads looked at for one page of a filtered list; the cursor goes on where it stopped."""
DECISION_WAIT_S = 2.0
"""How long a submission waits to read its own write; then the answer is 202."""
DECISION_LOOK_S = 0.5
"""How often the view is looked at although no notice came, because a notice may be lost."""
AGENT_TIMEOUT_S = 3.0
LOG_POLL_S = 0.3
"""How often an agent is asked for more of a log that is followed."""
LOG_MISSES_MAX = 40
"""Twelve seconds in which neither the agent nor the store has the log that is followed."""
PROJECT_EVENTS_MAX = 500
"""Events folded into the views in one transaction."""
IDLE_LOOK_S = 1.0
"""How often streams are looked at although nothing woke us."""
RING_EVENTS_MAX = 10_000
"""Newest public events kept in memory for subscribers; older ones are read from the stream."""
HEARTBEAT_S = 10.0
"""A comment on a silent stream, before proxies think it dead."""
SLOW_CLIENT_S = 30.0
"""How long one frame may lie before a subscriber who does not take it; then it is let go."""
LONG_POLL_S_MAX = 30.0
QUESTIONS_PER_TENANT_MAX = 100
"""Long polls that one tenant may have waiting; each costs a task."""
KEY_FOLLOW_EVERY_S = 5.0
"""How often the log of keys is read although nothing woke us: so long a lost message may let a
revoked key live."""
KEY_LOOK_EVERY_S = 1.0
"""How often an unknown key may make us look for new ones."""


class GatewaySettings(ServiceSettings):
    """Everything the gateway is told at start."""

    http_host: str = "127.0.0.1"
    http_port: int = Field(default=0, ge=0, le=65535)
    """0 takes a free port; the choice is written to `<state_dir>/gateway.json`."""
    stores: Mapping[str, str] = Field(default_factory=dict)
    """Root folder of each store by name; uploads go to `default`."""
    bootstrap_key_file: str = ""
    """File with the secret of the first administrator's key; read only while there is no key."""
    tenant: str = "default"
    """Tenant of the first key; it also sees the nodes."""
