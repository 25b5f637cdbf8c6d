"""How a process that holds a stack ends: by a signal, or by one plain error."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

from whaleflux.common.errors import WhalefluxError

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signalled:
    """Whether a signal asked the process to end."""

    def __init__(self) -> None:
        """Nothing has been asked yet."""
        self.number: int | None = None


@contextlib.asynccontextmanager
async def until_signalled() -> AsyncIterator[Signalled]:
    """Run the block; the first signal cancels it and leaves it quietly, later ones are ignored.

    Taking a stack down takes a few seconds; a second Ctrl-C must not leave processes behind.
    """
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    signalled = Signalled()

    def on_signal(number: int) -> None:
        if signalled.number is None and task is not None:
            signalled.number = number
            task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield signalled
    except asyncio.CancelledError:
        if signalled.number is None or task is None:
            raise
        task.uncancel()
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def one_error() -> AsyncIterator[None]:
    """Turn a group of errors into the one that people can act on."""
    try:
        yield
    except BaseExceptionGroup as group:
        known = group.subgroup(WhalefluxError)
        if known is None:
            raise
        raise _first(known) from group


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
