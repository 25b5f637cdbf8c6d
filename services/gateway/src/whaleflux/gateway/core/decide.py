"""What the gateway does when a tenant or a key is to be made or ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias, assert_never

from whaleflux.common.contracts.gateway import (
    ApiRole,
    GatewayEvent,
    KeyCreated,
    KeyRevoked,
    TenantCreated,
)
from whaleflux.gateway.core.state import State


@dataclass(frozen=True, slots=True)
class AdmitFirstKey:
    """Make the first tenant and its administrator's key, if there is no key yet."""

    tenant: str
    key_id: str
    secret_sha256: str


@dataclass(frozen=True, slots=True)
class CreateKey:
    """Make a key for a tenant."""

    tenant: str
    key_id: str
    user: str
    role: ApiRole
    secret_sha256: str


@dataclass(frozen=True, slots=True)
class RevokeKey:
    """Refuse a key from now on."""

    key_id: str


Thought: TypeAlias = AdmitFirstKey | CreateKey | RevokeKey


def decide(state: State, command: Thought, now: datetime) -> Sequence[GatewayEvent]:
    """Return the facts that follow from *command*; none when it is a repeat."""
    match command:
        case AdmitFirstKey():
            if state.keys:
                return ()
            return _with_tenant(
                state,
                CreateKey(command.tenant, command.key_id, "admin", "admin", command.secret_sha256),
                now,
            )
        case CreateKey():
            if command.secret_sha256 in state.keys:
                return ()
            return _with_tenant(state, command, now)
        case RevokeKey():
            found = next((k for k in state.keys.values() if k.key_id == command.key_id), None)
            if found is None:
                return ()
            return (KeyRevoked(at=now, key_id=found.key_id, tenant=found.tenant),)
        case _:
            assert_never(command)


def _with_tenant(state: State, command: CreateKey, now: datetime) -> list[GatewayEvent]:
    events: list[GatewayEvent] = []
    if command.tenant not in state.tenants:
        events.append(TenantCreated(at=now, tenant=command.tenant))
    events.append(
        KeyCreated(
            at=now,
            key_id=command.key_id,
            tenant=command.tenant,
            user=command.user,
            role=command.role,
            secret_sha256=command.secret_sha256,
        )
    )
    return events
