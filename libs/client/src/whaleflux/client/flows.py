"""What the client asks of the gateway, written once for the sync and the async client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from whaleflux.client.errors import NotFound, ServerProblem, WaitTimedOut
from whaleflux.client.models import (
    ExplanationView,
    GpuView,
    Identity,
    NodeView,
    RunView,
    ValidationReport,
    View,
    WorkloadView,
)
from whaleflux.client.wire import Call, Emit, Flow, Now, Pause, Reply, query

if TYPE_CHECKING:
    from whaleflux.common.contracts.workload import WorkloadSpec

V = TypeVar("V", bound=View)

PAGE_SIZE = 100
UNDECIDED_S_MAX = 60.0
"""The scheduler is without a leader for 15 s at most; then it decides within seconds."""
POLL_FIRST_S = 0.1
POLL_GROWTH = 1.5
POLL_S_MAX = 2.0
UPLOAD_TIMEOUT_S = 600.0
"""512 MiB over a slow home line."""
NOT_FOUND = frozenset({404})


def submit(
    body: Mapping[str, Any], *, idempotency_key: str, undecided_s_max: float = UNDECIDED_S_MAX
) -> Flow[WorkloadView]:
    """Submit a workload and return it once the scheduler has decided to take it."""
    reply: Reply = yield Call(
        "POST",
        "/v1/workloads",
        body=json.dumps(body).encode(),
        headers={"idempotency-key": idempotency_key},
    )
    if reply.status != 202:
        return WorkloadView.model_validate(reply.json())
    id_ = str(reply.json()["id"])
    began: float = yield Now()
    pause_s = POLL_FIRST_S
    while True:
        yield Pause(pause_s)
        pause_s = min(pause_s * POLL_GROWTH, POLL_S_MAX)
        found: Reply = yield Call("GET", f"/v1/workloads/{id_}", accepted=NOT_FOUND)
        if found.status == 200:
            return WorkloadView.model_validate(found.json())
        now: float = yield Now()
        if now - began > undecided_s_max:
            raise WaitTimedOut(
                f"Workload {id_} was handed in, but the scheduler has not decided on it for "
                f"{undecided_s_max:.0f} s. Nothing is lost: the same idempotency key "
                f"{idempotency_key!r} finds it again.",
                state="undecided",
            )


def wire_body(spec: WorkloadSpec) -> dict[str, Any]:
    """Return *spec* as the body of a submission."""
    return spec.model_dump(mode="json", by_alias=True)


def workdir_folder(spec: WorkloadSpec, base: Path) -> Path | None:
    """Return the folder that *spec* names relative to *base*; None when nothing is to upload."""
    if spec.workdir is None or spec.workdir.startswith("sha256:"):
        return None
    return base / Path(spec.workdir).expanduser()


def validate(spec: WorkloadSpec) -> Flow[ValidationReport]:
    """Ask the gateway what it thinks of *spec* without submitting it."""
    body = json.dumps(wire_body(spec)).encode()
    reply: Reply = yield Call("POST", "/v1/validate", body=body)
    return ValidationReport.model_validate(reply.json() or {})


def one(path: str, model: type[V]) -> Flow[V]:
    """Return the one thing at *path*."""
    reply: Reply = yield Call("GET", path)
    return model.model_validate(reply.json())


def pages(path: str, model: type[V], *, params: Mapping[str, str], limit: int | None) -> Flow[None]:
    """Emit every item of a list, at most *limit* of them, page by page."""
    left = limit
    cursor: str | None = None
    while left is None or left > 0:
        size = PAGE_SIZE if left is None else min(left, PAGE_SIZE)
        reply: Reply = yield Call(
            "GET", path, params={**params, **query(limit=size, cursor=cursor)}
        )
        body = reply.json()
        items = body["items"][: left if left is not None else None]
        for item in items:
            yield Emit(model.model_validate(item))
        left = None if left is None else left - len(items)
        following = body.get("next_cursor")
        if not following or following == cursor:
            return
        cursor = str(following)


def workload(id_or_name: str) -> Flow[WorkloadView]:
    """Return one workload."""
    return (yield from one(f"/v1/workloads/{segment(id_or_name)}", WorkloadView))


def run(id_: str) -> Flow[RunView]:
    """Return one run."""
    return (yield from one(f"/v1/runs/{segment(id_)}", RunView))


def workloads(
    *, state: str | None, kind: str | None, name: str | None, limit: int | None
) -> Flow[None]:
    """Emit workloads, the newest first."""
    params = query(state=state, kind=kind, name=name)
    yield from pages("/v1/workloads", WorkloadView, params=params, limit=limit)


def runs(workload_id: str, *, limit: int | None = None) -> Flow[None]:
    """Emit the runs of a workload."""
    path = f"/v1/workloads/{segment(workload_id)}/runs"
    yield from pages(path, RunView, params={}, limit=limit)


def nodes(*, limit: int | None = None) -> Flow[None]:
    """Emit the nodes of the fleet that this key may see."""
    yield from pages("/v1/nodes", NodeView, params={}, limit=limit)


def gpus(*, limit: int | None = None) -> Flow[None]:
    """Emit the GPUs that this key may see."""
    yield from pages("/v1/gpus", GpuView, params={}, limit=limit)


def cancel(id_or_name: str) -> Flow[WorkloadView]:
    """Ask for a workload to end and return how it stands now."""
    reply: Reply = yield Call("POST", f"/v1/workloads/{segment(id_or_name)}/cancel")
    body = reply.json()
    if isinstance(body, dict) and "id" in body and "name" in body:
        return WorkloadView.model_validate(body)
    return (yield from workload(id_or_name))


def explain(id_: str) -> Flow[ExplanationView]:
    """Return why a workload or a run stands where it stands."""
    reply: Reply = yield Call("GET", f"/v1/workloads/{segment(id_)}/explain", accepted=NOT_FOUND)
    if reply.status == 404:
        reply = yield Call("GET", f"/v1/runs/{segment(id_)}/explain")
    return ExplanationView.model_validate(reply.json())


def wait(id_or_name: str, *, timeout_s: float | None) -> Flow[WorkloadView]:
    """Return the workload once it has ended, one way or another."""
    began: float = yield Now()
    pause_s = POLL_FIRST_S
    while True:
        found = yield from workload(id_or_name)
        if found.ended:
            return found
        now: float = yield Now()
        if timeout_s is not None and now - began >= timeout_s:
            raise WaitTimedOut(
                f"{found.name or found.id} is still {found.state} after {timeout_s:g} s; "
                "it goes on.",
                state=found.state,
            )
        left = pause_s if timeout_s is None else min(pause_s, timeout_s - (now - began))
        yield Pause(left)
        pause_s = min(pause_s * POLL_GROWTH, POLL_S_MAX)


def upload(archive: Path, sha256: str) -> Flow[bool]:
    """Put an archive into the pool's store; return False when it was there already."""
    path = f"/v1/blobs/{sha256}"
    there: Reply = yield Call("HEAD", path, accepted=NOT_FOUND)
    if there.status != 404:
        return False
    yield Call(
        "PUT",
        path,
        file=archive,
        headers={"content-type": "application/gzip"},
        timeout_s=UPLOAD_TIMEOUT_S,
    )
    return True


def whoami() -> Flow[Identity]:
    """Return whose key this is."""
    return (yield from one("/v1/whoami", Identity))


def healthy() -> Flow[bool]:
    """Whether the gateway says it is well."""
    try:
        yield Call("GET", "/healthz")
    except (ServerProblem, NotFound):
        return False
    return True


def segment(text: str) -> str:
    """Return *text* as one segment of a path."""
    return quote(text, safe="")
