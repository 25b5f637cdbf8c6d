"""Errors as RFC 9457 problem documents; the one place that maps ours to HTTP."""

import json
import logging
from collections.abc import Sequence
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from whaleflux.common.contracts.explain import FieldProblem
from whaleflux.common.errors import Refused, Unavailable, WhalefluxError

MEDIA_TYPE = "application/problem+json"
TYPE_ROOT = "https://whaleflux.dev/problems/"
STATUS_OF_CODE = {
    "unauthenticated": 401,
    "forbidden": 403,
    "not_found": 404,
    "ambiguous_name": 409,
    "idempotency_in_flight": 409,
    "idempotency_conflict": 422,
    "too_large": 413,
    "not_acceptable": 406,
    "unsupported_media_type": 415,
}
"""Codes of `Refused`; any other is 422."""

_log = logging.getLogger(__name__)


class ProblemError(BaseModel):
    """One wrong place in a request."""

    pointer: str
    """JSON pointer into the body; empty for the body as a whole."""
    detail: str


class Problem(BaseModel):
    """What went wrong (RFC 9457)."""

    type: str = Field(examples=[f"{TYPE_ROOT}not_found"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["There is no workload 'rft-demo'."])
    code: str = Field(examples=["not_found"])
    instance: str
    request_id: str
    errors: list[ProblemError] = []


class BadRequest(Refused):
    """A body with wrong places in it."""

    def __init__(self, message: str, problems: Sequence[FieldProblem], *, code: str) -> None:
        """Keep the places beside the sentence."""
        super().__init__(message, code=code)
        self.problems = tuple(problems)


def install(app: FastAPI) -> None:
    """Let *app* answer every error with a problem document."""

    async def known(request: Request, error: Exception) -> Response:
        assert isinstance(error, WhalefluxError)
        problems = error.problems if isinstance(error, BadRequest) else ()
        if isinstance(error, Refused):
            status = STATUS_OF_CODE.get(error.code, 422)
            return answer(request, status, error.code, error.message, problems)
        if isinstance(error, Unavailable):
            response = answer(request, 503, error.code, error.message)
            response.headers["retry-after"] = str(max(1, round(error.retry_after_s)))
            return response
        return await unknown(request, error)

    async def framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        phrase = HTTPStatus(error.status_code).phrase
        code = phrase.lower().replace(" ", "_")
        detail = {
            404: f"There is nothing at {request.url.path}; /openapi.json lists what there is.",
            405: f"{request.method} is not possible at {request.url.path}.",
        }.get(error.status_code, str(error.detail))
        response = answer(request, error.status_code, code, detail)
        response.headers.update(error.headers or {})
        return response

    async def parameters(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problems = [
            FieldProblem("/".join(str(p) for p in ("", *e["loc"])), str(e["msg"]))
            for e in error.errors()
        ]
        text = "; ".join(f"{p.pointer.rpartition('/')[2]}: {p.detail}" for p in problems)
        return answer(request, 422, "invalid_request", f"The request is wrong. {text}.", problems)

    async def gone(request: Request, _error: Exception) -> Response:
        # Nobody reads this answer; it is no failure of ours, so no error is logged either.
        return answer(request, 400, "client_gone", "The client left before its body had come.")

    async def unknown(request: Request, error: Exception) -> Response:
        _log.error("request failed", exc_info=error, extra={"path": request.url.path})
        return answer(
            request, 500, "internal", "The gateway failed on this request; its log says more."
        )

    app.add_exception_handler(WhalefluxError, known)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(RequestValidationError, parameters)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, unknown)


def answer(
    request: Request,
    status: int,
    code: str,
    detail: str,
    problems: Sequence[FieldProblem] = (),
) -> Response:
    """Return one problem document."""
    request_id = getattr(request.state, "request_id", "")
    problem = Problem(
        type=f"{TYPE_ROOT}{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        instance=request.url.path,
        request_id=request_id,
        errors=[ProblemError(pointer=p.pointer, detail=p.detail) for p in problems],
    )
    headers = {"x-request-id": request_id}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(
        json.dumps(problem.model_dump()), status, headers=headers, media_type=MEDIA_TYPE
    )
