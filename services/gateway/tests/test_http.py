"""The HTTP API on real streams, a real Valkey and a real scheduler."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.agent import LogReply, LogRequest
from whaleflux.common.contracts.assignment import blob_file, log_file, log_offset_file
from whaleflux.common.contracts.gateway import KeyCreated, KeyRevoked, TenantCreated
from whaleflux.gateway.shell.keys import secret_hash

pytestmark = pytest.mark.integration


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check that *response* is a problem document and return it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert (body["status"], body["code"]) == (status, code)
    assert body["type"].endswith(code)
    assert body["request_id"] == response.headers["x-request-id"]
    return body


async def test_a_submission_answers_with_the_decided_workload(world: Any) -> None:
    await world.node()
    response = await world.submit(resources={"accelerators": "H100:2"})
    assert response.status_code == 201
    body = response.json()
    assert (body["name"], body["tenant"], body["user"]) == ("j", "default", "admin")
    assert response.headers["location"] == f"/v1/workloads/{body['id']}"
    assert "body_hash" not in body
    assert (await world.http.get(response.headers["location"])).json()["id"] == body["id"]


async def test_the_same_submission_is_answered_again_and_another_body_refused(world: Any) -> None:
    first = await world.submit("key-1")
    again = await world.submit("key-1")
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.headers["idempotent-replay"] == "true"
    assert again.json()["id"] == first.json()["id"]
    body = problem(await world.submit("key-1", run="false"), 422, "idempotency_conflict")
    assert first.json()["id"] in body["detail"]


async def test_twenty_racing_submissions_with_one_key_are_one_workload(world: Any) -> None:
    answers = await asyncio.gather(*(world.submit("race") for _ in range(20)))
    assert {a.status_code for a in answers} <= {200, 201}
    assert len({a.json()["id"] for a in answers}) == 1
    listed = (await world.http.get("/v1/workloads")).json()["items"]
    assert len(listed) == 1


async def test_what_can_never_run_is_refused_with_the_schedulers_reason(world: Any) -> None:
    await world.node()
    response = await world.submit(resources={"accelerators": "B200:1"})
    body = problem(response, 422, "no_such_type")
    assert "it has 8 H100" in body["detail"]


async def test_yaml_is_taken_as_well(world: Any) -> None:
    response = await world.http.post(
        "/v1/workloads",
        content="name: y\nrun: |\n  echo hello\n",
        headers={"content-type": "application/yaml"},
    )
    assert response.status_code == 201


async def test_wrong_bodies_name_their_places(world: Any) -> None:
    body = problem(await world.submit(resourcs={}), 422, "invalid_workload")
    assert body["errors"] == [
        {"pointer": "/resourcs", "detail": "There is no 'resourcs' here. Did you mean 'resources'?"}
    ]
    raw = await world.http.post("/v1/workloads", content=b"{")
    problem(raw, 422, "invalid_body")
    checked = await world.http.post("/v1/validate", json={"name": "x", "run": "y"})
    assert checked.json() == {"valid": True, "name": "x", "phases": ["main"]}


async def test_a_body_is_not_taken_in_beyond_what_a_workload_may_have(world: Any) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 64 << 20:
            sent += 1 << 16
            yield b" " * (1 << 16)

    problem(await world.http.post("/v1/workloads", content=endless()), 413, "too_large")
    assert sent < 2 << 20
    claimed = {"content-length": str(10 << 30)}
    refused = await world.http.post("/v1/validate", content=b"{}", headers=claimed)
    problem(refused, 413, "too_large")


async def test_a_workload_that_grows_beyond_a_message_is_refused(world: Any) -> None:
    short = {"accelerators": ["H"] * 60_000}
    problem(await world.submit("big", resources=short), 413, "too_large")


async def test_a_key_that_was_revoked_elsewhere_is_refused_soon(world: Any) -> None:
    mine = (await world.http.get("/v1/whoami")).json()
    revoked = KeyRevoked(at=world.runtime.clock.now(), key_id=mine["key_id"], tenant=mine["tenant"])
    await world.js.publish(
        subjects.event(revoked.type, revoked.key_id), revoked.model_dump_json().encode()
    )

    async def refused() -> bool:
        return bool((await world.http.get("/v1/whoami")).status_code == 401)

    await world.until(refused)


async def test_strangers_and_expired_secrets_get_nothing(world: Any) -> None:
    for headers in ({"authorization": ""}, {"authorization": "Bearer wf_live_wrong"}):
        response = await world.http.get("/v1/workloads", headers=headers)
        problem(response, 401, "unauthenticated")
        assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("DELETE", "/v1/workloads", 405, "method_not_allowed"),
        ("GET", "/v1/workloads/none", 404, "not_found"),
        ("GET", "/v1/runs/none", 404, "not_found"),
        ("GET", "/v1/workloads?limit=0", 422, "invalid_request"),
        ("GET", "/v1/workloads?limit=100000", 422, "invalid_request"),
        ("GET", "/v1/workloads?cursor=x", 422, "invalid_request"),
        ("GET", "/v1/schema/none.json", 404, "not_found"),
        ("HEAD", "/v1/blobs/short", 422, ""),
    ],
)
async def test_every_error_is_a_problem(
    world: Any, method: str, path: str, status: int, code: str
) -> None:
    response = await world.http.request(method, path)
    if method == "HEAD":
        assert response.status_code == status
        return
    problem(response, status, code)


async def test_an_own_request_id_is_kept_and_a_wild_one_replaced(world: Any) -> None:
    response = await world.http.get("/v1/whoami", headers={"x-request-id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    response = await world.http.get("/v1/whoami", headers={"x-request-id": "a" * 500})
    assert len(response.headers["x-request-id"]) == 100


async def other_tenant(world: Any) -> dict[str, str]:
    """Make a key of another tenant and return its headers."""
    now = world.runtime.clock.now()
    seq = (await world.js.stream_state("EVT_GATEWAY")).last_seq
    events: list[Any] = [
        TenantCreated(at=now, tenant="evil"),
        KeyCreated(
            at=now,
            key_id="key_evil",
            tenant="evil",
            user="eve",
            role="viewer",
            secret_sha256=secret_hash("wf_live_evil"),
        ),
    ]
    for event in events:
        await world.js.publish(
            f"wf.evt.gateway.{event.type.split('.')[1]}.created.x",
            event.model_dump_json().encode(),
            expected_last_seq=seq,
        )
        seq += 1
    return {"authorization": "Bearer wf_live_evil"}


async def test_another_tenant_sees_none_of_it(world: Any) -> None:
    await world.node()
    mine = (await world.submit(resources={"accelerators": "H100:1"})).json()
    evil = await other_tenant(world)
    assert (await world.http.get("/v1/workloads", headers=evil)).json()["items"] == []
    for path in (
        f"/v1/workloads/{mine['id']}",
        "/v1/workloads/j",
        f"/v1/workloads/{mine['id']}/runs",
        f"/v1/workloads/{mine['id']}/logs",
        f"/v1/workloads/{mine['id']}/explain",
        f"/v1/runs/{mine['id']}-main-1",
        f"/v1/runs/{mine['id']}-main-1/explain",
    ):
        problem(await world.http.get(path, headers=evil), 404, "not_found")
    gpus = (await world.http.get("/v1/gpus", headers=evil)).json()["items"]
    assert gpus[0]["state"] == "held" and gpus[0]["run_id"] is None
    nodes = (await world.http.get("/v1/nodes", headers=evil)).json()["items"]
    assert nodes[0]["gpus"][0] | {"run_id": None, "free": False} == nodes[0]["gpus"][0]
    denied = await world.http.post("/v1/workloads", json={"name": "x", "run": "y"}, headers=evil)
    assert "workloads.submit" in problem(denied, 403, "forbidden")["detail"]


async def test_lists_page_through_everything_once(world: Any) -> None:
    for n in range(7):
        await world.submit(name=f"w{n}")
    names: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": 3, **({} if cursor is None else {"cursor": cursor})}
        page = (await world.http.get("/v1/workloads", params=params)).json()
        names += [item["name"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert names == [f"w{n}" for n in reversed(range(7))]
    found = (await world.http.get("/v1/workloads", params={"name": "w3"})).json()["items"]
    assert [item["name"] for item in found] == ["w3"]


async def test_a_name_finds_a_workload_unless_several_have_it(world: Any) -> None:
    one = (await world.submit("a", name="same")).json()
    assert (await world.http.get("/v1/workloads/same")).json()["id"] == one["id"]
    two = (await world.submit("b", name="same")).json()
    body = problem(await world.http.get("/v1/workloads/same"), 409, "ambiguous_name")
    assert one["id"] in body["detail"] and two["id"] in body["detail"]


async def test_a_waiting_workload_explains_itself_and_can_be_cancelled(world: Any) -> None:
    await world.node()
    await world.submit(name="holder", resources={"accelerators": "H100:8"})
    id_ = (await world.submit(name="waits", resources={"accelerators": "H100:4"})).json()["id"]

    async def explained() -> bool:
        answer = (await world.http.get(f"/v1/workloads/{id_}/explain")).json()
        return bool(answer["code"] == "NO_CAPACITY")

    await world.until(explained)
    answer = (await world.http.get(f"/v1/workloads/{id_}/explain")).json()
    assert answer["sentence"] == "Needs 4 H100 on one node. 0 of 8 are free."
    assert answer["funnel"][-1]["gpus"] == 0
    assert (await world.http.post(f"/v1/workloads/{id_}/cancel")).status_code == 202

    async def cancelled() -> bool:
        found = (await world.http.get(f"/v1/workloads/{id_}")).json()
        return bool(found["state"] == "cancelled")

    await world.until(cancelled)


async def test_uploads_are_kept_by_content_and_a_changed_one_is_refused(world: Any) -> None:
    body = b"archive" * 1000
    sha = hashlib.sha256(body).hexdigest()
    assert (await world.http.head(f"/v1/blobs/{sha}")).status_code == 404
    wrong = await world.http.put(f"/v1/blobs/{sha}", content=body + b"!")
    problem(wrong, 422, "wrong_hash")
    assert (await world.http.put(f"/v1/blobs/{sha}", content=body)).json()["bytes"] == len(body)
    assert (await world.http.head(f"/v1/blobs/{sha}")).status_code == 200
    assert (world.store / blob_file(sha)).read_bytes() == body
    assert len(list((world.store / blob_file(sha)).parent.iterdir())) == 1


async def test_a_log_comes_from_its_agent_and_else_from_the_store(world: Any) -> None:
    await world.node()
    id_ = (await world.submit(resources={"accelerators": "H100:1"})).json()["id"]
    run = f"{id_}-main-1"
    path = f"/v1/workloads/{id_}/logs"

    async def there() -> bool:
        return bool((await world.http.get(f"/v1/runs/{run}")).json().get("members"))

    await world.until(there)
    problem(await world.http.get(path), 503, "log_unavailable")

    async def agent(message: Any) -> bytes:
        asked = LogRequest.model_validate_json(message.body)
        return (
            LogReply(found=True, text="x" * 3, next_offset=asked.offset + 3)
            .model_dump_json()
            .encode()
        )

    stop = await world.runtime.bus.answer("wf.qry.agent.h100-0.logs", agent)
    piece = (await world.http.get(path, params={"offset": 5})).json()
    assert (piece["text"], piece["offset"], piece["next_offset"]) == ("xxx", 5, 8)
    await stop()

    tail = world.store / log_file(run, 1, 0)
    tail.parent.mkdir(parents=True)
    tail.write_text("the end\n")
    (world.store / log_offset_file(run, 1, 0)).write_text("1000")
    piece = (await world.http.get(path)).json()
    assert (piece["offset"], piece["text"], piece["ended"]) == (1000, "the end\n", True)
    assert (await world.http.get(path, params={"offset": 1004})).json()["text"] == "end\n"
    problem(await world.http.get(path, params={"rank": 3}), 404, "not_found")
    problem(await world.http.get(path, params={"attempt": 9}), 404, "not_found")
    problem(await world.http.get(path, params={"phase": "none"}), 404, "not_found")


async def followed(world: Any, path: str, **params: Any) -> list[dict[str, Any]]:
    """Follow a log to its end and return the pieces."""
    async with asyncio.timeout(20):
        answer = await world.http.get(path, params={"follow": "true", **params})
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_a_log_is_followed_from_before_its_start_until_its_end(world: Any) -> None:
    await world.node()
    id_ = (await world.submit(resources={"accelerators": "H100:1"})).json()["id"]
    path = f"/v1/workloads/{id_}/logs"
    text = b"one\ntwo\nthree\n"
    asked = 0

    async def there() -> bool:
        return bool((await world.http.get(f"/v1/runs/{id_}-main-1")).json().get("members"))

    await world.until(there)

    async def agent(message: Any) -> bytes:
        nonlocal asked
        asked += 1
        begins = LogRequest.model_validate_json(message.body).offset
        written = min(len(text), 4 * max(asked - 2, 0))
        reply = LogReply(
            found=asked > 1,
            text=text[begins:written].decode(),
            next_offset=written,
            ended=written == len(text),
        )
        return reply.model_dump_json().encode()

    following = asyncio.ensure_future(followed(world, path))
    stop = await world.runtime.bus.answer("wf.qry.agent.h100-0.logs", agent)
    pieces = await following
    assert "".join(piece["text"] for piece in pieces) == text.decode()
    assert [piece["ended"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    resumed = await followed(world, path, offset=8)
    assert "".join(piece["text"] for piece in resumed) == "three\n"
    await stop()
    for wrong in ({"rank": 3}, {"attempt": 9}, {"phase": "none"}):
        answer = await world.http.get(path, params={"follow": "true", **wrong})
        problem(answer, 404, "not_found")


async def test_a_log_that_nobody_has_is_given_up(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whaleflux.gateway.shell.logs.LOG_MISSES_MAX", 1)
    await world.node()
    id_ = (await world.submit(resources={"accelerators": "H100:1"})).json()["id"]

    async def there() -> bool:
        return bool((await world.http.get(f"/v1/runs/{id_}-main-1")).json().get("members"))

    await world.until(there)
    assert await followed(world, f"/v1/workloads/{id_}/logs") == []


async def test_without_a_decision_the_answer_is_202_and_the_workload_is_found_later(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whaleflux.gateway.shell.submission.DECISION_WAIT_S", 0.0)
    response = await world.submit("slow")
    assert response.status_code == 202
    body = response.json()
    assert body["state"] == "undecided"

    async def found() -> bool:
        answer = await world.http.get(f"/v1/workloads/{body['id']}")
        return bool(answer.status_code == 200)

    await world.until(found)


async def test_documents_are_served_without_a_key_and_name_one(world: Any) -> None:
    for path in ("/openapi.json", "/asyncapi.json", "/v1/schema/workload.json", "/healthz"):
        response = await world.http.get(path, headers={"authorization": ""})
        assert response.status_code == 200, path
        assert json.loads(response.content)
