"""Answers without an end: events and logs that are followed."""

import asyncio
import logging

from fastapi.responses import StreamingResponse
from starlette.types import Message, Send

from whaleflux.gateway.shell.settings import SLOW_CLIENT_S

_log = logging.getLogger(__name__)


class StreamOut(StreamingResponse):
    """A stream that lets go of a reader who does not read; a cursor lets it come back."""

    async def stream_response(self, send: Send) -> None:
        """Send piece by piece; each must be taken within `SLOW_CLIENT_S`."""

        async def hurried(message: Message) -> None:
            async with asyncio.timeout(SLOW_CLIENT_S):
                await send(message)

        try:
            await super().stream_response(hurried)
        except TimeoutError:
            # Returning without an end makes the server close the connection.
            _log.info("reader dropped, it does not read")
