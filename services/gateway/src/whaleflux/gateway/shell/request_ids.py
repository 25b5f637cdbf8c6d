"""Gives every request an id and a trace, without standing between a stream and its reader."""

import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from whaleflux.common.observe import span

ID_LENGTH_MAX = 100


class Identify:
    """Plain ASGI, because the framework's own middleware class buffers what it passes on."""

    def __init__(self, app: ASGIApp) -> None:
        """Stand before *app*."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")[:ID_LENGTH_MAX]
        request_id = given if given.isascii() and given.isprintable() and given else _new()
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        with span(f"{scope['method']} {scope['path']}", headers):
            await self._app(scope, receive, send_with_id)


def _new() -> str:
    return f"req_{secrets.token_hex(8)}"
