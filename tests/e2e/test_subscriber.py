"""A program from outside reads a tenant's events, with a NATS client and nothing of ours."""

import asyncio
import json
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from whaleflux.client import AsyncClient
from whaleflux.common.contracts.workload import WorkloadSpec
from whaleflux.local.fleet import parse_fleet
from whaleflux.local.session import Session, running_stack, scratch_folder

SUBSCRIBER = Path(__file__).resolve().parents[2] / "examples/subscriber/subscriber.py"
pytestmark = [pytest.mark.e2e, pytest.mark.integration]


@asynccontextmanager
async def small_stack() -> AsyncIterator[Session]:
    async with scratch_folder() as paths, running_stack(paths, parse_fleet("1xH100x2")) as session:
        yield session


async def work(session: Session, name: str) -> None:
    """Run a job to its end."""
    key = session.paths.api_key.read_text().strip()
    spec = WorkloadSpec.model_validate({"name": name, "run": "true"})
    async with AsyncClient(session.addresses.gateway_url, key) as client:
        handle = await client.submit(spec)
        await client.wait(handle.id, timeout_s=30)


async def subscribe(login: Path, cursor: Path, count: int) -> list[dict[str, Any]]:
    """Let the subscriber print *count* events."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SUBSCRIBER),
        str(login),
        "--cursor",
        str(cursor),
        "--count",
        str(count),
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(40):
        said, _ = await process.communicate()
    assert process.returncode == 0
    return [json.loads(line) for line in said.splitlines()]


async def test_a_subscriber_resumes_by_its_cursor_and_sees_everything_once(
    tmp_path: Path,
) -> None:
    async with small_stack() as session:
        login = session.paths.tenant("default")
        assert login.stat().st_mode & 0o077 == 0
        await work(session, "first")
        events = await subscribe(login, tmp_path / "cursor", 5)
        await work(session, "second")
        events += await subscribe(login, tmp_path / "cursor", 8)
    assert [event["seq"] for event in events] == list(range(1, 14))
    types = [event["type"] for event in events]
    assert types[0] == "io.whaleflux.node.joined.v1"
    assert types.count("io.whaleflux.workload.submitted.v1") == 2


async def test_prometheus_reads_every_gpu_marked_as_simulated() -> None:
    async with small_stack() as session:

        def scrape() -> list[str]:
            with urllib.request.urlopen(session.addresses.metrics_url, timeout=5) as answer:
                text: str = answer.read().decode()
            return [line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_GPU_TEMP{")]

        async with asyncio.timeout(20):
            while len(lines := await asyncio.to_thread(scrape)) < 2:
                await asyncio.wait({asyncio.ensure_future(work(session, "meanwhile"))})
    assert all('simulated="true"' in line and 'modelName="H100"' in line for line in lines)
