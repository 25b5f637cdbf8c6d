"""Children are kept running, ended in order, and never outlive their supervisor."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from whaleflux.common.errors import Unavailable
from whaleflux.local.paths import StatePaths
from whaleflux.local.processes import gone, is_alive, of_state, read_records, record
from whaleflux.local.supervisor import ChildSpec, Supervisor, Tier

DEADLINE_S = 10.0
WAITER = "import signal; signal.pause()"


@contextlib.asynccontextmanager
async def supervisor(root: Path) -> AsyncIterator[Supervisor]:
    paths = StatePaths(root)
    paths.prepare()
    async with asyncio.TaskGroup() as group:
        one = Supervisor(paths, group)
        try:
            yield one
        finally:
            await one.stop()


def python(name: str, code: str, *, tier: Tier = Tier.SERVICE, **environment: str) -> ChildSpec:
    return ChildSpec(
        name=name, tier=tier, command=(sys.executable, "-c", code), environment=environment
    )


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            await asyncio.sleep(0.01)


async def test_a_dead_child_is_started_again(tmp_path: Path) -> None:
    async with supervisor(tmp_path) as one:
        await one.start(python("a", WAITER))
        first = one.pid("a")
        os.kill(first, signal.SIGKILL)
        await until(lambda: one.pid("a") != first)
        assert is_alive(one.records[0])


async def test_a_child_killed_on_purpose_stays_dead(tmp_path: Path) -> None:
    async with supervisor(tmp_path) as one:
        await one.start(python("a", WAITER))
        one.kill_for_good("a")
        await until(lambda: one.has_ended("a"))
        assert one.deaths("a") == 0


async def test_a_child_that_keeps_dying_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whaleflux.local.supervisor.BACKOFF_FIRST_S", 0.0)
    monkeypatch.setattr("whaleflux.local.supervisor.RESTARTS_MAX", 2)
    async with supervisor(tmp_path) as one:
        await one.start(python("a", "print('no luck', flush=True); raise SystemExit(3)"))
        await until(lambda: one.has_ended("a"))
        assert one.deaths("a") == 3
        assert one.last_words("a") == "no luck"


async def test_last_words_are_read_out_of_json_logs(tmp_path: Path) -> None:
    line = '{"level": "error", "message": "cannot start", "reason": "no bus"}'
    async with supervisor(tmp_path) as one:
        await one.start(python("a", f"print({line!r}, flush=True); {WAITER}"))
        await until(lambda: one.last_words("a") == "cannot start: no bus")


async def test_a_state_folder_that_vanishes_ends_everything(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(DEADLINE_S), supervisor(tmp_path / "state") as one:
            for name in "ab":
                await one.start(python(name, WAITER))
            shutil.rmtree(tmp_path / "state")
            os.kill(one.pid("a"), signal.SIGKILL)
            await asyncio.Event().wait()
    assert raised.group_contains(Unavailable, match="a cannot be started again")
    assert not any(is_alive(child) for child in one.records)


async def test_stopping_ends_agents_before_services_before_servers(tmp_path: Path) -> None:
    order = tmp_path / "order"
    say = textwrap.dedent(
        """
        import os, signal, sys
        def end(*_):
            with open(os.environ["ORDER"], "a") as f: f.write(os.environ["ME"])
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        print("up", flush=True)
        while True: signal.pause()
        """
    )
    async with supervisor(tmp_path / "state") as one:
        for name, tier in (("3", Tier.SERVER), ("1", Tier.AGENT), ("2", Tier.SERVICE)):
            await one.start(python(name, say, tier=tier, ORDER=str(order), ME=name))
        await until(lambda: all(one.last_words(name) == "up" for name in "123"))
    assert order.read_text() == "123"


async def test_a_child_deaf_to_sigterm_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whaleflux.local.supervisor.STOP_GRACE_S", 0.3)
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True)\n"
    async with supervisor(tmp_path) as one:
        await one.start(python("a", deaf + "while True: signal.pause()"))
        await until(lambda: one.last_words("a") == "up")
        child = one.records[0]
    assert not is_alive(child)


async def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    code = textwrap.dedent(
        f"""
        import asyncio, sys
        from pathlib import Path
        from whaleflux.local.paths import StatePaths
        from whaleflux.local.supervisor import ChildSpec, Supervisor, Tier
        async def main():
            paths = StatePaths(Path({str(tmp_path)!r})); paths.prepare()
            async with asyncio.TaskGroup() as group:
                one = Supervisor(paths, group)
                await one.start(ChildSpec(name="a", tier=Tier.SERVER,
                    command=(sys.executable, "-c", {WAITER!r})))
                print("up", flush=True)
                await asyncio.Event().wait()
        asyncio.run(main())
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        assert await asyncio.to_thread(parent.stdout.readline) == b"up\n"
        child = next(r for r in read_records(tmp_path / "processes.json") if r.name == "a")
        assert is_alive(child)
    finally:
        parent.kill()
        parent.wait()
    assert await gone([child], within_s=DEADLINE_S) == []


async def test_processes_of_a_state_are_found_by_their_environment(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "mine-too"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WAITER], env={"WHALEFLUX_STATE_DIR": str(root / "x")}
        )
        for root in (mine, other)
    ]
    try:
        records = [record("x", process.pid) for process in processes]
        await until(lambda: len(of_state(other)) == 1)
        assert [p.pid for p in of_state(mine)] == [records[0].pid if records[0] else 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
