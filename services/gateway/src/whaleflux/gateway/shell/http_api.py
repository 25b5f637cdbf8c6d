"""The HTTP application: routes, errors, documents."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from whaleflux.gateway.shell import routes_events, routes_fleet, routes_workloads
from whaleflux.gateway.shell.asyncapi import document as asyncapi_document
from whaleflux.gateway.shell.gate import Parts
from whaleflux.gateway.shell.heads import Heads
from whaleflux.gateway.shell.openapi import describe
from whaleflux.gateway.shell.problems import install
from whaleflux.gateway.shell.request_ids import Identify

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

    app.add_middleware(Heads)
    app.add_middleware(Identify)

    @app.get("/healthz", operation_id="health", tags=["health"])
    async def health() -> JSONResponse:
        """Say whether the gateway is well; needs no key."""
        report = healthy()
        return JSONResponse(report, 200 if report["ok"] else 503)

    @app.get("/asyncapi.json", operation_id="getAsyncApi", tags=["events"])
    async def asyncapi() -> dict[str, Any]:
        """Return the AsyncAPI document of the public events."""
        return asyncapi_document()

    describe(app)
    return app
