"""Who may do what: roles and the permissions they carry."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from whaleflux.common.contracts.gateway import ApiRole
from whaleflux.common.errors import Refused
from whaleflux.gateway.core.state import Key, State


class Permission(StrEnum):
    """Something a request needs to be allowed."""

    READ = "workloads.read"
    SUBMIT = "workloads.submit"
    CANCEL = "workloads.cancel"
    FLEET = "fleet.read"


ROLES: Mapping[ApiRole, frozenset[Permission]] = {
    "viewer": frozenset({Permission.READ, Permission.FLEET}),
    "researcher": frozenset(
        {Permission.READ, Permission.FLEET, Permission.SUBMIT, Permission.CANCEL}
    ),
    "operator": frozenset(Permission),
    "admin": frozenset(Permission),
}


def identify(state: State, secret_sha256: str, now: datetime) -> Key:
    """Return the key with that hash.

    Raises:
        Refused: code `unauthenticated`: no such key, or it has expired.

    """
    key = state.keys.get(secret_sha256)
    if key is None:
        raise Refused(
            "This API key is not known here. Check it, or use the one that 'up' wrote.",
            code="unauthenticated",
        )
    if key.expires_at is not None and key.expires_at <= now:
        raise Refused(
            f"This API key expired at {key.expires_at.isoformat()}.", code="unauthenticated"
        )
    return key


def require(key: Key, permission: Permission) -> None:
    """Pass, or say which permission is missing.

    Raises:
        Refused: code `forbidden`.

    """
    if permission not in ROLES[key.role]:
        able = ", ".join(role for role, granted in ROLES.items() if permission in granted)
        raise Refused(
            f"This needs the permission {permission.value}; your role {key.role} does not have "
            f"it. These do: {able}.",
            code="forbidden",
            fields={"permission": permission.value, "role": key.role},
        )
