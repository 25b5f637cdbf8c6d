"""The cache: one test class, two worlds."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from whaleflux.common.errors import Unavailable
from whaleflux.common.log import Conflict
from whaleflux.common.testing.memory import MemoryCache
from whaleflux.common.valkey_cache import Cache, Op, ValkeyCache


class CacheContract:
    async def test_values_are_set_read_and_deleted(self, cache: Cache) -> None:
        await cache.apply([Op("set", "t:a", "1"), Op("set", "t:b", b"2")])
        assert await cache.get_many(["t:a", "t:c", "t:b"]) == [b"1", None, b"2"]
        await cache.apply([Op("delete", "t:a")])
        assert await cache.get("t:a") is None

    async def test_hashes_keep_fields_apart(self, cache: Cache) -> None:
        await cache.apply([Op("hset", "t:h", {"x": "1", "y": "2"}), Op("hdel", "t:h", ["x"])])
        assert await cache.hash_of("t:h") == {"y": b"2"}
        assert await cache.hash_of("t:none") == {}

    async def test_ranges_come_highest_first_and_page_by_score(self, cache: Cache) -> None:
        await cache.apply([Op("zadd", "t:z", f"m{n}", float(n)) for n in range(5)])
        first = await cache.range_by_score("t:z", below=None, limit=2)
        assert first == [("m4", 4.0), ("m3", 3.0)]
        assert await cache.range_by_score("t:z", below=3.0, limit=9) == [
            ("m2", 2.0),
            ("m1", 1.0),
            ("m0", 0.0),
        ]
        await cache.apply([Op("zrem", "t:z", "m4")])
        assert (await cache.range_by_score("t:z", below=None, limit=1))[0][0] == "m3"

    async def test_lists_keep_the_newest(self, cache: Cache) -> None:
        await cache.apply([Op("lpush_trim", "t:l", str(n), 3) for n in range(5)])
        assert await cache.list_of("t:l") == [b"4", b"3", b"2"]

    async def test_a_prefix_is_forgotten_and_nothing_else(self, cache: Cache) -> None:
        await cache.apply([Op("set", "t:p:1", "x"), Op("set", "t:q:1", "y")])
        await cache.delete_prefix("t:p:")
        assert await cache.get_many(["t:p:1", "t:q:1"]) == [None, b"y"]

    async def test_a_guard_that_does_not_hold_lets_nothing_be_done(self, cache: Cache) -> None:
        await cache.apply([Op("delete", "t:g")])
        await cache.apply([Op("set", "t:g", "1")], only_if={"t:g": None})
        for wrong in (None, b"2"):
            with pytest.raises(Conflict):
                await cache.apply(
                    [Op("set", "t:other", "x"), Op("set", "t:g", "3")], only_if={"t:g": wrong}
                )
        assert await cache.get_many(["t:g", "t:other"]) == [b"1", None]
        await cache.apply([Op("set", "t:g", "2")], only_if={"t:g": b"1"})
        assert await cache.get("t:g") == b"2"

    async def test_of_many_who_count_up_under_guard_none_is_lost(self, cache: Cache) -> None:
        await cache.apply([Op("set", "t:n", "0")])

        async def count_up() -> None:
            while True:
                stands = await cache.get("t:n")
                assert stands is not None
                try:
                    await cache.apply(
                        [Op("set", "t:n", str(int(stands) + 1))], only_if={"t:n": stands}
                    )
                except Conflict:
                    continue
                return

        await asyncio.gather(*(count_up() for _ in range(10)))
        assert await cache.get("t:n") == b"10"

    async def test_nothing_to_do_is_done(self, cache: Cache) -> None:
        await cache.apply([])
        assert await cache.get_many([]) == []


class TestMemoryCache(CacheContract):
    @pytest.fixture
    def cache(self) -> Cache:
        return MemoryCache()


@pytest.mark.integration
class TestValkeyCache(CacheContract):
    @pytest.fixture
    async def cache(self, valkey_server: str) -> AsyncIterator[Cache]:
        cache = await ValkeyCache.connect(valkey_server)
        await cache.delete_prefix("t:")
        yield cache
        await cache.close()


@pytest.mark.integration
async def test_who_is_told_to_stop_while_asking_stops(valkey_server: str) -> None:
    """The client may return an answer in place of the cancellation that came with it."""
    cache = await ValkeyCache.connect(valkey_server)

    async def ask_for_ever() -> None:
        while True:
            await cache.apply([Op("set", "t:stop", "x")])
            await cache.get("t:stop")

    for ticks in range(200):
        task = asyncio.ensure_future(ask_for_ever())
        for _ in range(ticks % 23):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=5)
        assert done and task.cancelled()
    await cache.close()


async def test_a_missing_server_is_said_so() -> None:
    with pytest.raises(Unavailable, match="Valkey does not answer"):
        await ValkeyCache.connect("unix:///nonexistent/socket")
