"""Answers HEAD wherever GET does, with the same status and headers and nothing after them."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

OWN = ("/v1/blobs/", "/v1/events")
"""Paths with an answer of their own; a stream of events would never come to its end."""


class Heads:
    """Plain ASGI; stands before the routes."""

    def __init__(self, app: ASGIApp) -> None:
        """Stand before *app*."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope.get("method") != "HEAD" or scope["path"].startswith(OWN):
            await self._app(scope, receive, send)
            return

        async def send_headers(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, send_headers)
