"""A tiny real HTTP server that speaks the gateway's contract, with faults on demand."""

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

KEY = "wf_test_key"
START_DEADLINE_S = 10.0


@dataclass
class Stub:
    """What the server knows; tests write it and read what was asked."""

    url: str = ""
    workloads: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    gpus: list[dict[str, Any]] = field(default_factory=list)
    logs: dict[tuple[str, int, int], str] = field(default_factory=dict)
    log_ended: set[tuple[str, int, int]] = field(default_factory=set)
    log_begin: dict[tuple[str, int, int], int] = field(default_factory=dict)
    broken_logs: set[tuple[str, int, int]] = field(default_factory=set)
    log_limit: int = 65_536
    events: list[dict[str, Any]] = field(default_factory=list)
    events_a_connection: int | None = None
    explanations: dict[str, dict[str, Any]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    by_key: dict[str, tuple[str, str]] = field(default_factory=dict)
    undecided: int = 0
    failures: list[Response] = field(default_factory=list)
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    on_request: Callable[[str, str], None] | None = None

    def paths(self, method: str) -> list[str]:
        return [path for verb, path, _ in self.asked if verb == method]

    def workload(self, id_: str, **values: Any) -> dict[str, Any]:
        found = {
            "id": id_,
            "name": "train",
            "kind": "job",
            "tenant": "default",
            "project": "default",
            "user": "ada",
            "priority": 0,
            "state": "running",
            "created_at": "2026-01-31T08:00:00+00:00",
            "ended_at": None,
            "outcome": None,
            "reason": None,
            "phases": [{"name": "main", "role": None, "state": "running", "iteration": 1}],
            "loops": [],
            "simulated": True,
            "surprise": {"from": "a newer gateway"},
            **values,
        }
        self.workloads[id_] = found
        return found

    def run(self, workload_id: str, phase: str = "main", iteration: int = 1, **values: Any) -> str:
        id_ = f"{workload_id}-{phase}-{iteration}"
        self.runs[id_] = {
            "id": id_,
            "workload_id": workload_id,
            "phase": phase,
            "iteration": iteration,
            "attempt": 1,
            "role": None,
            "state": "running",
            "gpu_type": "H100",
            "members": [{"rank": 0, "node_id": "n1", "gpus": [0, 1]}],
            "queued_at": "2026-01-31T08:00:00+00:00",
            "started_at": "2026-01-31T08:00:01+00:00",
            "ended_at": None,
            "metrics": {},
            "step": None,
            "progress": None,
            "explanation": None,
            "simulated": True,
            **values,
        }
        return id_


def fleet(stub: Stub) -> None:
    """Give *stub* two simulated nodes, a pipeline under way, and jobs in several states."""
    stub.workload(
        "wl_kx3v7fjq2m5zr6yhw4tbn8cpda",
        name="rft-demo",
        kind="pipeline",
        project="alignment",
        created_at="2026-01-31T07:56:48+00:00",
        phases=[
            {"name": "reward", "role": "reward_training", "needs": [], "state": "succeeded"}
            | {"iteration": 1, "metrics": {"loss": 0.031}},
            {"name": "rollout", "role": "rollout", "needs": ["reward"], "state": "running"}
            | {"iteration": 3, "metrics": {"tokens_per_s": 18250.0, "reward": 0.61}},
            {"name": "update", "role": "policy_update", "needs": ["rollout"], "state": "queued"}
            | {"iteration": 2},
        ],
        loops=[
            {
                "name": "loop",
                "phases": ["rollout", "update"],
                "max": 20,
                "until": "update.reward >= 0.9",
                "iterations": None,
                "reason": None,
            }
        ],
    )
    stub.workload(
        "wl_qd5c2hxm7gkz3v6yrb4tnw8jpa",
        name="lora sweep with a rather long name",
        state="queued",
        user="grace",
        simulated=None,
        created_at="2026-01-31T07:59:18+00:00",
    )
    stub.workload(
        "wl_b7n4wzr2t6ykq3m5vhc8jxdpga",
        name="eval-nightly",
        state="failed",
        outcome="failed",
        reason="attempt 3 of 3 ended with exit code 1",
        created_at="2026-01-30T22:00:00+00:00",
        ended_at="2026-01-30T22:14:05+00:00",
    )
    rollout = stub.run(
        "wl_kx3v7fjq2m5zr6yhw4tbn8cpda",
        "rollout",
        3,
        members=[
            {"rank": 0, "node_id": "h100-1", "gpus": [0, 1], "state": "running"}
            | {"handover_gap_ms": 41.0},
            {"rank": 1, "node_id": "h100-2", "gpus": [0, 1], "state": "running"}
            | {"handover_gap_ms": 38.0},
        ],
        role="rollout",
        progress=0.42,
        step=420,
        metrics={"tokens_per_s": 18250.0, "reward": 0.61},
        why="fastest type that is free",
    )
    stub.run(
        "wl_kx3v7fjq2m5zr6yhw4tbn8cpda",
        "update",
        2,
        attempt=2,
        state="queued",
        gpu_type=None,
        members=[],
        started_at=None,
        simulated=None,
        explanation={
            "code": "NO_CAPACITY",
            "sentence": "Needs 4 H100 on one node; 2 are free there.",
            "funnel": [],
            "starts_if": [],
        },
    )
    for node, memory in (("h100-1", 81_559), ("h100-2", 81_559)):
        stub.nodes.append(
            {
                "id": node,
                "state": "ready" if node == "h100-1" else "lost",
                "reason": None if node == "h100-1" else "silent for 12 s",
                "simulated": True,
                "cpus": 96,
                "memory_mib": 1_031_000,
                "stores": ["default"],
                "gpus": [
                    {"index": i, "type": "H100", "run_id": rollout if i < 2 else None}
                    for i in range(4)
                ],
            }
        )
        stub.gpus += [
            {
                "id": f"{node}/{i:03d}",
                "node_id": node,
                "index": i,
                "uuid": f"GPU-{node}-{i}",
                "type": "H100",
                "memory_mib": memory,
                "state": "held" if i < 2 else "free",
                "simulated": True,
                "run_id": rollout if i < 2 else None,
                "phase": "rollout" if i < 2 else None,
                "utilisation_pct": 93.0 if i < 2 else 0.0,
                "memory_used_mib": 61_240 if i < 2 else None,
                "power_w": 612.4 if i < 2 else None,
                "temperature_c": 64.0,
            }
            for i in range(4)
        ]
    stub.explanations["wl_kx3v7fjq2m5zr6yhw4tbn8cpda"] = {
        "run_id": "wl_kx3v7fjq2m5zr6yhw4tbn8cpda-update-2",
        "phase": "update",
        "iteration": 2,
        "code": "NO_CAPACITY",
        "sentence": "Needs 4 H100 on one node; 4 are free, and the most on one node are 2.",
        "funnel": [
            {"filter": "in the fleet", "gpus": 16},
            {"filter": "type H100", "gpus": 8},
            {"filter": "node ready", "gpus": 4},
            {"filter": "free", "gpus": 2},
            {"filter": "4 on one node", "gpus": 0},
        ],
        "starts_if": ["2 GPUs per node are enough (H100:2)", "H200 is allowed too"],
    }


def problem(status: int, detail: str, code: str, **more: Any) -> JSONResponse:
    body = {
        "type": f"https://whaleflux.dev/problems/{code}",
        "title": "Problem",
        "status": status,
        "detail": detail,
        "code": code,
        "request_id": "req-7",
        **more,
    }
    return JSONResponse(body, status, media_type="application/problem+json")


def page(items: list[Any], request: Request) -> dict[str, Any]:
    begin = int(request.query_params.get("cursor", 0))
    limit = int(request.query_params.get("limit", 50))
    end = begin + limit
    return {"items": items[begin:end], "next_cursor": str(end) if end < len(items) else None}


def build(stub: Stub) -> FastAPI:  # noqa: C901 - one small function for each path
    app = FastAPI()

    def find(id_: str) -> dict[str, Any] | None:
        named = [w for w in stub.workloads.values() if w["name"] == id_]
        return stub.workloads.get(id_) or (named[0] if len(named) == 1 else None)

    @app.middleware("http")
    async def note(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        path = request.url.path
        stub.asked.append((request.method, path, dict(request.query_params)))
        stub.headers.append(dict(request.headers))
        if stub.on_request is not None:
            stub.on_request(request.method, path)
        if stub.failures:
            return stub.failures.pop(0)
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return problem(401, "This API key is not known here.", "unauthenticated")
        return await go_on(request)

    @app.post("/v1/workloads")
    async def submit(request: Request) -> Response:
        raw = await request.body()
        key = request.headers["idempotency-key"]
        body = json.loads(raw)
        hashed = hashlib.sha256(raw).hexdigest()
        known = stub.by_key.get(key)
        if known is not None and known[1] != hashed:
            return problem(422, "This Idempotency-Key was used.", "idempotency_conflict")
        if body["name"] == "refused":
            places = [{"pointer": "/phases/0/run", "detail": "No good."}]
            return problem(422, "It is wrong.", "invalid_workload", errors=places)
        id_ = known[0] if known else f"wl_{len(stub.workloads):026d}"
        stub.by_key[key] = (id_, hashed)
        if stub.undecided:
            return JSONResponse({"state": "undecided", "id": id_}, 202)
        found = stub.workloads.get(id_) or stub.workload(
            id_, name=body["name"], kind=body["kind"], state="queued", spec=body
        )
        return JSONResponse(found, 200 if known else 201)

    @app.post("/v1/validate")
    async def validate(request: Request) -> Response:
        if json.loads(await request.body())["name"] == "refused":
            return problem(422, "It is wrong.", "invalid_workload")
        return JSONResponse({"valid": True})

    @app.get("/v1/workloads")
    async def workloads(request: Request) -> dict[str, Any]:
        wanted = {k: v for k, v in request.query_params.items() if k in ("state", "kind", "name")}
        found = [w for w in stub.workloads.values() if all(w[k] == v for k, v in wanted.items())]
        return page(found, request)

    @app.get("/v1/workloads/{id_}")
    async def workload(id_: str) -> Response:
        if stub.undecided > 0:
            stub.undecided -= 1
            if stub.undecided == 0:
                stub.workload(id_, state="queued")
        found = find(id_)
        if found is None:
            return problem(404, f"There is no workload '{id_}'.", "not_found")
        return JSONResponse(found)

    @app.get("/v1/workloads/{id_}/runs")
    async def runs(id_: str, request: Request) -> dict[str, Any]:
        found = find(id_) or {"id": id_}
        return page([r for r in stub.runs.values() if r["workload_id"] == found["id"]], request)

    @app.get("/v1/runs/{id_}")
    async def run(id_: str) -> Response:
        found = stub.runs.get(id_)
        return JSONResponse(found) if found else problem(404, f"No run '{id_}'.", "not_found")

    @app.post("/v1/workloads/{id_}/cancel")
    async def cancel(id_: str) -> Response:
        found = find(id_)
        if found is None:
            return problem(404, f"There is no workload '{id_}'.", "not_found")
        found["state"] = "cancelling"
        return JSONResponse(found, 202)

    @app.get("/v1/workloads/{id_}/explain")
    @app.get("/v1/runs/{id_}/explain")
    async def explain(id_: str) -> Response:
        found = stub.explanations.get((find(id_) or {"id": id_})["id"])
        return JSONResponse(found) if found else problem(404, f"No '{id_}'.", "not_found")

    @app.get("/v1/workloads/{id_}/logs")
    async def logs(
        id_: str, phase: str, iteration: int, attempt: int, rank: int, offset: int
    ) -> Any:
        key = (f"{id_}-{phase}-{iteration}", attempt, rank)
        if key in stub.broken_logs:
            return problem(503, "The agent of n1 does not answer.", "log_unavailable")
        if key not in stub.logs:
            return {"found": False, "text": "", "next_offset": 0, "ended": False}
        whole = stub.logs[key].encode()
        begin = max(offset, stub.log_begin.get(key, 0))
        piece = whole[begin : begin + stub.log_limit]
        end = begin + len(piece)
        return {
            "found": True,
            "text": piece.decode(),
            "offset": begin,
            "next_offset": end,
            "ended": key in stub.log_ended and end == len(whole),
        }

    @app.get("/v1/nodes")
    async def nodes(request: Request) -> dict[str, Any]:
        return page(stub.nodes, request)

    @app.get("/v1/gpus")
    async def gpus(request: Request) -> dict[str, Any]:
        return page(stub.gpus, request)

    @app.get("/v1/events")
    async def events(request: Request) -> Response:
        since = int(request.headers.get("last-event-id", request.query_params.get("since", 0)))
        found = [e for e in stub.events if e["seq"] > since][: stub.events_a_connection]

        async def stream() -> AsyncIterator[str]:
            yield ": hello\n\nretry: 100\n\n"
            for event in found:
                body = json.dumps({k: v for k, v in event.items() if k != "seq"})
                yield f"id: {event['seq']}\nevent: {event['type']}\ndata: {body}\n\n"
            if stub.events_a_connection is None:
                await asyncio.sleep(60)

        return StreamingResponse(stream(), media_type="text/event-stream")

    @app.head("/v1/blobs/{sha}")
    async def blob_there(sha: str) -> Response:
        return Response(status_code=200 if sha in stub.blobs else 404)

    @app.put("/v1/blobs/{sha}")
    async def blob_put(sha: str, request: Request) -> Response:
        stub.blobs[sha] = await request.body()
        return Response(status_code=201)

    @app.get("/v1/whoami")
    async def whoami() -> dict[str, Any]:
        return {"tenant": "default", "user": "ada", "role": "admin"}

    @app.get("/healthz")
    async def healthz() -> dict[str, Any]:
        return {"ok": True}

    return app


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.up.set()


@pytest.fixture(scope="session")
def _server() -> Iterator[tuple[list[Stub], str]]:
    current: list[Stub] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await _apps(current[-1])(scope, receive, send)

    cache: dict[int, FastAPI] = {}

    def _apps(stub: Stub) -> FastAPI:
        return cache.setdefault(id(stub), build(stub))

    server = _Server(
        uvicorn.Config(
            app,
            host="127.0.0.1",
            port=0,
            lifespan="off",
            log_level="warning",
            timeout_graceful_shutdown=1,
        )
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert server.up.wait(START_DEADLINE_S)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield current, f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(START_DEADLINE_S)


@pytest.fixture
def busy(stub: Stub) -> Stub:
    """A stub with a fleet and work on it."""
    fleet(stub)
    return stub


@pytest.fixture
def stub(
    _server: tuple[list[Stub], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> Iterator[Stub]:
    current, url = _server
    found = Stub(url=url)
    current.append(found)
    monkeypatch.setenv("WHALEFLUX_URL", url)
    monkeypatch.setenv("WHALEFLUX_API_KEY", KEY)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("WHALEFLUX_CONTEXT", raising=False)
    yield found
    assert current.pop() is found
