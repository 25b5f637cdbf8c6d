"""Waiting for something to become true, with a deadline."""

import asyncio
from collections.abc import Awaitable, Callable

LOOK_EVERY_S = 0.02


async def eventually(condition: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
    """Return as soon as *condition* holds.

    Raises:
        TimeoutError: It did not hold for *timeout_s*.

    """
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(LOOK_EVERY_S)


async def eventually_says(
    condition: Callable[[], Awaitable[bool]], *, timeout_s: float = 10.0
) -> None:
    """Return as soon as asking *condition* is answered with True.

    Raises:
        TimeoutError: It was not for *timeout_s*.

    """
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(LOOK_EVERY_S)
