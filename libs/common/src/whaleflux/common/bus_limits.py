"""How long the bus waits for what, and how much it holds. Measured on one machine."""

RECONNECT_WAIT_S = 0.25
"""Between attempts to reach a server that went away; a restart takes 20 ms to 700 ms."""
PING_INTERVAL_S = 5
PINGS_OUTSTANDING_MAX = 2
"""A frozen server is noticed after 15 s at the latest; the library's default takes six minutes."""
CLIENT_CONNECT_TIMEOUT_S = 2
REBUILD_WAIT_S_MAX = 5.0
"""Longest pause between attempts to rebuild a client that closed for good."""
SUBSCRIBE_CHECK_S = 2.0
"""How long a new subscription waits for the server to say that it is not permitted."""
CLOSE_TIMEOUT_S = 3.0
"""A close that takes longer is given up; the process is ending anyway."""
PENDING_MESSAGES_MAX = 65_536
PENDING_BYTES_MAX = 64 * 1024 * 1024
"""What one subscription may hold before the client drops messages and says so."""
