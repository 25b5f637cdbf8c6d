"""Hands commands to the scheduler and waits to read its own write."""

import asyncio
from dataclasses import dataclass
from typing import Literal

from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.scheduler import CancelWorkload, SubmitWorkload
from whaleflux.common.contracts.workload import WorkloadSpec
from whaleflux.common.errors import Refused
from whaleflux.common.ids import body_hash, workload_id
from whaleflux.common.jetstream import JetStream
from whaleflux.common.observe import trace_headers
from whaleflux.gateway.core.state import Key
from whaleflux.gateway.core.view import Document
from whaleflux.gateway.shell.decisions import Decisions
from whaleflux.gateway.shell.settings import COMMAND_BYTES_MAX, DECISION_LOOK_S, DECISION_WAIT_S
from whaleflux.gateway.shell.spec_body import too_large
from whaleflux.gateway.shell.view_store import ViewStore


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a submission."""

    state: Literal["created", "replayed", "undecided"]
    id: str
    workload: Document | None


class Submission:
    """Submits and cancels workloads."""

    def __init__(self, js: JetStream, views: ViewStore, decisions: Decisions) -> None:
        """Command by *js*; read the outcome in *views* once *decisions* says it may be there."""
        self._js = js
        self._views = views
        self._decisions = decisions

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
        body = command.model_dump_json().encode()
        if len(body) > COMMAND_BYTES_MAX:
            raise too_large(len(body))
        with self._decisions.expecting(id_) as news:
            await self._js.publish(
                subjects.command(command.type),
                body,
                msg_id=f"{id_}:{hashed}",
                headers={subjects.HEADER_TYPE: command.type, **trace_headers()},
            )
            decided = await self._decided(id_, news)
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

    async def _decided(self, id_: str, news: asyncio.Event) -> Document | None:
        """Return the workload once its decision is in the view, None if that takes too long."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + DECISION_WAIT_S
        while (left_s := deadline_s - loop.time()) > 0:
            try:
                async with asyncio.timeout(min(left_s, DECISION_LOOK_S)):
                    await news.wait()
            except TimeoutError:
                # A notice may be lost; the view is what counts.
                pass
            news.clear()
            found = await self._views.document("workload", id_)
            if found is not None:
                return found
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
