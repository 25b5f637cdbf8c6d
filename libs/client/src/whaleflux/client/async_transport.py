"""Runs flows over an async HTTP client: retries, streams, pauses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
from tenacity import AsyncRetrying

from whaleflux.client.contexts import Target
from whaleflux.client.exchange import (
    arguments,
    network_error,
    open_timeout,
    read_reply,
    settings,
)
from whaleflux.client.retry import policy
from whaleflux.client.wire import (
    Call,
    Emit,
    Flow,
    Listen,
    NextLine,
    Now,
    Pause,
    Reply,
    Step,
    check,
)
from whaleflux.common.clock import Clock, SystemClock
from whaleflux.common.errors import WhalefluxError

T = TypeVar("T")
CHUNK_BYTES = 262_144


class AsyncTransport:
    """One gateway, reached over a pool of connections."""

    def __init__(
        self,
        target: Target,
        *,
        retries: bool = True,
        clock: Clock | None = None,
        pause: Callable[[float], Awaitable[None]] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Prepare the connections; *pause* waits so many seconds."""
        self.url = target.url
        self._http = httpx.AsyncClient(transport=transport, **settings(target.url, target.api_key))
        self._retries = retries
        self._clock = clock or SystemClock()
        self._pause = pause or asyncio.sleep

    async def close(self) -> None:
        """Give the connections back."""
        await self._http.aclose()

    async def run(self, flow: Flow[T]) -> T:
        """Return the result of *flow*, whatever it emits left aside."""
        driver = _Driver(flow)
        async for _ in self._drive(driver):
            pass
        return cast(T, driver.result)

    def iterate(self, flow: Flow[Any]) -> AsyncIterator[Any]:
        """Iterate over what *flow* emits; nothing is sent before the first item is asked for."""
        return self._drive(_Driver(flow))

    async def _drive(self, driver: "_Driver") -> AsyncIterator[Any]:
        lines = _Lines()
        answer: object = None
        error: WhalefluxError | None = None
        try:
            while (step := driver.advance(answer, error)) is not None:
                answer, error = None, None
                if isinstance(step, Emit):
                    yield step.value
                    continue
                try:
                    answer = await self._do(step, lines)
                except WhalefluxError as problem:
                    error = problem
        finally:
            driver.flow.close()
            await lines.close()

    async def _do(self, step: Step, lines: "_Lines") -> object:
        match step:
            case Call():
                return await self._retried(step, lambda: self._send(step))
            case Listen():
                await lines.close()
                lines.open(await self._retried(step.call, lambda: self._open(step.call)))
                return None
            case NextLine():
                return await lines.next()
            case Pause():
                await self._pause(step.seconds)
                return None
            case Now():
                return self._clock.boottime_s()
            case Emit():
                return None

    async def _retried(self, call: Call, action: Callable[[], Awaitable[T]]) -> T:
        retrying = AsyncRetrying(
            sleep=self._pause, **policy(retries=self._retries and call.retried)
        )

        async def attempt() -> T:
            return await action()

        # tenacity awaits only what it can see to be a coroutine function.
        return await retrying(attempt)

    async def _send(self, call: Call) -> Reply:
        content = call.body if call.file is None else _chunks(call.file)
        try:
            response = await self._http.request(content=content, **arguments(call))
        except httpx.TransportError as error:
            raise network_error(error, self.url) from error
        return check(call, read_reply(response))

    async def _open(self, call: Call) -> httpx.Response:
        request = self._http.build_request(**{**arguments(call), "timeout": open_timeout(call)})
        try:
            response = await self._http.send(request, stream=True)
            if response.status_code != 200:
                try:
                    await response.aread()
                finally:
                    await response.aclose()
                check(call, read_reply(response))
        except httpx.TransportError as error:
            raise network_error(error, self.url) from error
        return response


class _Driver:
    """A flow under way, and its result at the end."""

    def __init__(self, flow: Flow[Any]) -> None:
        self.flow = flow
        self.result: Any = None

    def advance(self, answer: object, error: WhalefluxError | None) -> Step | None:
        """Hand the last step's outcome in; return the next step, or None at the end."""
        try:
            return self.flow.send(answer) if error is None else self.flow.throw(error)
        except StopIteration as stop:
            self.result = stop.value
            return None


class _Lines:
    """A stream of lines that may be open."""

    def __init__(self) -> None:
        self._response: httpx.Response | None = None
        self._lines: AsyncIterator[str] | None = None

    def open(self, response: httpx.Response) -> None:
        self._response = response
        self._lines = response.aiter_lines()

    async def next(self) -> str | None:
        if self._lines is None:
            return None
        try:
            return await anext(self._lines, None)
        except httpx.TransportError:
            return None

    async def close(self) -> None:
        response, self._response, self._lines = self._response, None, None
        if response is not None:
            await response.aclose()


async def _chunks(file: Path) -> AsyncIterator[bytes]:
    with file.open("rb") as content:
        while chunk := await asyncio.to_thread(content.read, CHUNK_BYTES):
            yield chunk
