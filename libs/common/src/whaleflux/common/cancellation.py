"""A request to stop must not get lost in a library."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heeding_cancellation() -> Iterator[None]:
    """Raise the cancellation that was swallowed in the block.

    nats-py's flush catches CancelledError and returns as if nothing had been asked; redis-py sends
    under `asyncio.wait_for`, which in Python 3.11 returns a result that came together with the
    cancellation. A service would then go on after it was told to stop.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    yield
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
