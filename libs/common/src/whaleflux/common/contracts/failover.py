"""What failover says about nodes, and how an agent renews its node's lease.

A lease is renewed by request/reply on `wf.qry.failover.lease.<node>`, never by stream writes.
"""

from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from whaleflux.common.contracts.base import Event, Part, Reader, Token
from whaleflux.common.contracts.workload import Fencing

RENEW_EVERY_S = 1.0
SUSPECT_AFTER_S = 3.0
LOST_AFTER_S = 10.0


class LeaseAnswer(StrEnum):
    """What failover says to a node that renews its lease."""

    GRANTED = "granted"
    FROZEN = "frozen"
    """Failover cannot append: nothing starts elsewhere, so go on running."""
    FENCED = "fenced"
    """The node was given up: end every member, then renew with `clean=true`."""


class LeaseRequest(Part):
    """An agent renews its node's lease."""

    node_id: Token
    boot_id: str
    agent_id: str
    clean: bool
    """No member of an older lease is alive on the node."""


class LeaseReply(Part):
    """Failover's answer."""

    answer: LeaseAnswer
    incident: int = 0
    """Number of the node's newest incident; 0 when it never had one."""


class NodeAdmitted(Event):
    """A node was heard for the first time."""

    type: Literal["failover.node.admitted.v1"] = "failover.node.admitted.v1"
    node_id: Token
    boot_id: str


class NodeLost(Event):
    """A node is silent: nothing new starts there, nothing restarts elsewhere yet."""

    type: Literal["failover.node.lost.v1"] = "failover.node.lost.v1"
    node_id: Token
    incident: int
    silent_s: float


class NodeFenced(Event):
    """No member with this fencing can still be alive on the node: its runs may start elsewhere."""

    type: Literal["failover.node.fenced.v1"] = "failover.node.fenced.v1"
    node_id: Token
    incident: int
    fencing: Fencing
    """`patient` follows `fast`; a node that says it is clean is fenced for both at once."""


class NodeReturned(Event):
    """A lost node renews again and may be used."""

    type: Literal["failover.node.returned.v1"] = "failover.node.returned.v1"
    node_id: Token
    incident: int
    boot_id: str


class LeaderElected(Event):
    """Another failover process decides from here on; concerns nobody but failover.

    It moves the log's sequence, so that whatever its predecessor still had to say is refused.
    """

    type: Literal["failover.leader.elected.v1"] = "failover.leader.elected.v1"
    term: str
    """Drawn anew each time a process begins to lead."""


FailoverEvent: TypeAlias = NodeAdmitted | NodeLost | NodeFenced | NodeReturned
read_failover_event: Reader[FailoverEvent] = Reader(
    Annotated[FailoverEvent, Field(discriminator="type")]
)

FailoverRecord: TypeAlias = FailoverEvent | LeaderElected
"""Everything in `EVT_FAILOVER`; other services read `FailoverEvent`."""
read_failover_record: Reader[FailoverRecord] = Reader(
    Annotated[FailoverRecord, Field(discriminator="type")]
)
