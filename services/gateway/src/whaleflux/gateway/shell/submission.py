"""Hands commands to the scheduler and waits to read its own write."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.explain import explain_validation
from whaleflux.common.contracts.scheduler import CancelWorkload, SubmitWorkload
from whaleflux.common.contracts.workload import WorkloadSpec
from whaleflux.common.errors import Refused
from whaleflux.common.ids import body_hash, workload_id
from whaleflux.common.jetstream import JetStream
from whaleflux.common.observe import trace_headers
from whaleflux.gateway.core.state import Key
from whaleflux.gateway.core.view import Document
from whaleflux.gateway.shell.problems import BadRequest
from whaleflux.gateway.shell.settings import BODY_BYTES_MAX, DECISION_POLL_S, DECISION_WAIT_S
from whaleflux.gateway.shell.view_store import ViewStore


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a submission."""

    state: Literal["created", "replayed", "undecided"]
    id: str
    workload: Document | None


class Submission:
    """Submits and cancels workloads."""

    def __init__(self, js: JetStream, views: ViewStore) -> None:
        """Command by *js*; read the outcome in *views*."""
        self._js = js
        self._views = views

    async def submit(self, key: Key, spec: WorkloadSpec, idempotency_key: str) -> Submitted:
        """Submit *spec* once, however often it is called with this *idempotency_key*.

        Raises:
            Refused: The key was used for another body, or the workload can never run.

        """
        id_ = workload_id(key.tenant, idempotency_key)
        hashed = body_hash(spec.model_dump_json().encode())
        known = await self._views.document("workload", id_)
        if known is not None:
            return _judge(known, hashed, replayed=True)
        command = SubmitWorkload(
            workload_id=id_, tenant=key.tenant, user=key.user, body_hash=hashed, spec=spec
        )
        await self._js.publish(
            subjects.command(command.type),
            command.model_dump_json().encode(),
            msg_id=f"{id_}:{hashed}",
            headers={subjects.HEADER_TYPE: command.type, **trace_headers()},
        )
        decided = await self._decided(id_)
        if decided is None:
            return Submitted("undecided", id_, None)
        return _judge(decided, hashed, replayed=False)

    async def cancel(self, key: Key, id_: str) -> None:
        """Ask for a workload to end."""
        command = CancelWorkload(workload_id=id_, user=key.user)
        await self._js.publish(
            subjects.command(command.type),
            command.model_dump_json().encode(),
            headers={subjects.HEADER_TYPE: command.type, **trace_headers()},
        )

    async def _decided(self, id_: str) -> Document | None:
        """Return the workload once its decision is in the view, None if that takes too long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DECISION_WAIT_S
        pause_s = DECISION_POLL_S
        while loop.time() < deadline:
            found = await self._views.document("workload", id_)
            if found is not None:
                return found
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.1)
        return None


def _judge(document: Document, hashed: str, *, replayed: bool) -> Submitted:
    if document["body_hash"] != hashed:
        raise Refused(
            f"This Idempotency-Key was used for workload {document['id']} "
            f"({document['name']!r}), whose body is another one. Take a new key.",
            code="idempotency_conflict",
            fields={"workload_id": document["id"]},
        )
    if document["state"] == "refused":
        raise Refused(document["reason"], code=document["code"].lower())
    return Submitted("replayed" if replayed else "created", document["id"], document)


def read_spec(body: bytes, content_type: str) -> WorkloadSpec:
    """Return the workload in *body* (JSON, or YAML by its content type).

    Raises:
        BadRequest: It cannot be read, or fields of it are wrong; each is named.

    """
    if len(body) > BODY_BYTES_MAX:
        raise Refused(
            f"A workload may have {BODY_BYTES_MAX // 1024} KiB at most; this one has "
            f"{len(body) // 1024}. Keep files in `workdir`.",
            code="too_large",
        )
    try:
        parsed: Any = yaml.safe_load(body) if "yaml" in content_type else json.loads(body)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        kind = "YAML" if "yaml" in content_type else "JSON"
        raise BadRequest(f"The body is not {kind}: {error}", (), code="invalid_body") from error
    if not isinstance(parsed, dict):
        raise BadRequest("The body must be one workload, as an object.", (), code="invalid_body")
    try:
        spec = WorkloadSpec.model_validate(parsed)
    except ValidationError as error:
        problems = explain_validation(error, WorkloadSpec)
        lines = "; ".join(f"{p.pointer.strip('/') or 'workload'}: {p.detail}" for p in problems)
        raise BadRequest(lines, problems, code="invalid_workload") from error
    if spec.workdir is not None and not spec.workdir.startswith("sha256:"):
        raise BadRequest(
            "workdir must be uploaded first: PUT /v1/blobs/<sha256>, then 'sha256:<hex>'. "
            "The command line and the SDK do that.",
            (),
            code="invalid_workload",
        )
    return spec
