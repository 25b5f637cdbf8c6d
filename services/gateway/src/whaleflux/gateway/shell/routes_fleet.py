"""`/v1/nodes`, `/v1/gpus`, uploads, schemas and who one is."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from whaleflux.common.contracts.workload import WorkloadSpec
from whaleflux.common.errors import Refused
from whaleflux.gateway.core.access import Permission
from whaleflux.gateway.core.view import Document
from whaleflux.gateway.shell.answers import Json
from whaleflux.gateway.shell.gate import Gate, Gated, shown
from whaleflux.gateway.shell.problems import Problem
from whaleflux.gateway.shell.schemas import BlobOut, GpuPage, Identity, NodePage
from whaleflux.gateway.shell.settings import PAGE_ITEMS_MAX

router = APIRouter(
    prefix="/v1",
    tags=["fleet"],
    responses={code: {"model": Problem} for code in (401, 403, 422, 503)},
)
Limit = Annotated[int, Query(ge=1, le=PAGE_ITEMS_MAX)]


@router.get("/nodes", operation_id="listNodes", response_model=NodePage)
async def list_nodes(
    caller: Gated, limit: Limit = PAGE_ITEMS_MAX, cursor: str | None = None
) -> Json:
    """List nodes by name."""
    caller.need(Permission.FLEET)
    nodes = await caller.parts.views.nodes()
    held = await _own_runs(caller, nodes)
    items = [
        {**shown(node), "gpus": [_holder(gpu, held) for gpu in node["gpus"]]} for node in nodes
    ]
    return _page(items, "id", limit, cursor)


@router.get("/gpus", operation_id="listGpus", response_model=GpuPage)
async def list_gpus(
    caller: Gated, limit: Limit = PAGE_ITEMS_MAX, cursor: str | None = None
) -> Json:
    """List GPUs with who holds them and what they measure; what is unknown is null."""
    caller.need(Permission.FLEET)
    nodes = await caller.parts.views.nodes()
    gpus = [(node, gpu) for node in nodes for gpu in node["gpus"]]
    samples = await caller.parts.views.samples([gpu["uuid"] for _, gpu in gpus])
    held = await _own_runs(caller, nodes)
    items = [
        _gpu(node, gpu, samples.get(gpu["uuid"], {}), held.get(gpu["run_id"])) for node, gpu in gpus
    ]
    return _page(items, "id", limit, cursor)


async def _own_runs(caller: Gate, nodes: list[Document]) -> dict[str, Document]:
    """Return the caller's runs that hold GPUs; other tenants' are nobody's business."""
    ids = {g["run_id"] for node in nodes for g in node["gpus"] if g["run_id"] is not None}
    return {
        run["id"]: run
        for run in await caller.parts.views.documents("run", sorted(ids))
        if run["tenant"] == caller.key.tenant
    }


def _holder(gpu: Document, held: dict[str, Document]) -> Document:
    """Return a GPU that shows whether it is free, and its run only if that is the caller's."""
    run_id = gpu["run_id"]
    return {**gpu, "free": run_id is None, "run_id": run_id if run_id in held else None}


def _gpu(node: Document, gpu: Document, sample: Document, run: Document | None) -> Document:
    taken = gpu["run_id"] is not None
    return {
        "id": f"{node['id']}/{gpu['index']:03d}",
        "node_id": node["id"],
        "index": gpu["index"],
        "uuid": gpu["uuid"],
        "type": gpu["type"],
        "memory_mib": gpu["memory_mib"],
        "state": ("held" if taken else "free") if node["state"] == "ready" else node["state"],
        "simulated": node["simulated"],
        "run_id": None if run is None else run["id"],
        "workload_id": None if run is None else run["workload_id"],
        "phase": None if run is None else run["phase"],
        "sampled_at": sample.get("at"),
        "utilisation_pct": sample.get("utilisation_pct"),
        "memory_used_mib": sample.get("memory_used_mib"),
        "temperature_c": sample.get("temperature_c"),
        "power_w": sample.get("power_w"),
        "power_limit_w": sample.get("power_limit_w"),
        "sm_clock_mhz": sample.get("sm_clock_mhz"),
    }


def _page(items: list[Document], by: str, limit: int, cursor: str | None) -> Json:
    left = [item for item in items if cursor is None or item[by] > cursor]
    page = left[:limit]
    following = page[-1][by] if len(left) > limit else None
    return Json({"items": page, "next_cursor": following})


@router.head("/blobs/{sha256}", operation_id="hasBlob", status_code=200)
async def has_blob(caller: Gated, sha256: str) -> Response:
    """Say whether an archive is in the pool's store: 200 or 404."""
    caller.need(Permission.SUBMIT)
    return Response(status_code=200 if await caller.parts.blobs.exists(sha256) else 404)


@router.put("/blobs/{sha256}", operation_id="putBlob", status_code=201)
async def put_blob(request: Request, caller: Gated, sha256: str) -> BlobOut:
    """Put an archive (tar.gz) into the pool's store, named by its SHA-256."""
    caller.need(Permission.SUBMIT)
    return BlobOut(sha256=sha256, bytes=await caller.parts.blobs.put(sha256, request.stream()))


@router.get("/whoami", operation_id="whoAmI")
async def whoami(caller: Gated) -> Identity:
    """Say whose key this is and what it may do."""
    key = caller.key
    return Identity(key_id=key.key_id, tenant=key.tenant, user=key.user, role=key.role)


@router.get("/schema/{name}.json", operation_id="getSchema")
async def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a workload, for editors and checkers."""
    if name != "workload":
        raise Refused(f"There is no schema {name!r}; there is 'workload'.", code="not_found")
    return WorkloadSpec.model_json_schema()
