"""The public events as an AsyncAPI 3 document."""

from typing import Any

from whaleflux.gateway.core.public import TYPE_PREFIX
from whaleflux.gateway.core.public_data import EVENTS

_REF = "#/components/schemas/{model}"
_HEADERS = {
    "ce-id": "the event's sequence, which is the cursor of every way in",
    "ce-type": "kind and version, such as io.whaleflux.run.placed.v1",
    "ce-source": "who tells it",
    "ce-subject": "the workload, run or node it is about",
    "ce-time": "when it happened (RFC 3339)",
    "ce-specversion": "1.0",
    "ce-datacontenttype": "application/json",
}


def document() -> dict[str, Any]:
    """Return the document: one channel for each kind of event, each with its data's schema."""
    channels: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    schemas: dict[str, Any] = {"CloudEventHeaders": _headers()}
    for kind, data in EVENTS.items():
        entity, participle = kind.split(".")
        name = f"{entity}_{participle}"
        schema = data.model_json_schema(ref_template=_REF, mode="serialization")
        schemas |= schema.pop("$defs", {})
        schemas[data.__name__] = schema
        channels[name] = {
            "address": f"wf.pub.{{tenant}}.{entity}.{participle}.{{id}}",
            "parameters": {
                "tenant": {"description": "who may read it"},
                "id": {"description": f"the {entity} it is about"},
            },
            "messages": {name: {"$ref": f"#/components/messages/{name}"}},
        }
        messages[name] = {
            "name": f"{TYPE_PREFIX}{kind}.v1",
            "summary": (data.__doc__ or "").strip(),
            "contentType": "application/json",
            "headers": {"$ref": "#/components/schemas/CloudEventHeaders"},
            "payload": {"$ref": _REF.format(model=data.__name__)},
        }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "WhaleFlux events",
            "version": "1",
            "description": "What happens, as tenants may know it. CloudEvents in binary mode on "
            "NATS; structured JSON by SSE (`/v1/events`) and by the question "
            "`wf.qry.gateway.events.<tenant>`. Fields may be added within a version: expect "
            "fields and words you do not know.",
        },
        "channels": channels,
        "operations": {
            f"receive_{name}": {"action": "receive", "channel": {"$ref": f"#/channels/{name}"}}
            for name in channels
        },
        "components": {"messages": messages, "schemas": schemas},
    }


def _headers() -> dict[str, Any]:
    properties = {name: {"type": "string", "description": text} for name, text in _HEADERS.items()}
    return {"type": "object", "properties": properties, "required": list(_HEADERS)}
