"""The SDK and the command line against the real gateway and scheduler, on a real bus.

No node is there, so whatever needs a GPU waits; what runs is tested end to end.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from whaleflux.client import ApiProblem, Client, Conflict, NotAllowed, NotFound
from whaleflux.client.cli.main import main
from whaleflux.common.testing import servers

pytestmark = pytest.mark.integration

KEY = "wf_live_for_tests_only"
DEADLINE_S = 30.0
JOB = "name: hello\nresources: {accelerators: H100:1}\nrun: echo hello\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("gateway")
    (root / "key").write_text(KEY)
    (root / "store").mkdir()
    with ExitStack() as stack:
        nats = stack.enter_context(servers.nats_server())
        env = {
            **os.environ,
            "WHALEFLUX_NATS_URL": nats.url,
            "WHALEFLUX_VALKEY_URL": stack.enter_context(servers.valkey_server()),
            "WHALEFLUX_BOOTSTRAP_KEY_FILE": str(root / "key"),
            "WHALEFLUX_STORES": json.dumps({"default": str(root / "store")}),
            "WHALEFLUX_HTTP_PORT": "0",
        }
        for service in ("scheduler", "gateway"):
            stack.enter_context(_service(service, root / service, env))
        url = json.loads(_written(root / "gateway" / "gateway.json"))["url"]
        with Client(url, KEY) as client:
            _until(client.healthy)
        yield url


@contextmanager
def _service(name: str, state: Path, env: dict[str, str]) -> Iterator[None]:
    state.mkdir()
    with (state / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", f"whaleflux.{name}"],
            env={**env, "WHALEFLUX_STATE_DIR": str(state)},
            stdout=log,
            stderr=log,
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _written(file: Path) -> str:
    _until(file.exists)
    return file.read_text()


def _until(happened: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(DEADLINE_S / 0.05)):
        if happened():
            return
        pause.wait(0.05)
    raise AssertionError(f"not within {DEADLINE_S} s")


@pytest.fixture
def client(gateway: str) -> Iterator[Client]:
    with Client(gateway, KEY) as found:
        yield found


def test_the_first_key_may_do_everything(client: Client) -> None:
    identity = client.whoami()
    assert (identity.tenant, identity.role) == ("default", "admin")


def test_a_strange_key_is_refused_with_a_request_id(gateway: str) -> None:
    with Client(gateway, "wf_live_wrong") as client, pytest.raises(NotAllowed) as refused:
        client.whoami()
    assert refused.value.request_id


def test_a_workload_waits_with_a_reason_until_it_is_cancelled(client: Client) -> None:
    workload = client.submit(JOB)
    assert workload.state == "queued"
    _until(lambda: bool(workload.explain().sentence))
    assert [r.phase for r in workload.runs()] == ["main"]
    assert workload.id in {w.id for w in client.workloads(state="queued", name="hello")}
    workload.cancel()
    assert workload.wait(timeout_s=DEADLINE_S).state == "cancelled"
    assert [p.text for p in workload.logs(follow=True) if p.text] == []


def test_an_idempotency_key_is_one_workload_for_ever(client: Client) -> None:
    first = client.submit(JOB, idempotency_key="mine")
    assert client.submit(JOB, idempotency_key="mine").id == first.id
    with pytest.raises(Conflict):
        client.submit(JOB + "priority: 1\n", idempotency_key="mine")
    first.cancel()


def test_what_is_not_there_is_not_found(client: Client) -> None:
    with pytest.raises(NotFound):
        client.workload("nothing")
    with pytest.raises(NotFound):
        client.run("nothing")


def test_a_folder_is_uploaded_once_and_arrives_whole(client: Client, tmp_path: Path) -> None:
    from whaleflux.client.packing import packed

    (tmp_path / "a.py").write_text("print(1)")
    with packed(tmp_path) as archive:
        assert client.upload(archive.path, archive.sha256) is True
        assert client.upload(archive.path, archive.sha256) is False
        with pytest.raises(ApiProblem):
            client.upload(archive.path, "0" * 64)


def test_events_are_read_from_the_beginning(client: Client) -> None:
    workload = client.submit(JOB)
    _until(lambda: workload.id in {e.subject for e in client.events(since=0, follow=False)})
    found = list(client.events(since=0, follow=False))
    assert "io.whaleflux.workload.submitted.v1" in {e.type for e in found}
    sequences = [e.sequence for e in found]
    assert sequences == sorted(set(sequences))
    workload.cancel()


def test_the_command_line_speaks_with_it(
    gateway: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("WHALEFLUX_URL", gateway)
    monkeypatch.setenv("WHALEFLUX_API_KEY", KEY)
    file = tmp_path / "job.yaml"
    file.write_text(JOB + "workdir: .\n")
    assert main(["validate", str(file)]) == 0
    assert main(["submit", str(file), "--dry-run"]) == 0
    capsys.readouterr()
    assert main(["submit", str(file), "-n", "by hand"]) == 0
    id_ = capsys.readouterr().out.strip()
    assert main(["wait", id_, "--timeout", "0.1"]) == 8
    assert main(["submit", str(file), "--set", "resources.accelerators=H100:0"]) == 1
    assert main(["cancel", id_, "--wait"]) == 0
    assert main(["wait", "by hand"]) == 11
    assert main(["logs", "-f", "by hand"]) == 11
    assert main(["get", "nothing"]) == 3
    assert "Request id: req_" in capsys.readouterr().err
    for verb in ("jobs", "nodes", "gpus"):
        assert main([verb, "--json"]) == 0
        json.loads(capsys.readouterr().out)
