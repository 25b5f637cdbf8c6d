"""What `compose.yaml` and `deploy/` describe runs a job, as processes in place of containers.

Not in here: the images themselves, which need Docker.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from whaleflux.client import AsyncClient
from whaleflux.common.contracts.workload import WorkloadSpec
from whaleflux.common.testing.servers import nats_server, valkey_server

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
API_KEY = "wf_live_0123456789abcdef0123456789abcdef"
VARIABLE = re.compile(r"\$\{?(WHALEFLUX_\w+)(?::\?[^}]*)?\}?")
END_S = 10.0
pytestmark = [pytest.mark.e2e, pytest.mark.integration]


def password(found: "re.Match[str]") -> str:
    return f"secret-of-{found[1].lower()}"


def bus_config() -> dict[str, Any]:
    """Return `deploy/nats.conf` with passwords, but for where it listens and stores."""
    text = (ROOT / "deploy/nats.conf").read_text()
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    body: dict[str, Any] = json.loads(VARIABLE.sub(lambda found: f'"{password(found)}"', plain))
    return {key: body[key] for key in body if key not in ("host", "port", "jetstream")}


def environment(name: str, folder: Path, nats: str, valkey: str) -> dict[str, str]:
    """Return what compose gives to the service *name*, with this machine's addresses."""
    moved = {
        "nats://nats:4222": nats,
        "redis://valkey:6379/0": valkey,
        "/run/secrets/api_key": str(folder / "api_key"),
        "/var/lib/whaleflux": str(folder / name),
        "/store": str(folder / "store"),
        "0.0.0.0": "127.0.0.1",
    }
    given = {
        "WHALEFLUX_STATE_DIR": "/var/lib/whaleflux",
        **COMPOSE["services"][name]["environment"],
    }
    # Ports of a container are its own; here any free one will do.
    given |= {key: "0" for key in given if key.endswith("_PORT")}
    for key, value in given.items():
        text = VARIABLE.sub(password, str(value))
        for there, here in moved.items():
            text = text.replace(there, here)
        given[key] = text
    return {"PATH": os.environ["PATH"], **given}


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Path]:
    """Run the deployment and return its folder."""
    (tmp_path / "api_key").write_text(API_KEY)
    (tmp_path / "store").mkdir()
    started: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        nats = stack.enter_context(nats_server(bus_config()))
        valkey = stack.enter_context(valkey_server())
        try:
            for name, body in COMPOSE["services"].items():
                if "whaleflux" not in str(body["command"]):
                    continue
                (tmp_path / name).mkdir()
                with (tmp_path / f"{name}.log").open("wb") as log:
                    started.append(
                        subprocess.Popen(
                            [sys.executable, *body["command"][1:]],
                            env=environment(name, tmp_path, nats.url, valkey),
                            cwd=tmp_path / name,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                        )
                    )
            yield tmp_path
        finally:
            for process in started:
                process.terminate()
            for process in started:
                try:
                    process.wait(END_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


async def test_a_job_runs_on_what_compose_describes(
    deployed: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    found = deployed / "gateway" / "gateway.json"
    until(found.exists)
    spec = WorkloadSpec.model_validate(
        yaml.safe_load((ROOT / "examples/jobs/hello.yaml").read_text())
    )
    async with AsyncClient(json.loads(found.read_text())["url"], API_KEY) as client:
        async with asyncio.timeout(60):
            handle = await client.submit(spec)
            ended = await client.wait(handle.id, timeout_s=50)
    assert ended.state == "succeeded", [path.read_text()[-2000:] for path in deployed.glob("*.log")]
