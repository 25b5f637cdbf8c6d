"""The gateway as processes: stopped, doubled, without its servers, and asked from outside."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from whaleflux.common.accounts import Login, Logins, nats_accounts
from whaleflux.common.errors import Unavailable
from whaleflux.common.testing.eventually import eventually_says
from whaleflux.common.testing.servers import NatsServer, nats_server, valkey_server

pytestmark = pytest.mark.integration

SECRET = "wf_live_test"
KEY = {"authorization": f"Bearer {SECRET}"}
LOGINS = Logins(
    core=Login("core", "c"),
    system=Login("sys", "s"),
    nodes={},
    tenants={"default": Login("tenant-default", "d"), "evil": Login("tenant-evil", "e")},
)
START_S = 20.0
STOP_S = 2.0
SUBSCRIBER = Path(__file__).resolve().parents[2] / "examples/subscriber/subscriber.py"


class Gateways:
    """Servers with accounts, a scheduler, and as many gateways as a test starts."""

    def __init__(self, folder: Path, nats: NatsServer, valkey_url: str, servers: ExitStack) -> None:
        self.nats = nats
        self.valkey = servers
        self._valkey_url = valkey_url
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        (folder / "key").write_text(SECRET)

    def begin(self, service: str, name: str) -> "subprocess.Popen[bytes]":
        """Start a service in a folder called *name*."""
        folder = self._folder / name
        folder.mkdir()
        env = {
            **os.environ,
            "WHALEFLUX_NATS_URL": self.nats.url,
            "WHALEFLUX_NATS_USER": "core",
            "WHALEFLUX_NATS_PASSWORD": "c",
            "WHALEFLUX_VALKEY_URL": self._valkey_url,
            "WHALEFLUX_STATE_DIR": str(folder),
            "WHALEFLUX_STORES": json.dumps({"default": str(self._folder / "store")}),
            "WHALEFLUX_BOOTSTRAP_KEY_FILE": str(self._folder / "key"),
        }
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"whaleflux.{service}"], env=env, stdout=log, stderr=log
            )
        self._processes.append(process)
        return process

    async def gateway(self, name: str) -> "Gateway":
        """Start a gateway and wait until it is well."""
        process = self.begin("gateway", name)
        address = self._folder / name / "gateway.json"

        async def well() -> bool:
            assert process.poll() is None, (self._folder / name / "log").read_text()
            if not address.exists():
                return False
            async with httpx.AsyncClient(base_url=json.loads(address.read_text())["url"]) as http:
                return (await http.get("/healthz")).status_code == 200

        await eventually_says(well, timeout_s=START_S)
        return Gateway(process, json.loads(address.read_text())["url"])

    def end(self) -> None:
        """End whatever still runs."""
        for process in self._processes:
            process.kill()
            process.wait()


class Gateway:
    """One gateway process."""

    def __init__(self, process: "subprocess.Popen[bytes]", url: str) -> None:
        self.process = process
        self.http = httpx.AsyncClient(base_url=url, headers=KEY, timeout=15)

    async def submit(self, key: str) -> httpx.Response:
        """Submit a job that waits: there is no node."""
        body = {"name": key, "run": "true"}
        return await self.http.post("/v1/workloads", json=body, headers={"idempotency-key": key})

    @asynccontextmanager
    async def stream(self, since: int) -> AsyncIterator[AsyncGenerator[int, None]]:
        """Open a stream of events; yield their cursors."""
        async with self.http.stream("GET", "/v1/events", params={"since": since}) as response:

            async def cursors() -> AsyncGenerator[int, None]:
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line[6:])["seq"]

            yield cursors()

    async def stop(self) -> float:
        """Send SIGTERM and return the seconds until the process is gone, with exit code 0."""
        begun_s = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(self.process.wait, 20) == 0
        return time.monotonic() - begun_s


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[Gateways]:
    with nats_server(nats_accounts(LOGINS)) as nats, ExitStack() as valkey:
        found = Gateways(tmp_path, nats, valkey.enter_context(valkey_server()), valkey)
        found.begin("scheduler", "scheduler")
        yield found
        found.end()


async def decided(gateway: Gateway, key: str) -> str:
    """Submit until the scheduler has decided, and return the workload's id."""

    async def there() -> bool:
        return (await gateway.submit(key)).status_code in (200, 201)

    await eventually_says(there, timeout_s=START_S)
    return str((await gateway.submit(key)).json()["id"])


