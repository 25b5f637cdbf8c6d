"""Completes the OpenAPI document: the body of a submission, and how one says who one is."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from whaleflux.common.contracts.workload import WorkloadSpec

_REF = "#/components/schemas/{model}"
_OPEN = frozenset({"/healthz", "/asyncapi.json", "/v1/schema/{name}.json"})
"""Paths that need no key."""


def describe(app: FastAPI) -> None:
    """Let *app* publish the completed document."""
    plain: Callable[[], dict[str, Any]] = app.openapi

    def completed() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        document = plain()
        components = document.setdefault("components", {})
        schema = WorkloadSpec.model_json_schema(ref_template=_REF)
        definitions = schema.pop("$defs", {})
        components.setdefault("schemas", {}).update({**definitions, "WorkloadSpec": schema})
        components["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer", "description": "an API key, wf_live_…"}
        }
        for path, operations in document["paths"].items():
            if path not in _OPEN:
                for operation in operations.values():
                    operation["security"] = [{"key": []}]
        app.openapi_schema = document
        return document

    app.openapi = completed  # type: ignore[method-assign]  # the framework's documented way
