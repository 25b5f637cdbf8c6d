"""`/v1/workloads` and `/v1/runs`: submit, list, watch, explain, cancel, logs."""

import json
import secrets
from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response

from whaleflux.common.contracts.workload import JOB_PHASE
from whaleflux.common.errors import Refused
from whaleflux.gateway.core.access import Permission
from whaleflux.gateway.core.view import Document
from whaleflux.gateway.core.view_report import history
from whaleflux.gateway.shell.answers import Json
from whaleflux.gateway.shell.gate import PRIVATE, Gate, Gated, shown
from whaleflux.gateway.shell.logs import node_of
from whaleflux.gateway.shell.problems import Problem
from whaleflux.gateway.shell.schemas import (
    EXAMPLE_WORKLOAD,
    ExplanationOut,
    LogOut,
    RunOut,
    RunPage,
    Undecided,
    ValidationOut,
    WorkloadOut,
    WorkloadPage,
)
from whaleflux.gateway.shell.settings import (
    PAGE_ITEMS_DEFAULT,
    PAGE_ITEMS_MAX,
    SCAN_ITEMS_MAX,
)
from whaleflux.gateway.shell.spec_body import spec_of
from whaleflux.gateway.shell.stream_out import StreamOut

router = APIRouter(
    prefix="/v1",
    tags=["workloads"],
    responses={code: {"model": Problem} for code in (401, 403, 404, 422, 503)},
)
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/WorkloadSpec"},
                "example": EXAMPLE_WORKLOAD,
            },
            "application/yaml": {"schema": {"type": "string"}},
        },
    }
}
KEY_LENGTH_MAX = 255
Limit = Annotated[int, Query(ge=1, le=PAGE_ITEMS_MAX)]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before")]


