"""How a fact changes what the gateway knows."""

from typing import assert_never

from whaleflux.common.contracts.gateway import (
    GatewayEvent,
    KeyCreated,
    KeyRevoked,
    TenantCreated,
)
from whaleflux.gateway.core.state import Key, State


def evolve(state: State, event: GatewayEvent, seq: int) -> None:
    """Fold one event into *state*; keys do not depend on *seq*."""
    match event:
        case TenantCreated():
            state.tenants.add(event.tenant)
        case KeyCreated():
            state.keys[event.secret_sha256] = Key(
                event.key_id, event.tenant, event.user, event.role, event.expires_at
            )
        case KeyRevoked():
            state.keys = {h: k for h, k in state.keys.items() if k.key_id != event.key_id}
        case _:
            assert_never(event)
