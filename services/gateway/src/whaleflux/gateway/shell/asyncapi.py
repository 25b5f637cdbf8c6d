"""The public events as an AsyncAPI 3 document."""

from typing import Any

from whaleflux.gateway.core.public import EVENTS, TYPE_PREFIX


def document() -> dict[str, Any]:
    """Return the document: one channel for each kind of event."""
    channels: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    for type_, text in EVENTS.items():
        entity, participle = type_.split(".")
        name = f"{entity}_{participle}"
        channels[name] = {
            "address": f"wf.pub.{{tenant}}.{entity}.{participle}.{{id}}",
            "parameters": {
                "tenant": {"description": "who may read it"},
                "id": {"description": f"the {entity} it is about"},
            },
            "messages": {name: {"$ref": f"#/components/messages/{name}"}},
        }
        messages[name] = {
            "name": f"{TYPE_PREFIX}{type_}.v1",
            "summary": text,
            "contentType": "application/json",
            "headers": {"$ref": "#/components/schemas/CloudEventHeaders"},
            "payload": {"type": "object"},
        }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "WhaleFlux events",
            "version": "1",
            "description": "What happens, as tenants may know it. CloudEvents in binary mode on "
            "NATS; structured JSON by SSE (`/v1/events`) and by the question "
            "`wf.qry.gateway.events.<tenant>`.",
        },
        "channels": channels,
        "operations": {
            f"receive_{name}": {"action": "receive", "channel": {"$ref": f"#/channels/{name}"}}
            for name in channels
        },
        "components": {
            "messages": messages,
            "schemas": {
                "CloudEventHeaders": {
                    "type": "object",
                    "properties": {
                        f"ce-{key}": {"type": "string"}
                        for key in ("id", "type", "source", "subject", "time", "specversion")
                    },
                }
            },
        },
    }
