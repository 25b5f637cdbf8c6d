"""The programs keep their contract with WhaleFlux: they save, stop, go on, and say so."""

import hashlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rft.files import Torn
from rft.local import Bench, Try
from rft.shards import Shards, Whole, read_shard
from rft.witness import FILE, read_account

SMALL = {"RFT_SCALE": "0.4"}
"""As in `conftest`: long enough to be killed in the middle, on a busy machine too."""
DEADLINE_S = 60.0
LOOK_EVERY_S = 0.005


def until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(DEADLINE_S / LOOK_EVERY_S)):
        if holds():
            return
        pause.wait(LOOK_EVERY_S)
    raise AssertionError("it never came to pass")


def fingerprint(folder: Path) -> dict[str, str]:
    """Hash every output; the witness differs between attempts by its nature."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name != FILE
    }


def checkpoints(one: Try) -> list[int]:
    return [int(line["step"]) for line in one.said() if "checkpoint" in line]


def last_step(one: Try, rank: int = 0) -> int:
    return max((line["step"] for line in one.said(rank) if "progress" in line), default=0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Try:
    """A rollout that nothing has disturbed."""
    one = Bench(tmp_path_factory.mktemp("whole"), envs=SMALL).start(
        "rollout", inputs={"reward_training": trained}
    )
    assert one.wait(60) == [0, 0]
    return one


def test_a_killed_rollout_goes_on_to_the_same_last_byte(
    bench: Bench, trained: Path, whole: Try
) -> None:
    inputs = {"reward_training": trained}
    first = bench.start("rollout", inputs=inputs)
    until(lambda: len(checkpoints(first)) >= 3)
    first.kill()
    assert [process.returncode for process in first.processes] == [-9, -9]
    assert not list(first.output.glob("answers-*"))

    saved = first.newest_checkpoint()
    assert saved is not None
    second = bench.start("rollout", number=2, inputs=inputs, resume_from=saved)
    assert second.wait(60) == [0, 0]
    assert fingerprint(second.output) == fingerprint(whole.output)

    account = read_account(bench.store)
    assert account.duplicates == [] and account.not_comparable == []
    begun = [one.steps[0] for one in account.sightings if one.attempt == 2]
    assert min(begun) > 1, "the second attempt began where the first had saved"
    redone = account.lost_steps.get(first.run_id, 0)
    assert redone <= sum(last_step(first, rank) - int(saved.name[-6:]) for rank in (0, 1))


def test_one_killed_rank_does_not_spoil_the_checkpoint(
    bench: Bench, trained: Path, whole: Try
) -> None:
    inputs = {"reward_training": trained}
    first = bench.start("rollout", inputs=inputs)
    until(lambda: len(checkpoints(first)) >= 2)
    first.processes[1].kill()
    first.processes[1].wait(10)
    first.processes[0].send_signal(signal.SIGTERM)
    assert first.processes[0].wait(20) == 85
    saved = first.newest_checkpoint()
    assert saved is not None
    reached = [read_shard(saved, rank=rank, world_size=2)[0] for rank in (0, 1)]
    assert min(reached) == checkpoints(first)[-1]

    second = bench.start("rollout", number=2, inputs=inputs, resume_from=saved)
    assert second.wait(60) == [0, 0]
    assert fingerprint(second.output) == fingerprint(whole.output)


def test_sigterm_saves_and_leaves_with_85(bench: Bench, trained: Path, whole: Try) -> None:
    inputs = {"reward_training": trained}
    first = bench.start("rollout", inputs=inputs)
    until(lambda: last_step(first) >= 1 and last_step(first, 1) >= 1)
    for process in first.processes:
        process.send_signal(signal.SIGTERM)
    assert first.wait(20) == [85, 85]
    assert not list(first.output.glob("answers-*"))
    saved = first.newest_checkpoint()
    assert saved is not None
    reached = [read_shard(saved, rank=rank, world_size=2)[0] for rank in (0, 1)]
    assert reached == [last_step(first, 0), last_step(first, 1)], "nothing done is lost"

    second = bench.start("rollout", number=2, inputs=inputs, resume_from=saved)
    assert second.wait(60) == [0, 0]
    assert fingerprint(second.output) == fingerprint(whole.output)
    assert read_account(bench.store).lost_steps == {}


def test_sigusr1_saves_now_and_goes_on(bench: Bench) -> None:
    one = bench.start("reward_training")
    until(lambda: last_step(one) >= 1)
    one.processes[0].send_signal(signal.SIGUSR1)
    assert one.wait(60) == [0]
    regular = {6, 12, last_step(one)}
    assert set(checkpoints(one)) > regular, "one more than those it saves anyway"


@pytest.mark.parametrize(
    "phase", ["reward_training", "feedback", "scoring", "policy_update", "evaluation"]
)
def test_every_phase_goes_on_from_each_checkpoint_exactly(
    bench: Bench, trained: Path, whole: Try, phase: str
) -> None:
    inputs = {"reward_training": trained, "rollout": whole.output, "feedback": trained}
    before = {"policy_update": ["scoring"], "evaluation": ["scoring", "policy_update"]}
    for needed in before.get(phase, []):
        one = bench.start(needed, inputs=inputs)
        assert one.wait(60) == [0]
        inputs[needed] = one.output
    first = bench.start(phase, inputs=inputs)
    assert first.wait(60) == [0]
    earliest = f"step-{checkpoints(first)[0]:06d}"
    again = bench.start(phase, number=2, inputs=inputs, resume_from=first.checkpoints / earliest)
    assert again.wait(60) == [0]
    assert fingerprint(again.output) == fingerprint(first.output) != {}


def test_rank_0_waits_for_the_last_shards_but_not_for_ever(tmp_path: Path) -> None:
    zero, one = (Shards(tmp_path, rank=rank, world_size=2) for rank in (0, 1))
    zero.write(5, {}, last=True)
    assert zero.assemble(wait_s=0.05) is None, "the other rank has saved nothing"
    one.write(3, {}, last=False)
    late = threading.Timer(0.1, lambda: one.write(6, {}, last=True))
    late.start()
    assert zero.assemble(wait_s=20) == Whole("step-000005", 5)
    late.join()
    assert zero.assemble() is None, "nothing is newer"


def test_an_evaluation_goes_on_to_the_same_verdict(bench: Bench, trained: Path, whole: Try) -> None:
    inputs = {"reward_training": trained, "rollout": whole.output}
    for phase in ("scoring", "policy_update", "feedback"):
        one = bench.start(phase, inputs=inputs)
        assert one.wait(60) == [0]
        inputs[phase] = one.output
    first = bench.start("evaluation", inputs=inputs)
    assert first.wait(60) == [0]
    earliest = first.checkpoints / f"step-{checkpoints(first)[0]:06d}"
    again = bench.start("evaluation", number=2, inputs=inputs, resume_from=earliest)
    assert again.wait(60) == [0]
    assert again.said()[0]["step"] > 1
    assert again.metrics() == first.metrics()


def test_a_torn_checkpoint_is_passed_over(bench: Bench, trained: Path, whole: Try) -> None:
    inputs = {"reward_training": trained}
    first = bench.start("rollout", inputs=inputs)
    until(lambda: len(checkpoints(first)) >= 3)
    first.kill()
    newest = first.newest_checkpoint()
    assert newest is not None
    torn = newest / "rank1.npz"
    torn.write_bytes(torn.read_bytes()[:-200])
    with pytest.raises(Torn):
        read_shard(newest, rank=1, world_size=2)
    older = first.newest_checkpoint()
    assert older is not None and older.name < newest.name
    second = bench.start("rollout", number=2, inputs=inputs, resume_from=older)
    assert second.wait(60) == [0, 0]
    assert fingerprint(second.output) == fingerprint(whole.output)


def test_a_torn_checkpoint_that_is_handed_over_costs_time_but_no_correctness(
    bench: Bench, trained: Path, whole: Try
) -> None:
    torn = bench.store / "step-000004"
    torn.mkdir()
    (torn / "rank0.npz").write_bytes(b"PK half of a file")
    one = bench.start("rollout", inputs={"reward_training": trained}, resume_from=torn)
    assert one.wait(60) == [0, 0]
    assert fingerprint(one.output) == fingerprint(whole.output)


def test_checkpoints_are_announced_only_when_whole(whole: Try) -> None:
    steps = checkpoints(whole)
    assert len(steps) >= 6
    assert steps == sorted(set(steps))
    for line in whole.said():
        if "checkpoint" in line:
            folder = whole.checkpoints / line["checkpoint"]
            reached = [read_shard(folder, rank=rank, world_size=2)[0] for rank in (0, 1)]
            assert min(reached) == line["step"]
    assert not [line for line in whole.said(1) if "checkpoint" in line]
    assert last_step(whole) == last_step(whole, 1) == 48
    assert whole.said()[-1]["progress"] == 1.0


def test_two_live_attempts_are_found_by_the_witness(bench: Bench, trained: Path) -> None:
    inputs = {"reward_training": trained}
    first = bench.start("rollout", inputs=inputs)
    second = bench.start("rollout", number=2, inputs=inputs)
    assert first.wait(60) == second.wait(60) == [0, 0]
    account = read_account(bench.store)
    (found,) = account.duplicates
    assert (found.run_id, found.attempts) == (first.run_id, (1, 2))
    assert found.both_alive_s > 0
    assert account.lost_steps == {first.run_id: 2 * 48}


def test_attempts_of_different_boots_are_not_compared(tmp_path: Path) -> None:
    for number, boot in ((1, "a"), (2, "b")):
        output = tmp_path / "runs" / "r" / f"a{number}" / "output"
        output.mkdir(parents=True)
        line = {"attempt": number, "rank": 0, "pid": 7, "boot": boot, "boottime_s": 1.0}
        lines = [{"event": "start", **line}, {"event": "end", **line, "boottime_s": 2.0}]
        text = "".join(f"{json.dumps(each)}\n" for each in lines) + '{"event": "st'
        (output / FILE).write_text(text)
    account = read_account(tmp_path)
    assert account.duplicates == []
    assert account.not_comparable == ["r"]


def test_a_missing_input_is_said_and_not_retried(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    one = bench.start("scoring")
    assert one.wait(60) == [93]
    assert "needs: [rollout]" in capfd.readouterr().err


def test_a_program_started_by_hand_says_what_to_do() -> None:
    done = subprocess.run(
        [sys.executable, "rollout.py"],
        cwd=Path(__file__).parents[1],
        env={"PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 93
    assert "python -m rft.local" in done.stderr
