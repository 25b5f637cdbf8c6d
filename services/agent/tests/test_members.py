import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whaleflux.agent.shell import folders
from whaleflux.agent.shell.folders import NodeFolder, key_of
from whaleflux.agent.shell.preparation import Timing
from whaleflux.agent.shell.shim_process import kill_strays
from whaleflux.common.contracts.agent import ExitKind

Make = Callable[..., Any]
STARTED = "agent.member.started.v1"
EXITED = "agent.member.exited.v1"
REGISTERED = "agent.checkpoint.registered.v1"
REPORTED = "agent.run.reported.v1"


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_member_is_started_and_its_end_reported_once(agent: Any, member: Make) -> None:
    agent.assign(member("echo hello; exit 3"))
    end = await agent.exited()
    assert (end.kind, end.exit_code, end.node_id) == (ExitKind.FAILED, 3, "n1")
    assert [event.type for event in agent.events()] == [STARTED, EXITED]
    assert agent.log() == "hello\n"
    agent.assign(member("echo hello; exit 3"))
    await asyncio.sleep(0)
    assert agent.members.alive == 0


async def test_what_is_absent_or_to_stop_is_stopped(agent: Any, member: Make) -> None:
    one, two = member("exec sleep 100"), member("exec sleep 100", run_id="wl_b-main-0", gpus=(1,))
    agent.assign(one, two)
    await agent.said(STARTED)
    await agent.said(STARTED, "wl_b-main-0")
    agent.assign(one.model_copy(update={"desired": "stop"}))
    assert (await agent.exited()).kind is ExitKind.STOPPED
    assert (await agent.exited("wl_b-main-0")).kind is ExitKind.STOPPED


async def test_what_is_to_stop_before_it_started_is_reported_without_starting(
    agent: Any, member: Make
) -> None:
    agent.assign(member("echo ran", desired="stop"))
    assert (await agent.exited()).kind is ExitKind.STOPPED
    assert not agent.member().log.exists()


async def test_gpus_go_to_the_next_run_only_after_the_end_of_the_last_is_acknowledged(
    agent: Any, member: Make
) -> None:
    agent.assign(member("exec sleep 0.1"))
    await agent.said(STARTED)
    agent.bus_up = False
    agent.assign(member("exec sleep 100"), member("exec sleep 100", run_id="wl_b-main-0"))
    await until(agent.member().exit.exists)
    await until(lambda: agent.outbox.pending("wl_a-main-0.1.0.exited"))
    agent.members.reconcile()
    assert agent.members.holders() == {0: "wl_a-main-0"}
    assert not agent.member("wl_b-main-0").path.exists()
    agent.bus_up = True
    await agent.said(STARTED, "wl_b-main-0")
    types = [(event.type, event.run_id) for event in agent.events()]
    assert types.index((EXITED, "wl_a-main-0")) < types.index((STARTED, "wl_b-main-0"))


async def test_the_hand_over_gap_is_told_only_where_work_waited(agent: Any, member: Make) -> None:
    agent.assign(
        member("exec sleep 0.1"),
        member("exec sleep 0.1", run_id="wl_b-main-0", handover=True),
    )
    first = await agent.said(STARTED)
    await agent.exited("wl_b-main-0")
    second = await agent.said(STARTED, "wl_b-main-0")
    waited, late = (first, second) if first.at > second.at else (second, first)
    gaps = {event.run_id: event.handover_gap_ms for event in (waited, late)}
    assert gaps["wl_a-main-0"] is None
    if waited.run_id == "wl_b-main-0":
        assert 0 < gaps["wl_b-main-0"] < 5_000


async def test_a_broken_bus_delays_news_and_loses_none(fleet: Any, member: Make) -> None:
    async with fleet.agent() as agent:
        agent.bus_up = False
        agent.assign(member("exit 4"))
        await until(lambda: agent.outbox.pending("wl_a-main-0.1.0.exited"))
        assert agent.events() == []
    async with fleet.agent() as agent:
        assert (await agent.exited()).exit_code == 4
        assert [event.type for event in agent.events()] == [STARTED, EXITED]
        await until(lambda: not list(agent.folder.outbox.iterdir()))


