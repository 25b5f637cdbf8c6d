"""The HTTP application: routes, errors, documents."""

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from whaleflux.common.observe import span
from whaleflux.gateway.shell import routes_events, routes_fleet, routes_workloads
from whaleflux.gateway.shell.asyncapi import document as asyncapi_document
from whaleflux.gateway.shell.gate import Parts
from whaleflux.gateway.shell.problems import install

DESCRIPTION = """Submit jobs and pipelines, watch them, and understand them.

Send `Authorization: Bearer wf_live_…`. Errors are problem documents (RFC 9457)."""


def build_app(parts: Parts | None, healthy: Callable[[], dict[str, Any]]) -> FastAPI:
    """Return the application on *parts* (None: only to read its documents)."""
    app = FastAPI(
        title="WhaleFlux",
        version="1",
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.state.parts = parts
    install(app)
    for routes in (routes_workloads, routes_fleet, routes_events):
        app.include_router(routes.router)

    @app.middleware("http")
    async def identify(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        given = request.headers.get("x-request-id", "")
        request.state.request_id = given[:100] or f"req_{secrets.token_hex(8)}"
        with span(f"{request.method} {request.url.path}", request.headers):
            response = await call_next(request)
        response.headers["x-request-id"] = request.state.request_id
        return response

    @app.get("/healthz", operation_id="health", tags=["health"])
    async def health() -> JSONResponse:
        """Say whether the gateway is well; needs no key."""
        report = healthy()
        return JSONResponse(report, 200 if report["ok"] else 503)

    @app.get("/asyncapi.json", operation_id="getAsyncApi", tags=["events"])
    async def asyncapi() -> dict[str, Any]:
        """Return the AsyncAPI document of the public events."""
        return asyncapi_document()

    return app
