"""What every service is told at start, by environment (`WHALEFLUX_…`) or by its caller."""

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class ServiceSettings(BaseSettings):
    """Addresses and limits that all services share."""

    model_config = SettingsConfigDict(env_prefix="WHALEFLUX_", frozen=True, extra="ignore")

    nats_url: str = "nats://127.0.0.1:4222"
    """One address, or several with commas between them."""
    nats_user: str = ""
    nats_password: SecretStr = SecretStr("")
    valkey_url: str = "redis://127.0.0.1:6379/0"
    """`unix:///path` is accepted too."""
    state_dir: str = "."
    """Where the service keeps its own disposable files."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Loopback port for Prometheus; 0 for none."""
    log_format: str = Field(default="json", pattern="^(json|text)$")
    cell: str = "c0"
    otlp_endpoint: str = ""
    """Where spans go (OTLP over HTTP); empty keeps tracing to header propagation only."""