def problem(response: httpx.Response) -> dict[str, Any]:
    """Return the problem that *response* must be."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    body: dict[str, Any] = response.json()
    assert body["request_id"] == response.headers["x-request-id"] != ""
    return body


async def test_it_stops_at_once_although_clients_still_listen(gateways: Gateways) -> None:
    gateway = await gateways.gateway("g")
    async with gateway.stream(0) as first, gateway.stream(0) as second:
        await decided(gateway, "a")
        assert [await anext(first), await anext(second)] == [1, 1]
        took_s = await gateway.stop()
        # However the connection ends, it ends: nobody waits for a server that has gone.
        for stream in (first, second):
            with pytest.raises((httpx.RemoteProtocolError, StopAsyncIteration)):
                while True:
                    await anext(stream)
    assert took_s < STOP_S


async def test_answers_on_a_kept_connection_wait_for_no_delayed_acknowledgement(
    gateways: Gateways,
) -> None:
    gateway = await gateways.gateway("g")
    took_s: list[float] = []
    for _ in range(40):
        begun_s = time.monotonic()
        assert (await gateway.http.get("/v1/whoami")).status_code == 200
        took_s.append(time.monotonic() - begun_s)
    # The kernel delays none of a connection's first acknowledgements, and later ones by 40 ms.
    assert min(took_s[20:]) < 0.03


async def test_of_two_gateways_either_serves_and_one_takes_over_from_the_other(
    gateways: Gateways,
) -> None:
    first = await gateways.gateway("one")
    second = await gateways.gateway("two")
    ids = [await decided(first, "a"), await decided(second, "b")]
    for gateway in (first, second):
        assert [(await gateway.http.get(f"/v1/workloads/{i}")).status_code for i in ids] == [
            200
        ] * 2
    # The same key at the other gateway is the same submission.
    assert (await second.submit("a")).json()["id"] == ids[0]
    async with first.stream(0) as one, second.stream(0) as two:
        told = [[await anext(stream) for _ in range(4)] for stream in (one, two)]
    assert told == [[1, 2, 3, 4]] * 2
    await first.stop()
    await decided(second, "c")
    async with second.stream(4) as rest:
        assert [await anext(rest) for _ in range(2)] == [5, 6]


async def test_without_nats_what_is_known_is_still_shown_and_the_rest_is_a_problem(
    gateways: Gateways,
) -> None:
    gateway = await gateways.gateway("g")
    id_ = await decided(gateway, "a")
    gateways.nats.kill()
    assert (await gateway.http.get(f"/v1/workloads/{id_}")).status_code == 200
    refused = await gateway.submit("b")
    assert (refused.status_code, problem(refused)["code"]) == (503, "disconnected")
    assert int(refused.headers["retry-after"]) >= 1
    gateways.nats.start_again()
    await decided(gateway, "b")
    assert gateway.process.poll() is None


async def test_without_valkey_every_answer_is_a_problem_and_the_process_lives(
    gateways: Gateways,
) -> None:
    gateway = await gateways.gateway("g")
    id_ = await decided(gateway, "a")
    gateways.valkey.close()
    for path in (f"/v1/workloads/{id_}", "/v1/workloads", "/v1/gpus", "/v1/nodes"):
        response = await gateway.http.get(path)
        assert (response.status_code, problem(response)["code"]) == (503, "cache")
    response = await gateway.submit("b")
    assert (response.status_code, problem(response)["code"]) == (503, "cache")
    # Events do not need it, nor does stopping.
    async with gateway.stream(0) as events:
        assert await anext(events) == 1
    assert gateway.process.poll() is None
    assert await gateway.stop() < STOP_S


async def follow(login: Path, *options: str) -> list[dict[str, Any]]:
    """Run the example subscriber to its end and return what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SUBSCRIBER), str(login), *options, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        said, _ = await process.communicate()
    assert process.returncode == 0
    return [json.loads(line) for line in said.splitlines()]


