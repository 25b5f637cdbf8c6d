"""What an agent is told at start, by environment."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from whaleflux.common.contracts.base import Token
from whaleflux.common.settings import ServiceSettings


class AgentSettings(ServiceSettings):
    """Settings of one node's agent."""

    node_id: Token
    node_root: str
    """The node's own folder; nothing in it is shared with another node."""
    stores: Mapping[str, str] = Field(default_factory=dict)
    """Root folder of each store by name; those that cannot be written are not reported."""
    devices: str = "nvml"
    """`nvml`, or `simulated:<type>x<count>`."""
    node_addresses: Mapping[str, str] = Field(default_factory=dict)
    """Network names of nodes, where they differ from their ids (`MASTER_ADDR`)."""
    member_users: Mapping[str, str] = Field(default_factory=dict)
    """Unix user of each project's members, `*` for all others."""
    allow_root_members: bool | None = None
    """May members run as root under a root agent? None: on simulated devices only."""
    members_on_stop: Literal["keep", "stop"] = "keep"
    """Whether a clean stop of the agent leaves its members running for its successor."""
    member_nice: int = Field(default=0, ge=0, le=19)
    """How far members stand back: where one machine plays a whole fleet, its programs would else
    keep the control plane from its processors, and hand-overs waiting."""