@router.post(
    "/workloads",
    operation_id="submitWorkload",
    status_code=201,
    openapi_extra=BODY,
    responses={
        200: {"model": WorkloadOut, "description": "The same submission, answered again"},
        201: {"model": WorkloadOut, "description": "Accepted, for good"},
        202: {"model": Undecided, "description": "Handed in and safe; not decided yet"},
    },
)
async def submit(
    request: Request,
    caller: Gated,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Json:
    """Submit a workload. The same Idempotency-Key never runs anything twice."""
    caller.need(Permission.SUBMIT)
    if idempotency_key is not None and not 0 < len(idempotency_key) <= KEY_LENGTH_MAX:
        raise Refused(
            f"An Idempotency-Key has 1 to {KEY_LENGTH_MAX} characters.", code="invalid_request"
        )
    spec = await spec_of(request)
    result = await caller.parts.submission.submit(
        caller.key, spec, idempotency_key or secrets.token_urlsafe(24)
    )
    location = {"location": f"/v1/workloads/{result.id}"}
    match result.state:
        case "undecided":
            return Json({"id": result.id, "state": "undecided"}, 202, headers=location)
        case "replayed":
            headers = {**location, "idempotent-replay": "true"}
            return Json(shown(result.workload or {}), 200, headers=headers)
        case _:
            return Json(shown(result.workload or {}), 201, headers=location)


@router.post("/validate", operation_id="validateWorkload", openapi_extra=BODY)
async def validate(request: Request, caller: Gated) -> ValidationOut:
    """Check a workload without submitting it."""
    caller.need(Permission.READ)
    spec = await spec_of(request)
    return ValidationOut(valid=True, name=spec.name, phases=[p.name for p in spec.phases])


@router.get(
    "/workloads",
    operation_id="listWorkloads",
    response_model=WorkloadPage,
)
async def list_workloads(
    caller: Gated,
    state: str | None = None,
    kind: str | None = None,
    name: str | None = None,
    limit: Limit = PAGE_ITEMS_DEFAULT,
    cursor: Cursor = None,
) -> Json:
    """List workloads, the newest first."""
    caller.need(Permission.READ)
    wanted = {"state": state, "kind": kind, "name": name}
    items, below = await _matching(
        caller,
        {key: value for key, value in wanted.items() if value is not None},
        below=_cursor(cursor),
        limit=limit,
    )
    following = None if below is None else str(int(below))
    return Json(
        {"items": [_brief(item) for item in items], "next_cursor": following},
        headers={} if following is None else {"link": f'<?cursor={following}>; rel="next"'},
    )


async def _matching(
    caller: Gate, wanted: Mapping[str, str], *, below: float | None, limit: int
) -> tuple[list[Document], float | None]:
    """Return workloads below a cursor, and the cursor of the next page if there may be one."""
    views = caller.parts.views
    # One more than is shown tells whether there is a next page; a filter has to look further.
    look = PAGE_ITEMS_MAX if wanted.keys() - {"name"} else limit + 1
    items: list[Document] = []
    scanned = 0
    while scanned < SCAN_ITEMS_MAX:
        page = await views.workload_page(
            caller.key.tenant, name=wanted.get("name"), below=below, limit=look
        )
        for document in await views.documents("workload", [id_ for id_, _ in page]):
            if len(items) == limit:
                return items, below
            below = float(document["seq"])
            if all(document[key] == value for key, value in wanted.items()):
                items.append(document)
        scanned += len(page)
        if len(page) < look:
            return items, None
    return items, below


def _cursor(cursor: str | None) -> float | None:
    if cursor is None:
        return None
    if not cursor.isdigit():
        raise Refused(
            "This cursor was not made here; take `next_cursor` of the page before.",
            code="invalid_request",
        )
    return float(cursor)


_NOT_LISTED = frozenset((*PRIVATE, "spec", "runs"))


def _brief(document: Document) -> dict[str, Any]:
    """Leave out of a list what makes it long."""
    return {key: value for key, value in document.items() if key not in _NOT_LISTED}


@router.get("/workloads/{workload}", operation_id="getWorkload", response_model=WorkloadOut)
async def get_workload(caller: Gated, workload: str) -> Json:
    """Return one workload, by id or by a name that only one has."""
    caller.need(Permission.READ)
    return Json(shown(await caller.workload(workload)))


@router.get("/workloads/{workload}/runs", operation_id="listRuns", response_model=RunPage)
async def list_runs(
    caller: Gated, workload: str, limit: Limit = PAGE_ITEMS_DEFAULT, cursor: Cursor = None
) -> Json:
    """List a workload's runs, in the order they were queued."""
    caller.need(Permission.READ)
    document = await caller.workload(workload)
    start = int(_cursor(cursor) or 0)
    ids = document["runs"][start : start + limit]
    runs = await caller.parts.views.documents("run", ids)
    end = start + limit
    following = str(end) if end < len(document["runs"]) else None
    return Json({"items": [shown(r) for r in runs], "next_cursor": following})


@router.get("/runs/{run}", operation_id="getRun", response_model=RunOut)
async def get_run(caller: Gated, run: str) -> Json:
    """Return one run with all its attempts and the course of its metrics."""
    caller.need(Permission.READ)
    document = await caller.run(run)
    report = await caller.parts.views.document("report", document["id"])
    return Json({**shown(document), "history": history(document, report)})


@router.post(
    "/workloads/{workload}/cancel",
    operation_id="cancelWorkload",
    status_code=202,
    response_model=WorkloadOut,
)
async def cancel(caller: Gated, workload: str) -> Json:
    """Ask a workload to end: what waits is dropped, what runs may save and exits."""
    caller.need(Permission.CANCEL)
    document = await caller.workload(workload)
    if document["ended_at"] is None:
        await caller.parts.submission.cancel(caller.key, document["id"])
    return Json(shown(document), 202)


@router.get(
    "/workloads/{workload}/explain",
    operation_id="explainWorkload",
    response_model=ExplanationOut,
)
async def explain_workload(caller: Gated, workload: str) -> Json:
    """Say why a workload stands where it stands, and what would start it now."""
    caller.need(Permission.READ)
    document = await caller.workload(workload)
    runs = await caller.runs(document)
    waiting = [run for run in runs if run["state"] == "queued"]
    if waiting:
        return Json(_explain_run(waiting[0]))
    live = [run for run in runs if run["ended_at"] is None]
    if live:
        return Json(_explain_run(live[-1]))
    sentence = document["reason"] or "It was accepted a moment ago and is being placed."
    return Json(_explanation(document["state"].upper(), f"{sentence}"))


@router.get("/runs/{run}/explain", operation_id="explainRun", response_model=ExplanationOut)
async def explain_run(caller: Gated, run: str) -> Json:
    """Say why a run waits, or why it is where it is."""
    caller.need(Permission.READ)
    return Json(_explain_run(await caller.run(run)))


def _explain_run(run: Document) -> dict[str, Any]:
    about = {"run_id": run["id"], "phase": run["phase"], "iteration": run["iteration"]}
    if run["state"] == "queued":
        if run["explanation"] is not None:
            return {**about, **run["explanation"]}
        return {**about, **_explanation("QUEUED", f"Queued: {run['queued_reason']}.")}
    if run["ended_at"] is not None:
        return {**about, **_explanation(run["state"].upper(), f"Ended: {run['reason']}.")}
    places = ", ".join(m["node_id"] for m in run["members"])
    return {**about, **_explanation(run["state"].upper(), f"On {places}: {run['why']}.")}


def _explanation(code: str, sentence: str) -> dict[str, Any]:
    return {"code": code, "sentence": sentence, "funnel": [], "starts_if": []}


@router.get(
    "/workloads/{workload}/logs",
    operation_id="readLog",
    response_model=LogOut,
    responses={
        200: {
            "content": {"application/x-ndjson": {}},
            "description": "A piece; with `follow`, one piece a line until one says `ended`",
        }
    },
)
async def logs(
    caller: Gated,
    workload: str,
    phase: str | None = None,
    iteration: Annotated[int | None, Query(ge=1)] = None,
    attempt: Annotated[int | None, Query(ge=1)] = None,
    rank: Annotated[int, Query(ge=0)] = 0,
    offset: Annotated[int, Query(ge=0)] = 0,
    follow: Annotated[bool, Query(description="go on until the member's log has ended")] = False,
) -> Response:
    """Return a piece of one member's log, from a byte offset on; or all of it as it is written."""
    caller.need(Permission.READ)
    document = await caller.workload(workload)
    runs = await caller.runs(document)
    chosen = [
        run
        for run in runs
        if phase in (None, run["phase"]) and iteration in (None, run["iteration"])
    ]
    if not chosen:
        ran = ", ".join(dict.fromkeys(run["phase"] for run in runs)) or "nothing yet"
        raise Refused(
            f"No run of phase {phase or JOB_PHASE!r}, iteration {iteration or 1}; so far: {ran}.",
            code="not_found",
        )
    run = chosen[-1]
    wanted: int = attempt or run["attempt"]
    if not follow:
        piece = await caller.parts.logs.read(run, attempt=wanted, rank=rank, offset=offset)
        return Json(piece)
    node_of(run, wanted, rank)

    async def look() -> Document:
        return await caller.run(run["id"])

    pieces = caller.parts.logs.follow(look, attempt=wanted, rank=rank, offset=offset)
    return StreamOut(_lines(pieces), media_type="application/x-ndjson")


async def _lines(pieces: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    try:
        async for piece in pieces:
            yield json.dumps(piece, separators=(",", ":")).encode() + b"\n"
    finally:
        await pieces.aclose()
