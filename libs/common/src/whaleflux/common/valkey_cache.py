"""What *is*, in Valkey: views and live figures that can be rebuilt; wraps its client."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, cast

import redis.asyncio as redis
from redis.exceptions import RedisError, WatchError

from whaleflux.common.cancellation import heeding_cancellation
from whaleflux.common.errors import Unavailable
from whaleflux.common.log import Conflict

CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Op:
    """One write; a list of them is applied in one round trip, all or nothing."""

    verb: Literal["set", "delete", "hset", "hdel", "zadd", "zrem", "lpush_trim", "expire"]
    key: str
    value: Any = None
    limit: float = 0.0
    """Seconds to live (`set`, `expire`), score (`zadd`) or entries kept (`lpush_trim`)."""


Ops: TypeAlias = Sequence[Op]


class Cache(Protocol):
    """Disposable memory that several processes see."""

    async def apply(self, ops: Ops, *, only_if: Mapping[str, bytes | None] | None = None) -> None:
        """Do all of *ops* or none.

        Raises:
            Conflict: A key does not hold what *only_if* says (None: nothing); none was done.

        """
        ...

    async def get(self, key: str) -> bytes | None:
        """Return the value of *key*."""
        ...

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of *keys*, in order."""
        ...

    async def hash_of(self, key: str) -> Mapping[str, bytes]:
        """Return the fields of a hash."""
        ...

    async def range_by_score(
        self, key: str, *, below: float | None, limit: int
    ) -> list[tuple[str, float]]:
        """Return members with a score below *below*, highest first, at most *limit*."""
        ...

    async def list_of(self, key: str) -> list[bytes]:
        """Return a list, newest first."""
        ...

    async def delete_prefix(self, prefix: str) -> None:
        """Forget every key that starts with *prefix*."""
        ...


class ValkeyCache:
    """Implements `Cache`."""

    def __init__(self, client: "redis.Redis") -> None:
        """Wrap a client; use `connect`."""
        self._client = client

    @classmethod
    async def connect(cls, url: str) -> "ValkeyCache":
        """Return a cache at *url* (`redis://…` or `unix:///path`).

        Raises:
            Unavailable: Nothing answers there.

        """
        client: redis.Redis = redis.from_url(
            url, socket_connect_timeout=CONNECT_TIMEOUT_S, socket_timeout=ANSWER_TIMEOUT_S
        )
        cache = cls(client)
        async with _translated():
            await cast(Any, client.ping())
        return cache

    async def apply(self, ops: Ops, *, only_if: Mapping[str, bytes | None] | None = None) -> None:
        """Do all of *ops* or none.

        Raises:
            Conflict: A key does not hold what *only_if* says (None: nothing); none was done.

        """
        if not ops:
            return
        async with _translated(), self._client.pipeline(transaction=True) as pipe:
            if only_if:
                await pipe.watch(*only_if)
                if await cast(Any, pipe.mget(list(only_if))) != list(only_if.values()):
                    raise Conflict("a guarded key holds something else", code="conflict")
                cast(Any, pipe).multi()
            for op in ops:
                _queue(pipe, op)
            try:
                await pipe.execute()
            except WatchError as error:
                raise Conflict("a guarded key was just changed", code="conflict") from error

    async def get(self, key: str) -> bytes | None:
        """Return the value of *key*."""
        async with _translated():
            return cast(bytes | None, await self._client.get(key))

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of *keys*, in order."""
        if not keys:
            return []
        async with _translated():
            return cast(list[bytes | None], await self._client.mget(list(keys)))

    async def hash_of(self, key: str) -> Mapping[str, bytes]:
        """Return the fields of a hash."""
        async with _translated():
            found = await cast(Any, self._client.hgetall(key))
        return {name.decode(): value for name, value in found.items()}

    async def range_by_score(
        self, key: str, *, below: float | None, limit: int
    ) -> list[tuple[str, float]]:
        """Return members with a score below *below*, highest first, at most *limit*."""
        top = "+inf" if below is None else f"({below!r}"
        async with _translated():
            found: Any = await self._client.zrevrangebyscore(
                key, top, "-inf", start=0, num=limit, withscores=True
            )
        return [(name.decode(), float(score)) for name, score in found]

    async def list_of(self, key: str) -> list[bytes]:
        """Return a list, newest first."""
        async with _translated():
            return cast(list[bytes], await cast(Any, self._client.lrange(key, 0, -1)))

    async def delete_prefix(self, prefix: str) -> None:
        """Forget every key that starts with *prefix*."""
        async with _translated():
            keys = [key async for key in self._client.scan_iter(match=f"{prefix}*", count=1000)]
            if keys:
                await self._client.delete(*keys)

    async def close(self) -> None:
        """Give the connections back."""
        await self._client.aclose()


def _queue(pipe: Any, op: Op) -> None:  # noqa: ANN401 - the client has no type for a pipeline
    match op.verb:
        case "set":
            pipe.set(op.key, op.value, px=int(op.limit * 1000) or None)
        case "delete":
            pipe.delete(op.key)
        case "hset":
            pipe.hset(op.key, mapping=dict(op.value))
        case "hdel":
            pipe.hdel(op.key, *op.value)
        case "zadd":
            pipe.zadd(op.key, {op.value: op.limit})
        case "zrem":
            pipe.zrem(op.key, op.value)
        case "lpush_trim":
            pipe.lpush(op.key, op.value)
            pipe.ltrim(op.key, 0, int(op.limit) - 1)
        case "expire":
            pipe.pexpire(op.key, int(op.limit * 1000))


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    try:
        with heeding_cancellation():
            yield
    except (RedisError, OSError) as error:
        raise Unavailable(f"Valkey does not answer: {error}", code="cache") from error
