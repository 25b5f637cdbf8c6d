"""What a program finds when it starts, and what becomes of what it says."""

import asyncio
import hashlib
import os
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whaleflux.agent.shell import checkpoints
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
    said = [event.type for event in agent.events()]
    assert (said[0], said[-1]) == (STARTED, EXITED)
    assert said.count(REGISTERED) == 1
    assert REPORTED in said
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
