"""The published descriptions of the API are today's. `UPDATE_GOLDEN=1` rewrites them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from whaleflux.gateway.core.public_data import EVENTS
from whaleflux.gateway.shell.asyncapi import document as asyncapi
from whaleflux.gateway.shell.http_api import build_app

API = Path(__file__).resolve().parents[3] / "docs" / "api"


def openapi() -> dict[str, Any]:
    return build_app(None, lambda: {"ok": True}).openapi()


@pytest.mark.parametrize(("name", "build"), [("openapi", openapi), ("asyncapi", asyncapi)])
def test_the_published_document_is_todays(name: str, build: Any) -> None:
    text = json.dumps(build(), indent=1, sort_keys=True) + "\n"
    path = API / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, methods in openapi()["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_document_is_openapi_3_1_and_every_reference_leads_somewhere() -> None:
    document = openapi()
    assert document["openapi"].startswith("3.1")
    text = json.dumps(document)
    schemas = document["components"]["schemas"]
    for part in text.split('"$ref": "')[1:]:
        reference = part.split('"')[0]
        assert reference.removeprefix("#/components/schemas/") in schemas, reference


def test_every_operation_has_a_name_a_summary_and_its_errors() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    for path, method, operation in operations():
        assert operation["description"] or operation["summary"], (path, method)
        if path.startswith("/v1") and "schema" not in path:
            assert "401" in operation["responses"], (path, method)


def test_all_but_health_and_documents_ask_for_a_key() -> None:
    open_paths = {path for path, _, operation in operations() if "security" not in operation}
    assert open_paths == {"/healthz", "/asyncapi.json", "/v1/schema/{name}.json"}


def test_a_submissions_body_is_the_workload() -> None:
    body = openapi()["paths"]["/v1/workloads"]["post"]["requestBody"]["content"]
    assert body["application/json"]["schema"] == {"$ref": "#/components/schemas/WorkloadSpec"}
    assert body["application/json"]["example"]["run"]


def test_every_public_event_has_a_channel_and_says_what_it_holds() -> None:
    document = asyncapi()
    assert len(document["channels"]) == len(EVENTS)
    schemas = document["components"]["schemas"]
    for message in document["components"]["messages"].values():
        assert message["summary"]
        held = schemas[message["payload"]["$ref"].rpartition("/")[2]]
        assert held["properties"] and held["required"] == list(held["properties"])
    for part in json.dumps(document).split('"$ref": "#/components/schemas/')[1:]:
        assert part.split('"')[0] in schemas
