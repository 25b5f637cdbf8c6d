"""Write `deploy/nats.conf`: `python deploy/nats_config.py node-0 node-1 …`.

Passwords stay out of the file; the server takes them from its environment.
"""

import json
import re
import sys
from pathlib import Path

from whaleflux.common.accounts import Login, Logins, nats_accounts

HEAD = """# Made by `python deploy/nats_config.py NODE …`.
# One account for the services, one for each node and tenant.
# To add a node, run it again with all node names and reload the server.
"""


def config(nodes: list[str], tenant: str = "default") -> str:
    """Return the configuration of one server for *nodes*."""
    logins = Logins(
        core=Login("core", "$WHALEFLUX_CORE_PASSWORD"),
        system=Login("system", "$WHALEFLUX_SYSTEM_PASSWORD"),
        nodes={node: Login(f"node-{node}", "$WHALEFLUX_NODE_PASSWORD") for node in nodes},
        tenants={tenant: Login(f"tenant-{tenant}", "$WHALEFLUX_TENANT_PASSWORD")},
    )
    body = {
        "server_name": "whaleflux",
        "host": "0.0.0.0",
        "port": 4222,
        "jetstream": {"store_dir": "/data", "sync_interval": "always"},
        **nats_accounts(logins),
    }
    # A variable is one only without quotes.
    text = re.sub(r'"(\$WHALEFLUX_[A-Z_]+)"', r"\1", json.dumps(body, indent=1))
    return f"{HEAD}{text}\n"


if __name__ == "__main__":
    Path(__file__).with_name("nats.conf").write_text(config(sys.argv[1:] or ["node-0"]))