async def test_from_outside_a_tenant_hears_of_its_own_and_another_of_nothing(
    gateways: Gateways, tmp_path: Path
) -> None:
    gateway = await gateways.gateway("g")
    await decided(gateway, "a")
    words = {"url": gateways.nats.url, "user": "tenant-default", "password": "d"}
    (tmp_path / "login").write_text(json.dumps(words))
    cursor = ("--cursor", str(tmp_path / "cursor"), "--count", "1")
    seqs = [(await follow(tmp_path / "login", *cursor))[0]["seq"] for _ in range(2)]
    assert seqs == [1, 2]

    evil = await gateways.nats.connect("tenant-evil", "e", inbox_prefix="_INBOX_evil")
    heard: list[str] = []

    async def hear(message: Any) -> None:
        heard.append(message.subject)

    question = json.dumps({"after": 0, "limit": 100}).encode()
    with pytest.raises(Unavailable):
        await evil.request("wf.qry.gateway.events.default", question, timeout_s=1)
    for subject in ("$JS.API.DIRECT.GET.PUB", "wf.qry.scheduler.health", "wf.qry.gateway.health"):
        with pytest.raises(Unavailable):
            await evil.request(subject, b"{}", timeout_s=1)
    # The server itself answers an account that has no JetStream.
    refused = json.loads((await evil.request("$JS.API.STREAM.INFO.PUB", b"", timeout_s=5)).body)
    assert refused["error"]["err_code"] == 10039
    await evil.subscribe(">", hear)
    await decided(gateway, "b")
    own = await evil.request("wf.qry.gateway.events.evil", question, timeout_s=5)
    assert json.loads(own.body)["events"] == []
    assert [s for s in heard if s.startswith("wf.") and not s.endswith("events.evil")] == []
    await evil.close()


async def test_a_subscriber_that_was_away_too_long_is_told_so_and_goes_on(
    gateways: Gateways, tmp_path: Path
) -> None:
    gateway = await gateways.gateway("g")
    for key in ("a", "b", "c"):
        await decided(gateway, key)
    bus = await gateways.nats.connect("core", "c")
    await bus.request("$JS.API.STREAM.PURGE.PUB", b'{"seq": 4}', timeout_s=5)
    await bus.close()
    await gateway.stop()
    # Another one has no ring that still remembers.
    await gateways.gateway("later")
    words = {"url": gateways.nats.url, "user": "tenant-default", "password": "d"}
    (tmp_path / "login").write_text(json.dumps(words))
    (tmp_path / "cursor").write_text("1")
    said = await follow(tmp_path / "login", "--cursor", str(tmp_path / "cursor"), "--count", "2")
    assert said[0] == {"type": "resync", "why": "too_old", "first_seq": 4}
    assert [event["seq"] for event in said[1:]] == [4, 5]
    assert (tmp_path / "cursor").read_text() == "5"


@pytest.mark.slow
async def test_a_gateway_killed_between_two_events_leaves_neither_gap_nor_repeat(
    gateways: Gateways,
) -> None:
    first = await gateways.gateway("one")
    await decided(first, "a")
    bus = await gateways.nats.connect("core", "c")
    seen = 0
    dead = asyncio.Event()

    async def kill(_message: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == 3:
            first.process.kill()
            dead.set()

    await bus.subscribe("wf.pub.>", kill)
    submitting = asyncio.gather(*(first.submit(f"w{n}") for n in range(6)), return_exceptions=True)
    async with asyncio.timeout(START_S):
        await dead.wait()
    await submitting
    second = await gateways.gateway("two")
    ids = [await decided(second, f"w{n}") for n in range(6)]
    # A killed gateway holds its lease for 15 s; then this one goes on telling.
    told: list[str] = []
    async with (
        asyncio.timeout(60),
        second.http.stream(
            "GET", "/v1/events", params={"since": 0, "types": "workload.submitted,run.queued"}
        ) as response,
    ):
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                event = json.loads(line[6:])
                told.append(f"{event['type']} {event['subject']}")
                if len(told) == 14:
                    break
    assert len(set(told)) == 14
    assert {line.split()[1] for line in told if "submitted" in line} >= set(ids)
    await bus.close()
