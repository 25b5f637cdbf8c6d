"""Runs flows over a sync HTTP client: retries, streams, pauses."""

import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar, cast

import httpx
from tenacity import Retrying

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


class SyncTransport:
    """One gateway, reached over a pool of connections."""

    def __init__(
        self,
        target: Target,
        *,
        retries: bool = True,
        clock: Clock | None = None,
        pause: Callable[[float], None] | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Prepare the connections; *pause* waits so many seconds."""
        self.url = target.url
        self._http = httpx.Client(transport=transport, **settings(target.url, target.api_key))
        self._retries = retries
        self._clock = clock or SystemClock()
        self._pause = pause or _wait

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def run(self, flow: Flow[T]) -> T:
        """Return the result of *flow*, whatever it emits left aside."""
        steps = self._drive(flow)
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                return cast(T, stop.value)

    def iterate(self, flow: Flow[Any]) -> Iterator[Any]:
        """Iterate over what *flow* emits; nothing is sent before the first item is asked for."""
        yield from self._drive(flow)

    def _drive(self, flow: Flow[T]) -> Generator[Any, None, T]:
        lines = _Lines()
        answer: object = None
        error: WhalefluxError | None = None
        try:
            while True:
                try:
                    step = flow.send(answer) if error is None else flow.throw(error)
                except StopIteration as stop:
                    return cast(T, stop.value)
                answer, error = None, None
                if isinstance(step, Emit):
                    yield step.value
                    continue
                try:
                    answer = self._do(step, lines)
                except WhalefluxError as problem:
                    error = problem
        finally:
            flow.close()
            lines.close()

    def _do(self, step: Step, lines: "_Lines") -> object:
        match step:
            case Call():
                return self._retried(step, lambda: self._send(step))
            case Listen():
                lines.close()
                self._retried(step.call, lambda: lines.open(self._open(step.call)))
                return None
            case NextLine():
                return lines.next()
            case Pause():
                return self._pause(step.seconds)
            case Now():
                return self._clock.boottime_s()
            case Emit():
                return None

    def _retried(self, call: Call, action: Callable[[], T]) -> T:
        return Retrying(sleep=self._pause, **policy(retries=self._retries and call.retried))(action)

    def _send(self, call: Call) -> Reply:
        try:
            if call.file is None:
                response = self._http.request(content=call.body, **arguments(call))
            else:
                with call.file.open("rb") as content:
                    response = self._http.request(content=content, **arguments(call))
        except httpx.TransportError as error:
            raise network_error(error, self.url) from error
        return check(call, read_reply(response))

    def _open(self, call: Call) -> httpx.Response:
        request = self._http.build_request(**{**arguments(call), "timeout": open_timeout(call)})
        try:
            response = self._http.send(request, stream=True)
            if response.status_code != 200:
                try:
                    response.read()
                finally:
                    response.close()
                check(call, read_reply(response))
        except httpx.TransportError as error:
            raise network_error(error, self.url) from error
        return response


class _Lines:
    """A stream of lines that may be open."""

    def __init__(self) -> None:
        self._response: httpx.Response | None = None
        self._lines: Iterator[str] = iter(())

    def open(self, response: httpx.Response) -> None:
        self._response = response
        self._lines = response.iter_lines()

    def next(self) -> str | None:
        try:
            return next(self._lines, None)
        except httpx.TransportError:
            return None

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None
            self._lines = iter(())


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)
