"""Identifiers: those derived from content, and those drawn at random."""

import base64
import hashlib
import uuid
from typing import NewType, Protocol

WorkloadId = NewType("WorkloadId", str)
RunId = NewType("RunId", str)
NodeId = NewType("NodeId", str)

_NAMESPACE = uuid.UUID("5f0c7f52-6f5e-5d0f-9e52-2f6d8a3b1c47")


class Ids(Protocol):
    """Draws identifiers."""

    def new(self, prefix: str) -> str:
        """Return a fresh identifier that starts with *prefix* and an underscore."""
        ...


class RandomIds:
    """Identifiers nobody can guess."""

    def new(self, prefix: str) -> str:
        """Return a fresh identifier that starts with *prefix* and an underscore."""
        return f"{prefix}_{_base32(uuid.uuid4().bytes)}"


def workload_id(tenant: str, idempotency_key: str) -> WorkloadId:
    """Return the one id that *tenant* can ever get for *idempotency_key* (UUIDv5, base32)."""
    return WorkloadId(f"wl_{_base32(uuid.uuid5(_NAMESPACE, f'{tenant}/{idempotency_key}').bytes)}")


def run_id(workload: str, phase: str, iteration: int) -> RunId:
    """Return the id of one iteration of a phase; all its attempts share it."""
    return RunId(f"{workload}-{phase}-{iteration}")


def body_hash(body: bytes) -> str:
    """Return the SHA-256 by which a repeated request is told from a changed one."""
    return hashlib.sha256(body).hexdigest()


def _base32(raw: bytes) -> str:
    return base64.b32encode(raw).decode().rstrip("=").lower()
