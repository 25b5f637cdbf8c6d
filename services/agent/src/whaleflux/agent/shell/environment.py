"""What a member's program finds in its environment, and nothing else."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from whaleflux.agent.shell.folders import MemberFolder, NodeFolder
from whaleflux.common.contracts.assignment import (
    AssignedMember,
    CheckpointRef,
    checkpoint_folder,
    output_folder,
)
from whaleflux.common.errors import Refused

LOOPBACK = "127.0.0.1"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Node:
    """What does not change while an agent runs."""

    node_id: str
    agent_id: str
    boot_id: str
    simulated: bool
    folder: NodeFolder
    stores: Mapping[str, Path]
    """Roots of the stores that this node reaches, `local` among them."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Network names of other nodes, where they differ from their ids."""
    users: Mapping[str, str] = field(default_factory=dict)
    """Unix user of each project's members; `*` for all others."""
    allow_root: bool = False
    """Members may run as root where the agent is root and no user is mapped."""
    member_nice: int = 0
    """How far members stand back behind the control plane on this machine's own processors."""

    def store(self, name: str) -> Path:
        """Return the root of a store.

        Raises:
            Refused: This node does not reach it.

        """
        if name not in self.stores:
            reached = ", ".join(sorted(self.stores))
            raise Refused(f"store {name!r} is not reached from this node, only {reached}")
        return self.stores[name]

    def user_of(self, project: str) -> str:
        """Return the Unix user that *project*'s members run as; empty for the agent's own.

        Raises:
            Refused: The agent is root, and neither is a user mapped nor root allowed.

        """
        user = self.users.get(project, self.users.get("*", ""))
        if os.geteuid() != 0:
            return ""
        if not user and not self.allow_root:
            raise Refused(
                f"project {project!r} has no Unix user on this node, and its agent runs as root"
            )
        return user


def member_environment(
    member: AssignedMember,
    *,
    node: Node,
    folder: MemberFolder,
    resume_from: CheckpointRef | None,
) -> dict[str, str]:
    """Return the whole environment of *member*'s program (design, P2)."""
    store = node.store(member.store)
    return {
        **_base(folder),
        **member.envs,
        "WHALEFLUX_JOB": member.workload_id,
        "WHALEFLUX_RUN": member.run_id,
        "WHALEFLUX_PHASE": member.phase,
        "WHALEFLUX_ITERATION": str(member.iteration),
        "WHALEFLUX_ATTEMPT": str(member.attempt),
        "WHALEFLUX_NODE": node.node_id,
        "WHALEFLUX_CHECKPOINT_DIR": str(store / checkpoint_folder(member.run_id, member.attempt)),
        "WHALEFLUX_RESUME_FROM": "" if resume_from is None else str(store / resume_from.path),
        "WHALEFLUX_OUTPUT_DIR": str(store / output_folder(member.run_id, member.attempt)),
        "WHALEFLUX_REPORT": str(folder.report),
        "WHALEFLUX_GRACE_S": f"{member.grace_s:g}",
        **{f"WHALEFLUX_INPUT_{k.upper()}": str(store / v) for k, v in member.inputs.items()},
        **({"WHALEFLUX_SIMULATED": "1"} if node.simulated else {}),
        **_ranks(member, node),
        **_gpus(member),
    }


def _base(folder: MemberFolder) -> dict[str, str]:
    return {
        # The folder of our own Python comes first, so that `python` works on a bare machine.
        "PATH": f"{os.path.dirname(sys.executable)}:{SYSTEM_PATH}",
        "HOME": str(folder.home),
        "TMPDIR": str(folder.tmp),
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash",
        "PYTHONUNBUFFERED": "1",
    }


def _gpus(member: AssignedMember) -> dict[str, str]:
    named = {"WHALEFLUX_GPU_TYPE": member.gpu_type} if member.gpu_type else {}
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in member.gpus),
        **named,
    }


def _ranks(member: AssignedMember, node: Node) -> dict[str, str]:
    hosts = [_address(name, member, node) for name in member.nodes] or [LOOPBACK]
    ranks = {
        "RANK": str(member.rank),
        "WORLD_SIZE": str(member.world_size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(member.rank),
        "NNODES": str(member.world_size),
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": str(member.master_port),
    }
    if member.world_size > 1:
        workers = [f"{host}:{member.master_port + 1 + rank}" for rank, host in enumerate(hosts)]
        ranks["TF_CONFIG"] = json.dumps(
            {"cluster": {"worker": workers}, "task": {"type": "worker", "index": member.rank}}
        )
    return ranks


def _address(name: str, member: AssignedMember, node: Node) -> str:
    if name in node.addresses:
        return node.addresses[name]
    return LOOPBACK if node.simulated or set(member.nodes) == {node.node_id} else name
