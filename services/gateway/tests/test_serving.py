"""What holds for every request: HEAD, limits, failures of ours, readers who leave."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect

from whaleflux.gateway.shell.http_api import build_app
from whaleflux.gateway.shell.routes_events import _frames
from whaleflux.gateway.shell.settings import BLOB_BYTES_MAX, BODY_BYTES_MAX

pytestmark = pytest.mark.integration


async def test_head_answers_as_get_does_without_a_body(world: Any) -> None:
    id_ = (await world.submit()).json()["id"]
    for path in (f"/v1/workloads/{id_}", "/v1/workloads", "/v1/whoami", "/healthz", "/v1/none"):
        got, head = await world.http.get(path), await world.http.head(path)
        assert (head.status_code, head.content) == (got.status_code, b""), path
        assert head.headers["content-type"] == got.headers["content-type"]
        assert head.headers["x-request-id"]
    assert (await world.http.head("/v1/validate")).status_code == 405


async def test_head_on_the_stream_of_events_does_not_hang(world: Any) -> None:
    async with asyncio.timeout(5):
        assert (await world.http.head("/v1/events")).status_code == 405


async def test_a_body_that_is_too_large_is_a_problem(world: Any) -> None:
    response = await world.http.post("/v1/workloads", content=b" " * (BODY_BYTES_MAX + 1))
    assert (response.status_code, response.json()["code"]) == (413, "too_large")


async def test_an_upload_that_is_too_large_is_refused_and_leaves_nothing(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whaleflux.gateway.shell.blobs.BLOB_BYTES_MAX", 1_000)
    assert BLOB_BYTES_MAX > 1_000
    sha = hashlib.sha256(b"x").hexdigest()
    response = await world.http.put(f"/v1/blobs/{sha}", content=b"x" * 1_001)
    assert (response.status_code, response.json()["code"]) == (413, "too_large")
    assert [p for p in world.store.rglob("*") if p.is_file()] == []


async def test_an_upload_that_breaks_off_leaves_nothing(world: Any) -> None:
    async def half() -> AsyncIterator[bytes]:
        yield b"half"
        raise ClientDisconnect

    sha = hashlib.sha256(b"whole").hexdigest()
    with pytest.raises(ClientDisconnect):
        await world.parts.blobs.put(sha, half())
    assert not await world.parts.blobs.exists(sha)
    assert [p for p in world.store.rglob("*") if p.is_file()] == []


async def test_a_client_that_leaves_while_it_uploads_is_no_failure_of_ours(
    world: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Leaving(httpx.ASGITransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            async def receive() -> dict[str, Any]:
                return {"type": "http.disconnect"}

            async def app(scope: Any, _receive: Any, send: Any) -> None:
                await inner(scope, receive, send)

            inner, self.app = self.app, app
            return await super().handle_async_request(request)

    app = build_app(world.parts, world.runtime.health.report)
    sha = hashlib.sha256(b"x").hexdigest()
    async with httpx.AsyncClient(
        transport=Leaving(app), base_url="http://gateway", headers=dict(world.http.headers)
    ) as http:
        response = await http.put(f"/v1/blobs/{sha}", content=b"x")
    assert response.json()["code"] == "client_gone"
    assert "request failed" not in caplog.text


async def test_a_failure_of_ours_is_a_problem_that_gives_nothing_away(
    world: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await world.parts.views._cache._client.set("view:run:broken", b"{secret")
    response = await world.http.get("/v1/runs/broken", headers={"x-request-id": "mine"})
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert (body["code"], body["request_id"]) == ("internal", "mine")
    assert response.headers["x-request-id"] == "mine"
    assert "secret" not in response.text
    assert "request failed" in caplog.text


async def test_readers_who_leave_leave_no_task_behind(world: Any) -> None:
    await world.submit()
    feed = world.parts.feed
    before = asyncio.all_tasks()
    streams = [_frames(feed, "default", since, ()) for since in range(20)]
    for stream in streams:
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        await stream.aclose()
    assert {t for t in asyncio.all_tasks() - before if not t.done()} == set()


async def test_runs_page_through_everything_once(world: Any) -> None:
    phases = [{"name": f"p{n}", "run": "true"} for n in range(5)]
    body = {"kind": "pipeline", "name": "pipe", "phases": phases}
    response = await world.http.post("/v1/workloads", json=body)
    id_ = response.json()["id"]

    async def all_queued() -> bool:
        return len((await world.http.get(f"/v1/workloads/{id_}")).json()["runs"]) == 5

    await world.until(all_queued)
    seen: list[str] = []
    cursor: str | None = None
    while cursor is not None or not seen:
        params = {"limit": 2, **({} if cursor is None else {"cursor": cursor})}
        page = (await world.http.get(f"/v1/workloads/{id_}/runs", params=params)).json()
        seen += [run["phase"] for run in page["items"]]
        cursor = page["next_cursor"]
    assert sorted(seen) == [f"p{n}" for n in range(5)]


@pytest.mark.parametrize(("path", "by"), [("/v1/nodes", "id"), ("/v1/gpus", "id")])
async def test_the_fleet_pages_through_everything_once(world: Any, path: str, by: str) -> None:
    for n in range(3):
        await world.node(f"h100-{n}", gpus=2)
    whole = [item[by] for item in (await world.http.get(path)).json()["items"]]
    seen: list[str] = []
    cursor: str | None = None
    while cursor is not None or not seen:
        params = {"limit": 2, **({} if cursor is None else {"cursor": cursor})}
        page = (await world.http.get(path, params=params)).json()
        seen += [item[by] for item in page["items"]]
        cursor = page["next_cursor"]
    assert seen == whole
    assert len(seen) == len(set(seen)) >= 3


@pytest.mark.parametrize("limit", [2, 3, 4, 6])
async def test_filtered_lists_find_each_match_once_and_end_without_an_empty_page(
    world: Any, limit: int
) -> None:
    names = ["same", "other"] * 6
    ids = [(await world.submit(f"k{n}", name=name)).json()["id"] for n, name in enumerate(names)]
    for wanted in ({"name": "same"}, {"name": "same", "kind": "job"}, {"kind": "job"}, {}):
        seen: list[str] = []
        cursor: str | None = None
        while True:
            params = {**wanted, "limit": limit, **({} if cursor is None else {"cursor": cursor})}
            page = (await world.http.get("/v1/workloads", params=params)).json()
            assert page["items"]
            seen += [item["id"] for item in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        expected = [
            i for i, n in zip(ids, names, strict=True) if n == "same" or not wanted.get("name")
        ]
        assert seen == expected[::-1]
