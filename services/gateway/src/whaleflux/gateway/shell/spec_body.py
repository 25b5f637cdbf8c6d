"""Reads a workload out of a request's body, and refuses what is none before it costs much."""

import asyncio
import json
from typing import Any

import yaml
from fastapi import Request
from pydantic import ValidationError

from whaleflux.common.contracts.explain import explain_validation
from whaleflux.common.contracts.workload import WorkloadSpec
from whaleflux.common.errors import Refused
from whaleflux.gateway.shell.problems import BadRequest
from whaleflux.gateway.shell.settings import BODY_BYTES_MAX

DEPTH_MAX = 32
"""A workload nests six deep; deeper ones are built to exhaust whoever follows them."""


async def spec_of(request: Request) -> WorkloadSpec:
    """Return the workload that *request* brings.

    Raises:
        Refused: It is too large, or no workload; as `read_spec`.

    """
    body = await _bounded(request)
    content_type = request.headers.get("content-type", "")
    if is_yaml(content_type):
        # Seconds of work for half a megabyte, which nobody else shall wait for.
        return await asyncio.to_thread(read_spec, body, content_type)
    return read_spec(body, content_type)


async def _bounded(request: Request) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > BODY_BYTES_MAX:
        raise too_large(int(declared))
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise too_large(len(body))
    return bytes(body)


def too_large(size_bytes: int) -> Refused:
    """Return the refusal of a workload of *size_bytes*."""
    return Refused(
        f"A workload may have {BODY_BYTES_MAX // 1024} KiB at most; this one has "
        f"{size_bytes // 1024} or more. Keep files in `workdir`.",
        code="too_large",
    )


def is_yaml(content_type: str) -> bool:
    """Return whether a body of this type is read as YAML."""
    return "yaml" in content_type


def read_spec(body: bytes, content_type: str) -> WorkloadSpec:
    """Return the workload in *body* (JSON, or YAML by its content type).

    Raises:
        BadRequest: It cannot be read, or fields of it are wrong; each is named.

    """
    if len(body) > BODY_BYTES_MAX:
        raise too_large(len(body))
    parsed = _parsed(body, content_type)
    if not isinstance(parsed, dict):
        raise BadRequest("The body must be one workload, as an object.", (), code="invalid_body")
    _check_size(parsed)
    try:
        spec = WorkloadSpec.model_validate(parsed)
    except ValidationError as error:
        problems = explain_validation(error, WorkloadSpec)
        lines = "; ".join(f"{p.pointer.strip('/') or 'workload'}: {p.detail}" for p in problems)
        raise BadRequest(lines, problems, code="invalid_workload") from error
    if spec.workdir is not None and not spec.workdir.startswith("sha256:"):
        raise BadRequest(
            "workdir must be uploaded first: PUT /v1/blobs/<sha256>, then 'sha256:<hex>'. "
            "The command line and the SDK do that.",
            (),
            code="invalid_workload",
        )
    return spec


def _parsed(body: bytes, content_type: str) -> Any:  # noqa: ANN401 - whatever was sent
    try:
        return yaml.safe_load(body) if is_yaml(content_type) else json.loads(body)
    except yaml.MarkedYAMLError as error:
        # Its own text quotes the line, and with it whatever secret stands there.
        mark = error.problem_mark
        place = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        raise _unreadable(f"YAML: {error.problem}{place}") from error
    except yaml.YAMLError as error:
        raise _unreadable("YAML") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise _unreadable(f"JSON: {error.msg} at {place}") from error
    except (ValueError, RecursionError) as error:
        raise _unreadable("YAML" if is_yaml(content_type) else "JSON") from error


def _unreadable(what: str) -> BadRequest:
    return BadRequest(f"The body is not {what}.", (), code="invalid_body")


def _check_size(parsed: object) -> None:
    """Refuse what is small as a text and enormous, or endless, once its aliases are followed."""
    size = 0
    left: list[tuple[object, int]] = [(parsed, 1)]
    while left:
        value, depth = left.pop()
        size += len(value) if isinstance(value, str) else 1
        if depth > DEPTH_MAX:
            raise BadRequest(
                f"The body nests deeper than {DEPTH_MAX} levels; a workload has six.",
                (),
                code="invalid_body",
            )
        if size + len(left) > BODY_BYTES_MAX:
            raise too_large(size + len(left))
        if isinstance(value, dict):
            left += [(part, depth + 1) for pair in value.items() for part in pair]
        elif isinstance(value, list | tuple):
            left += [(part, depth + 1) for part in value]
