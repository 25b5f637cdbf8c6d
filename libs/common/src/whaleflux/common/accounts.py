"""Who may say what on the bus: one account for the services, one for each node and tenant.

Nodes and tenants get *service imports* only. Reply subjects are not permission-checked by the
server, so within one account (and through stream exports) an agent could forge a message by
asking for an answer on another's subject; through a service import it cannot.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from whaleflux.common.contracts import subjects

CORE = "CORE"
SYSTEM = "SYS"
MAX_PAYLOAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Login:
    """A user of the bus."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logins:
    """All users of one bus."""

    core: Login
    system: Login
    nodes: Mapping[str, Login]
    tenants: Mapping[str, Login]


def node_services(node_id: str) -> list[dict[str, str]]:
    """Return the services of CORE that the agent of *node_id* may use."""
    asg = subjects.STREAM_ASSIGNMENTS
    return [
        {"subject": f"wf.evt.agent.*.*.{node_id}.>"},
        {"subject": subjects.sample(node_id)},
        {"subject": subjects.question("failover", "lease", of=node_id)},
        {"subject": f"$JS.API.CONSUMER.MSG.NEXT.{asg}.{node_id}", "response": "stream"},
        {"subject": f"$JS.API.DIRECT.GET.{asg}.{subjects.assignment(node_id)}"},
    ]


def nats_accounts(logins: Logins) -> dict[str, Any]:
    """Return the `accounts` part of the server's configuration."""
    exports: list[dict[str, Any]] = []
    imports: list[dict[str, Any]] = []
    accounts: dict[str, Any] = {SYSTEM: {"users": [_user(logins.system)]}}
    for node_id, login in logins.nodes.items():
        name = f"NODE_{node_id}"
        questions = subjects.agent_question(node_id, ">")
        services = node_services(node_id)
        exports += [_export(service, name) for service in services]
        imports.append({"service": {"account": name, "subject": questions}})
        accounts[name] = {
            "users": [_user(login)],
            "exports": [{"service": questions, "accounts": [CORE]}],
            "imports": [_import(service["subject"]) for service in services],
        }
    for tenant, login in logins.tenants.items():
        name = f"TENANT_{tenant}"
        subject = subjects.question("gateway", "events", of=tenant)
        exports.append({"service": subject, "accounts": [name]})
        accounts[name] = {"users": [_user(login)], "imports": [_import(subject)]}
    accounts[CORE] = {
        "jetstream": "enabled",
        "users": [_user(logins.core)],
        "exports": exports,
        "imports": imports,
    }
    return {
        "accounts": accounts,
        "system_account": SYSTEM,
        "max_payload": MAX_PAYLOAD_BYTES,
    }


def _user(login: Login) -> dict[str, str]:
    return {"user": login.user, "password": login.password}


def _export(service: Mapping[str, str], account: str) -> dict[str, Any]:
    export: dict[str, Any] = {"service": service["subject"], "accounts": [account]}
    if "response" in service:
        export["response_type"] = service["response"]
    return export


def _import(subject: str) -> dict[str, Any]:
    return {"service": {"account": CORE, "subject": subject}}
