"""What the gateway knows about tenants and keys. A key's secret is never in a message."""

from datetime import datetime
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from whaleflux.common.contracts.base import Event, Reader, Token

ApiRole: TypeAlias = Literal["viewer", "researcher", "operator", "admin"]


class TenantCreated(Event):
    """A tenant may have keys and submit work."""

    type: Literal["gateway.tenant.created.v1"] = "gateway.tenant.created.v1"
    tenant: Token


class KeyCreated(Event):
    """An API key is valid from now on."""

    type: Literal["gateway.key.created.v1"] = "gateway.key.created.v1"
    key_id: Token
    tenant: Token
    user: str
    role: ApiRole
    secret_sha256: str
    expires_at: datetime | None = None


class KeyRevoked(Event):
    """An API key is refused from now on."""

    type: Literal["gateway.key.revoked.v1"] = "gateway.key.revoked.v1"
    key_id: Token
    tenant: Token


GatewayEvent: TypeAlias = TenantCreated | KeyCreated | KeyRevoked
read_gateway_event: Reader[GatewayEvent] = Reader(
    Annotated[GatewayEvent, Field(discriminator="type")]
)
