"""The whole product comes up on a bare machine, once, and goes down without a trace."""

import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whaleflux.client import Client
from whaleflux.local.processes import ProcessRecord, is_alive, of_state, read_records

pytestmark = pytest.mark.e2e
FLEET = "1xH100x8,1xA100x8"


def up(home: Any, *more: str) -> Any:
    return home.verb("up", "--state", str(home.state), "--nodes", FLEET, *more)


def named(home: Any, name: str) -> ProcessRecord:
    return next(r for r in read_records(home.state / "processes.json") if r.name == name)


def client(home: Any) -> Client:
    body = json.loads((home.root / "config/whaleflux/contexts.json").read_text())
    local = body["contexts"][body["current"]]
    return Client(local["url"], Path(local["api_key_file"]).read_text().strip())


def test_up_twice_and_down_twice(home: Any) -> None:
    first = up(home)
    assert first.returncode == 0, first.stderr
    again = up(home)
    assert again.returncode == 0 and "already up" in again.stdout

    status = home.status()
    assert status["healthy"] and status["simulated"]
    names = {part["name"] for part in status["parts"]}
    assert {"nats-server", "valkey", "gateway", "scheduler", "failover", "telemetry"} <= names
    assert {"agent-h100-0", "agent-a100-0"} <= names
    assert status["resident_mib_total"] < 1000
    assert max(part["resident_mib"] for part in status["parts"]) < 100
    assert stat.S_IMODE((home.state / "api-key").stat().st_mode) == 0o600

    down = home.verb("down", "--state", str(home.state))
    assert down.returncode == 0, down.stderr
    assert of_state(home.root) == ()
    assert "was not up" in home.verb("down", "--state", str(home.state)).stdout
    assert not home.status()["up"]


@pytest.mark.slow
def test_work_goes_on_at_the_next_up(home: Any, until: Callable[..., None]) -> None:
    assert up(home).returncode == 0
    gate = home.root / "gate"
    with client(home) as gateway:
        job = gateway.submit(
            f"name: patient\nresources: {{accelerators: H100:8}}\n"
            f"run: 'while [ ! -e {gate} ]; do read -t 0.1 < /dev/zero; done'\n"
        )
        until(lambda: gateway.workload(job.id).state == "running")
    assert home.verb("down", "--state", str(home.state)).returncode == 0
    assert of_state(home.root) == ()

    gate.touch()
    assert up(home).returncode == 0
    with client(home) as gateway:
        assert gateway.wait(job.id, timeout_s=60).state == "succeeded"


@pytest.mark.slow
def test_a_killed_part_comes_back(home: Any, until: Callable[..., None]) -> None:
    assert up(home).returncode == 0
    before = named(home, "scheduler")
    os.kill(before.pid, signal.SIGKILL)
    until(lambda: named(home, "scheduler") != before)
    until(lambda: home.status()["healthy"])


@pytest.mark.slow
def test_nothing_outlives_a_killed_supervisor(home: Any, until: Callable[..., None]) -> None:
    assert up(home).returncode == 0
    os.kill(named(home, "supervisor").pid, signal.SIGKILL)
    parts = read_records(home.state / "processes.json")
    until(lambda: not any(is_alive(part) for part in parts))


@pytest.mark.slow
def test_a_stack_comes_up_at_once_after_its_supervisor_was_killed(home: Any) -> None:
    assert up(home).returncode == 0
    os.kill(named(home, "supervisor").pid, signal.SIGKILL)
    again = up(home)
    assert again.returncode == 0, again.stderr
    assert home.status()["healthy"]


@pytest.mark.slow
def test_nodes_share_nothing_but_the_store(home: Any) -> None:
    assert up(home).returncode == 0
    with client(home) as gateway:
        jobs = [
            gateway.submit(
                f"name: on-{type_.lower()}\nresources: {{accelerators: {type_}:8}}\n"
                "run: env > $WHALEFLUX_OUTPUT_DIR/env; echo hello\n"
            )
            for type_ in ("H100", "A100")
        ]
        for job in jobs:
            assert gateway.wait(job.id, timeout_s=60).state == "succeeded"
    roots = {name: home.state / "nodes" / name for name in ("h100-0", "a100-0")}
    for name, root in roots.items():
        agent = named(home, f"agent-{name}")
        environment = Path(f"/proc/{agent.pid}/environ").read_bytes().decode().split("\0")
        told = [v for v in environment if v.startswith("WHALEFLUX_") and str(home.state) in v]
        allowed = (str(root), f'{{"default": "{home.state / "store"}"}}', "unix://")
        assert all(v.partition("=")[2].startswith(allowed) for v in told), told
        others = [other for other in roots.values() if other != root]
        for path in root.rglob("*"):
            assert not path.is_symlink() or path.resolve().is_relative_to(root)
            if path.is_file():
                text = path.read_bytes()
                assert not any(str(other).encode() in text for other in others), path
                assert path.stat().st_nlink == 1 or path.name in ("shim.json",), path


@pytest.mark.slow
def test_another_fleet_on_the_same_state_is_refused(home: Any) -> None:
    assert up(home).returncode == 0
    assert home.verb("down", "--state", str(home.state)).returncode == 0
    refused = home.verb("up", "--state", str(home.state), "--nodes", "1xH200x8")
    assert refused.returncode == 1
    assert "was made with the fleet" in refused.stderr