async def test_a_new_agent_finds_running_members_and_starts_no_second_copy(
    fleet: Any, member: Make, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    one = member(
        f"echo started >> {tmp_path}/starts; until [ -e {go} ]; do sleep 0.02; done; exit 9"
    )
    async with fleet.agent() as agent:
        agent.assign(one)
        await agent.said(STARTED)
        await until((tmp_path / "starts").exists)
    async with fleet.agent() as agent:
        agent.assign(one)
        await until(lambda: agent.members.alive)
        go.touch()
        assert (await agent.exited()).exit_code == 9
        assert [event.type for event in agent.events()] == [EXITED]
    assert (tmp_path / "starts").read_text() == "started\n"


async def test_a_new_agent_reads_the_exit_code_of_what_ended_meanwhile(
    fleet: Any, member: Make
) -> None:
    async with fleet.agent() as agent:
        agent.assign(member("sleep 0.3; exit 85"))
        await agent.said(STARTED)
        folder = agent.member()
    await until(folder.exit.exists)
    async with fleet.agent() as agent:
        agent.assign(member("sleep 0.3; exit 85"))
        assert (await agent.exited()).kind is ExitKind.SAVED


async def test_a_new_agent_stops_what_its_assignment_no_longer_names(
    fleet: Any, member: Make
) -> None:
    async with fleet.agent() as agent:
        agent.assign(member("exec sleep 100"))
        await agent.said(STARTED)
    async with fleet.agent() as agent:
        agent.assign()
        assert (await agent.exited()).kind is ExitKind.STOPPED


async def test_a_killed_shim_takes_its_whole_member_with_it(agent: Any, member: Make) -> None:
    agent.assign(member("setsid sleep 100 & echo child $!; wait"))
    await agent.said(STARTED)
    await until(lambda: "child" in agent.log())
    child = int(agent.log().split()[1])
    os.kill(json.loads(agent.member().claim.read_text())["pid"], signal.SIGKILL)
    end = await agent.exited()
    assert (end.kind, "shim was killed" in end.reason) == (ExitKind.FAILED, True)
    assert not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text()


async def test_strays_of_another_node_on_this_machine_are_left_alone(
    agent: Any, member: Make, tmp_path: Path
) -> None:
    agent.assign(member("exec sleep 100"))
    await agent.said(STARTED)
    other = NodeFolder(tmp_path / "other").member(key_of(member("true")))
    assert kill_strays(other) == 0
    assert kill_strays(agent.member()) == 1


async def test_a_member_cut_short_by_a_restart_of_the_node_is_reported_lost(
    fleet: Any, member: Make
) -> None:
    async with fleet.agent() as agent:
        folder = agent.member()
        folder.create(member("true"))
        folder.spec.write_text("")
        folder.claim.write_text(json.dumps({"pid": 1, "starttime": 1, "boot_id": "before"}))
    async with fleet.agent() as agent:
        assert "node was restarted" in (await agent.exited()).reason


async def test_a_claim_that_no_shim_made_is_reported_never_started(
    fleet: Any, member: Make
) -> None:
    async with fleet.agent() as agent:
        agent.member().create(member("true"))
        agent.member().spec.write_text("")
    async with fleet.agent() as agent:
        assert (await agent.exited()).kind is ExitKind.NEVER_STARTED


async def test_nothing_starts_before_the_lease_is_granted_or_after_it_grew_old(
    fleet: Any, member: Make
) -> None:
    async with fleet.agent() as agent:
        agent.members.extend(-1e9)
        agent.assign(member("exit 0"))
        agent.members.reconcile()
        assert not agent.member().path.exists()
        agent.renew()
        await agent.exited()


async def test_a_given_up_node_kills_its_members_and_renounces_what_it_had_not_started(
    agent: Any, member: Make
) -> None:
    waiting = member("echo never", run_id="wl_b-main-0")
    agent.assign(member("trap '' TERM; while :; do sleep 0.05; done", grace_s=3600), waiting)
    await agent.said(STARTED)
    agent.members.give_up()
    assert (await agent.exited()).kind is ExitKind.FENCED
    agent.members.renounce_unstarted()
    agent.renew()
    agent.members.allow_starts()
    assert (await agent.exited("wl_b-main-0")).kind is ExitKind.FENCED
    agent.members.reconcile()
    assert not agent.member("wl_b-main-0").log.exists()


async def test_the_fence_holds_while_no_agent_is_there(fleet: Any, member: Make) -> None:
    fleet.timing = Timing(1.5, 0.7)
    async with fleet.agent() as agent:
        agent.assign(member("exec sleep 100"))
        await agent.said(STARTED)
        folder = agent.member()
    await until(folder.exit.exists)
    async with fleet.agent() as agent:
        assert (await agent.exited()).kind is ExitKind.FENCED


async def test_only_the_newest_folders_of_ended_members_are_kept(
    agent: Any, member: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "ENDED_KEPT", 2)
    for number in range(4):
        agent.assign(member("exit 0", run_id=f"wl_{number}"))
        await agent.exited(f"wl_{number}")
        await until(agent.member(f"wl_{number}").told_exit.exists)
    agent.assign()
    await until(lambda: len(list(agent.folder.members())) <= 3)
    assert agent.member("wl_3").log.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start members as another user")
async def test_members_run_as_the_unix_user_of_their_project(fleet: Any, member: Make) -> None:
    fleet.users = {"*": "nobody"}
    with tempfile.TemporaryDirectory() as open_to_all:
        os.chmod(open_to_all, 0o755)
        fleet.root, fleet.store = Path(open_to_all, "node"), Path(open_to_all, "store")
        fleet.store.mkdir()
        async with fleet.agent() as agent:
            agent.assign(
                member(
                    "id -un; touch x $HOME/x $TMPDIR/x $WHALEFLUX_OUTPUT_DIR/x && ls -l $TMPDIR/x"
                )
            )
            assert (await agent.exited()).kind is ExitKind.DONE
            assert agent.log().startswith("nobody\n-rw------- 1 nobody")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be asked to start members as root")
async def test_a_root_agent_starts_nothing_as_root_unless_it_may(fleet: Any, member: Make) -> None:
    fleet.allow_root = False
    async with fleet.agent() as agent:
        agent.assign(member("id"))
        end = await agent.exited()
        assert end.kind is ExitKind.NEVER_STARTED
        assert "has no Unix user on this node" in end.reason
