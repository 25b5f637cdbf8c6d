"""Brings up the whole product on this machine: servers, services and one agent for each node."""

import asyncio
import json
import os
import secrets
import socket
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from whaleflux.common.accounts import Login
from whaleflux.common.errors import Unavailable
from whaleflux.local.fleet import NODES_MAX, Node
from whaleflux.local.health import ANSWER_TIMEOUT_S, Health, HealthProbe
from whaleflux.local.passwords import Passwords
from whaleflux.local.paths import StatePaths, write_private
from whaleflux.local.servers import forget_socket, start_nats, start_valkey
from whaleflux.local.supervisor import ChildSpec, Supervisor, Tier

SERVICES = ("gateway", "scheduler", "failover", "telemetry")
STORE = "default"
TENANTS = ("default",)
READY_TIMEOUT_S = 90.0
"""Ten seconds on two idle cores; a busy machine gets the rest."""
START_DEATHS_MAX = 4
"""A part that dies so often while it starts will not come up by waiting."""
POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where a running stack is reached; what `stack.json` says."""

    gateway_url: str
    nats_url: str
    valkey_url: str
    metrics_url: str
    """Where Prometheus reads every GPU."""
    api_key_file: str
    state: str
    simulated: bool
    nodes: tuple[str, ...]

    @classmethod
    def read(cls, paths: StatePaths) -> "Addresses | None":
        """Return what the stack in *paths* wrote when it became ready, else None."""
        try:
            body = json.loads(paths.stack.read_text())
            return cls(**{**body, "nodes": tuple(body["nodes"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None


class Stack:
    """All processes of one embedded WhaleFlux."""

    def __init__(self, paths: StatePaths, nodes: Sequence[Node], group: asyncio.TaskGroup) -> None:
        """Prepare to run *nodes* with everything below *paths*."""
        self.supervisor = Supervisor(paths, group)
        self._paths = paths
        self._nodes = tuple(nodes)
        self._valkey_url = ""
        self._metrics_port = free_port()

    async def start(self) -> Addresses:
        """Start everything and return once work can be submitted and every node takes it.

        Raises:
            Refused: Something that is needed is missing here.
            Unavailable: A part does not come up; the message has its last words.

        """
        paths = self._paths
        paths.prepare()
        paths.stack.unlink(missing_ok=True)
        self._make_api_key()
        passwords = Passwords.draw([node.name for node in self._nodes], TENANTS)
        nats_url, self._valkey_url = await asyncio.gather(
            start_nats(self.supervisor, paths, accounts=passwords.nats_accounts()),
            start_valkey(self.supervisor, paths),
        )
        passwords.write(paths.secrets)
        for tenant, login in passwords.logins().tenants.items():
            words = {"url": nats_url, "user": login.user, "password": login.password}
            write_private(paths.tenant(tenant), json.dumps(words))
        gateway_file = paths.service("gateway") / "gateway.json"
        gateway_file.unlink(missing_ok=True)
        for spec in self._children(nats_url, passwords):
            await self.supervisor.start(spec)
        probe = await HealthProbe.connect(nats_url, passwords)
        try:
            await self._wait_ready(probe, gateway_file)
        finally:
            await probe.close()
        addresses = Addresses(
            gateway_url=json.loads(gateway_file.read_text())["url"],
            nats_url=nats_url,
            valkey_url=self._valkey_url,
            metrics_url=f"http://127.0.0.1:{self._metrics_port}/metrics",
            api_key_file=str(paths.api_key),
            state=str(paths.root),
            simulated=all(node.simulated for node in self._nodes),
            nodes=tuple(node.name for node in self._nodes),
        )
        write_private(paths.stack, json.dumps(asdict(addresses), indent=1))
        return addresses

    async def stop(self) -> None:
        """End every process: members with their agents first, the servers last."""
        self._paths.stack.unlink(missing_ok=True)
        await self.supervisor.stop()
        if self._valkey_url:
            forget_socket(self._valkey_url, self._paths)

    def _make_api_key(self) -> None:
        if not self._paths.api_key.exists():
            write_private(self._paths.api_key, f"wf_live_{secrets.token_urlsafe(32)}")

    def _children(self, nats_url: str, passwords: Passwords) -> list[ChildSpec]:
        common = {
            **base_environment(),
            "WHALEFLUX_NATS_URL": nats_url,
            "WHALEFLUX_VALKEY_URL": self._valkey_url,
            "WHALEFLUX_LOG_FORMAT": "json",
        }
        stores = json.dumps({STORE: str(self._paths.store)})
        logins = passwords.logins()
        services = [self._service(name, common, stores, logins.core) for name in SERVICES]
        return services + [
            self._agent(node, common, stores, logins.nodes[node.name]) for node in self._nodes
        ]

    def _service(
        self, name: str, common: Mapping[str, str], stores: str, login: Login
    ) -> ChildSpec:
        folder = self._paths.service(name)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        extra = {
            "WHALEFLUX_HTTP_PORT": "0",
            "WHALEFLUX_STORES": stores,
            "WHALEFLUX_BOOTSTRAP_KEY_FILE": str(self._paths.api_key),
        }
        metrics = {"WHALEFLUX_METRICS_PORT": str(self._metrics_port)}
        return ChildSpec(
            name=name,
            tier=Tier.SERVICE,
            command=(sys.executable, "-m", f"whaleflux.{name}"),
            environment={
                **common,
                "WHALEFLUX_NATS_USER": login.user,
                "WHALEFLUX_NATS_PASSWORD": login.password,
                "WHALEFLUX_STATE_DIR": str(folder),
                **(extra if name == "gateway" else {}),
                **(metrics if name == "telemetry" else {}),
            },
        )

    def _agent(self, node: Node, common: Mapping[str, str], stores: str, login: Login) -> ChildSpec:
        root = self._paths.node(node.name)
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        return ChildSpec(
            name=agent_name(node.name),
            tier=Tier.AGENT,
            command=(sys.executable, "-m", "whaleflux.agent"),
            environment={
                **common,
                "WHALEFLUX_NATS_USER": login.user,
                "WHALEFLUX_NATS_PASSWORD": login.password,
                "WHALEFLUX_STATE_DIR": str(root),
                "WHALEFLUX_NODE_ID": node.name,
                "WHALEFLUX_NODE_ROOT": str(root),
                "WHALEFLUX_STORES": stores,
                "WHALEFLUX_DEVICES": node.devices,
                # Whoever took the stack down wants the GPUs back, not orphans.
                "WHALEFLUX_MEMBERS_ON_STOP": "stop",
                # There is one user here, who started everything, root or not.
                "WHALEFLUX_ALLOW_ROOT_MEMBERS": "true",
                # A fleet's programs share this one machine with the control plane.
                "WHALEFLUX_MEMBER_NICE": "10",
            },
        )

    async def _wait_ready(self, probe: HealthProbe, gateway_file: Path) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_TIMEOUT_S
        missing: dict[str, Health] = {}
        while loop.time() < deadline:
            for name in self.supervisor.names:
                if self.supervisor.deaths(name) >= START_DEATHS_MAX:
                    said = self.supervisor.last_words(name) or "it said nothing"
                    raise Unavailable(
                        f"{name} does not stay up ({said}); see {self._paths.log(name)}.",
                        code="part_down",
                    )
            nodes = [node.name for node in self._nodes]
            answers = await probe.all(SERVICES, nodes)
            missing = {name: health for name, health in answers.items() if not health.ok}
            if not missing:
                # The gateway hears of a node from the scheduler: so both know it, and its agent.
                ready = await asyncio.to_thread(ready_nodes, gateway_file, self._paths.api_key)
                missing = {
                    node: Health(False, "not in service yet") for node in nodes if node not in ready
                }
            if not missing:
                return
            await asyncio.sleep(POLL_S)
        parts = "; ".join(f"{name}: {health.detail}" for name, health in missing.items())
        raise Unavailable(
            f"Not ready after {READY_TIMEOUT_S:.0f} s ({parts}); see {self._paths.logs}.",
            code="not_ready",
        )


def free_port() -> int:
    """Return a loopback port that nobody listens on now; it is taken again at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def agent_name(node: str) -> str:
    """Return the name of the child that is the agent of *node*."""
    return f"agent-{node}"


def ready_nodes(gateway_file: Path, api_key: Path) -> frozenset[str]:
    """Return the nodes that the gateway shows as ready; none while it cannot be asked."""
    try:
        url = json.loads(gateway_file.read_text())["url"]
        request = urllib.request.Request(
            f"{url}/v1/nodes?limit={NODES_MAX}",
            headers={"authorization": f"Bearer {api_key.read_text().strip()}"},
        )
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as answer:
            items = json.loads(answer.read())["items"]
    except (OSError, ValueError, KeyError):
        return frozenset()
    return frozenset(str(item["id"]) for item in items if item.get("state") == "ready")


def base_environment() -> dict[str, str]:
    """Return the caller's environment without WhaleFlux's own variables, made lean."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WHALEFLUX_")}
    # One thread pool and two heaps are plenty for a process that waits for messages.
    return {**kept, "MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
