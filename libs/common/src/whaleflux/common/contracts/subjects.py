"""Names on the bus: general to particular, identity last. Built only here.

commands     wf.cmd.<service>.<entity>.<verb>
events       wf.evt.<service>.<entity>.<participle>.<id>
agent events wf.evt.agent.<entity>.<participle>.<node>.<id>   (a node may publish only its own)
questions    wf.qry.<service>.<question>[.<node or tenant>]
assignments  wf.asg.<node>
samples      wf.smp.<node>
public       wf.pub.<tenant>.<entity>.<participle>.<id>
dead letters wf.dlq.<service>
leases       wf.lease.<key>
notices      wf.ntc.<service>.<name>   (stored nowhere, at most once: only to look sooner)
"""

STREAM_ASSIGNMENTS = "ASSIGNMENTS"
STREAM_SAMPLES = "SAMPLES"
STREAM_PUB = "PUB"
STREAM_DLQ = "DLQ"
STREAM_LEASES = "LEASES"
STREAM_AGENT = "EVT_AGENT"
STREAM_FAILOVER = "EVT_FAILOVER"
STREAM_GATEWAY = "EVT_GATEWAY"
CELL_DEFAULT = "c0"

HEADER_TYPE = "Wf-Type"
HEADER_CAUSATION = "Wf-Causation"
HEADER_TRACE = "traceparent"
HEADER_MSG_ID = "Nats-Msg-Id"


def stream_scheduler(cell: str = CELL_DEFAULT) -> str:
    """Return the name of a cell's scheduler log."""
    return f"EVT_SCHEDULER_{cell}"


def stream_commands(service: str) -> str:
    """Return the name of a service's command stream."""
    return f"CMD_{service.upper()}"


def command(type_: str) -> str:
    """Return where a command of type `scheduler.workload.submit.v1` goes."""
    service, entity, verb, _version = type_.split(".")
    return f"wf.cmd.{service}.{entity}.{verb}"


def event(type_: str, id_: str) -> str:
    """Return where an event of type `scheduler.run.placed.v1` about *id_* goes."""
    service, entity, participle, _version = type_.split(".")
    return f"wf.evt.{service}.{entity}.{participle}.{id_}"


def agent_event(type_: str, node_id: str, id_: str) -> str:
    """Return where *node_id*'s agent says something about *id_*."""
    service, entity, participle, _version = type_.split(".")
    return f"wf.evt.{service}.{entity}.{participle}.{node_id}.{id_}"


def question(service: str, name: str, *, of: str | None = None) -> str:
    """Return where to ask *service* a question; *of* names the node or tenant it is about."""
    return f"wf.qry.{service}.{name}" if of is None else f"wf.qry.{service}.{name}.{of}"


def agent_question(node_id: str, name: str) -> str:
    """Return where to ask the agent of *node_id* a question."""
    return f"wf.qry.agent.{node_id}.{name}"


def assignment(node_id: str) -> str:
    """Return where the assignment of *node_id* stands."""
    return f"wf.asg.{node_id}"


def sample(node_id: str) -> str:
    """Return where *node_id* sends its samples."""
    return f"wf.smp.{node_id}"


def public(tenant: str, entity: str, participle: str, id_: str) -> str:
    """Return where *tenant* reads that something happened to *id_*."""
    return f"wf.pub.{tenant}.{entity}.{participle}.{id_}"


def dead_letter(service: str) -> str:
    """Return where *service* puts what it cannot read."""
    return f"wf.dlq.{service}"


def notice(service: str, name: str) -> str:
    """Return where *service* says that it is worth looking again; such a message may be lost."""
    return f"wf.ntc.{service}.{name}"


def lease(key: str) -> str:
    """Return where the leader lease *key* stands."""
    return f"wf.lease.{key}"
