"""What the gateway knows of tenants and their keys."""

from dataclasses import dataclass, field
from datetime import datetime

from whaleflux.common.contracts.gateway import ApiRole


@dataclass(frozen=True, slots=True)
class Key:
    """An API key; of its secret only the hash is known."""

    key_id: str
    tenant: str
    user: str
    role: ApiRole
    expires_at: datetime | None


@dataclass(slots=True)
class State:
    """Tenants and valid keys."""

    tenants: set[str] = field(default_factory=set[str])
    keys: dict[str, Key] = field(default_factory=dict[str, Key])
    """SHA-256 of the secret → key."""
