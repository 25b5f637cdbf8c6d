import asyncio
import hashlib
import json
import os
import signal
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whaleflux.agent.shell import checkpoints
from whaleflux.agent.shell.preparation import Timing
from whaleflux.common.contracts.agent import ExitKind
from whaleflux.common.contracts.assignment import CheckpointRef, blob_file, log_file

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


async def test_the_environment_is_the_contract_and_nothing_of_the_agents_own(
    agent: Any, member: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHALEFLUX_NATS_PASSWORD", "do-not-leak")
    monkeypatch.setenv("SOME_TOKEN", "do-not-leak")
    agent.assign(
        member(
            "env; pwd; command -v python",
            envs={"LR": "0.1", "RANK": "77"},
            inputs={"rollout": "runs/r/a1/output"},
            gpus=(2, 3),
            nodes=("n1", "n2"),
            world_size=2,
        )
    )
    await agent.exited()
    log = agent.log()
    store = agent.node.stores["default"]
    assert "do-not-leak" not in log
    for line in (
        "WHALEFLUX_JOB=wl_a",
        "WHALEFLUX_RUN=wl_a-main-0",
        "WHALEFLUX_PHASE=main",
        "WHALEFLUX_ITERATION=0",
        "WHALEFLUX_ATTEMPT=1",
        "WHALEFLUX_SIMULATED=1",
        f"WHALEFLUX_CHECKPOINT_DIR={store}/runs/wl_a-main-0/a1/checkpoints",
        f"WHALEFLUX_OUTPUT_DIR={store}/runs/wl_a-main-0/a1/output",
        f"WHALEFLUX_INPUT_ROLLOUT={store}/runs/r/a1/output",
        "WHALEFLUX_RESUME_FROM=",
        "WHALEFLUX_GPU_TYPE=H200",
        "CUDA_VISIBLE_DEVICES=2,3",
        "LR=0.1",
        "RANK=0",
        "WORLD_SIZE=2",
        "NNODES=2",
        "MASTER_ADDR=127.0.0.1",
        "MASTER_PORT=29500",
        f"TMPDIR={agent.member().tmp}",
        str(agent.member().work),
        f"{os.path.dirname(sys.executable)}/python",
    ):
        assert line in log.splitlines()
    assert '"index": 0' in log


async def test_setup_comes_first_and_its_failure_ends_the_member(agent: Any, member: Make) -> None:
    agent.assign(
        member("cat note", setup="echo prepared > note"),
        member("echo never", setup="exit 5", run_id="wl_b-main-0", gpus=()),
    )
    assert (await agent.exited()).kind is ExitKind.DONE
    assert agent.log() == "prepared\n"
    assert (await agent.exited("wl_b-main-0")).exit_code == 5
    assert agent.log("wl_b-main-0") == "[whaleflux: setup ended with 5]\n"


async def test_reports_and_checkpoints_go_out_before_the_end(agent: Any, member: Make) -> None:
    agent.assign(
        member(
            """
            d=$WHALEFLUX_CHECKPOINT_DIR/step-12; mkdir $d; echo weights > $d/w
            echo 'not json' >> $WHALEFLUX_REPORT
            echo '{"step": 12, "progress": 0.5, "metrics": {"loss": 0.25}}' >> $WHALEFLUX_REPORT
            printf '{"checkpoint": "step-12", "step": 12}' >> $WHALEFLUX_REPORT
            """
        )
    )
    end = await agent.exited()
    assert (end.last_step, end.metrics) == (12, {"loss": 0.25})
    assert [event.type for event in agent.events()] == [STARTED, REGISTERED, REPORTED, EXITED]
    reference = (await agent.said(REGISTERED)).checkpoint
    assert (reference.step, reference.safe) == (12, True)
    checkpoints.verify(agent.node.stores["default"] / reference.path, reference.manifest_sha256)


async def test_a_checkpoint_on_the_node_itself_is_not_safe_and_rank_1_registers_none(
    agent: Any, member: Make
) -> None:
    run = (
        "d=$WHALEFLUX_CHECKPOINT_DIR/s$RANK; mkdir $d; echo w > $d/w;"
        'echo "{\\"checkpoint\\": \\"s$RANK\\", \\"step\\": 1}" >> $WHALEFLUX_REPORT'
    )
    agent.assign(
        member(run, store="local"), member(run, store="local", rank=1, gpus=(1,), world_size=2)
    )
    await agent.wait_for(lambda e: e.type == EXITED and e.rank == 0)
    await agent.wait_for(lambda e: e.type == EXITED and e.rank == 1)
    registered = [event for event in agent.events() if event.type == REGISTERED]
    assert [event.checkpoint.safe for event in registered] == [False]


async def test_a_running_program_registers_without_ending(agent: Any, member: Make) -> None:
    agent.assign(
        member(
            "d=$WHALEFLUX_CHECKPOINT_DIR; mkdir $d/a; echo w > $d/a/w;"
            'echo \'{"checkpoint": "a", "step": 1}\' >> $WHALEFLUX_REPORT; exec sleep 100'
        )
    )
    assert (await agent.said(REGISTERED)).checkpoint.step == 1
    assert (await agent.said(REPORTED)).step == 1
    assert agent.members.alive == 1


async def test_resume_skips_a_torn_checkpoint_and_says_so(agent: Any, member: Make) -> None:
    store = agent.node.stores["default"]
    references = []
    for step in (2, 1):
        path = f"runs/wl_a-main-0/a0/checkpoints/s{step}"
        (store / path).mkdir(parents=True)
        (store / path / "w").write_text(f"weights {step}")
        sealed = checkpoints.seal(store / path, step=step, attempt=0)
        references.append(
            CheckpointRef(
                attempt=0,
                step=step,
                path=path,
                manifest_sha256=sealed.manifest_sha256,
                safe=True,
            )
        )
    (store / references[0].path / "w").write_text("weights!2")
    agent.assign(member("cat $WHALEFLUX_RESUME_FROM/w", resume_from=tuple(references)))
    await agent.exited()
    assert (await agent.said(STARTED)).resumed_from == references[1]
    assert "step 2 is skipped: w differs" in agent.log()
    assert "starting at step 1" in agent.log()
    assert agent.log().endswith("weights 1")


async def test_a_workdir_is_unpacked_into_a_private_copy(
    agent: Any, member: Make, tmp_path: Path
) -> None:
    digest = put_archive(agent.node.stores["default"], tmp_path, {"train.sh": "echo from workdir"})
    run = "bash train.sh; echo changed > train.sh"
    agent.assign(
        member(run, workdir=f"sha256:{digest}"),
        member(run, workdir=f"sha256:{digest}", run_id="wl_b-main-0"),
    )
    for run_id in ("wl_a-main-0", "wl_b-main-0"):
        assert (await agent.exited(run_id)).kind is ExitKind.DONE
        assert agent.log(run_id) == "from workdir\n"


async def test_a_missing_or_damaged_workdir_never_starts(agent: Any, member: Make) -> None:
    agent.assign(member("echo ran", workdir=f"sha256:{'0' * 64}"))
    end = await agent.exited()
    assert (end.kind, end.exit_code) == (ExitKind.NEVER_STARTED, None)
    assert "000000000000 is not in the store" in end.reason


async def test_an_unreached_store_never_starts(agent: Any, member: Make) -> None:
    agent.assign(member("echo ran", store="nfs7"))
    assert "store 'nfs7' is not reached" in (await agent.exited()).reason


async def test_the_log_tail_goes_to_the_store(agent: Any, member: Make) -> None:
    agent.assign(member("echo kept"))
    await agent.exited()
    kept = agent.node.stores["default"] / log_file("wl_a-main-0", 1, 0)
    await until(kept.exists)
    assert kept.read_text() == "kept\n"


def put_archive(store: Path, tmp_path: Path, files: dict[str, str]) -> str:
    archive = tmp_path / "workdir.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, text in files.items():
            (tmp_path / name).write_text(text)
            tar.add(tmp_path / name, arcname=name)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    target = store / blob_file(digest)
    target.parent.mkdir(parents=True)
    archive.rename(target)
    return digest


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
