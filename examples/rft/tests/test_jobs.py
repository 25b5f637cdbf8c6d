"""The small jobs do what their comments say."""

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from whaleflux.client.workload_file import from_yaml

JOBS = Path(__file__).resolve().parents[2] / "jobs"


def start(tmp_path: Path, *, job: str, resume_from: str = "", **envs: str) -> subprocess.Popen[str]:
    spec = from_yaml(JOBS / f"{job}.yaml")
    folders = {name: tmp_path / name for name in ("checkpoints", "output")}
    for folder in folders.values():
        folder.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        **spec.envs,
        **envs,
        "WHALEFLUX_NODE": "n1",
        "WHALEFLUX_GPU_TYPE": "H100",
        "CUDA_VISIBLE_DEVICES": "0",
        "WHALEFLUX_CHECKPOINT_DIR": str(folders["checkpoints"]),
        "WHALEFLUX_OUTPUT_DIR": str(folders["output"]),
        "WHALEFLUX_REPORT": str(tmp_path / "report.jsonl"),
        "WHALEFLUX_RESUME_FROM": resume_from,
    }
    return subprocess.Popen(["bash", "-c", spec.phases[0].run], env=environment, text=True)


def test_hello_says_where_it_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert start(tmp_path, job="hello").wait(20) == 0
    assert capfd.readouterr().out == "Hello from n1, GPU 0 (H100)\n"


def test_every_member_of_the_gang_leaves_its_mark(tmp_path: Path) -> None:
    ranks = [
        start(
            tmp_path, job="gang", RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="a", MASTER_PORT="1"
        )
        for rank in (0, 1)
    ]
    assert [member.wait(20) for member in ranks] == [0, 0]
    assert sorted(p.name for p in (tmp_path / "output").iterdir()) == ["member-0", "member-1"]


def test_checkpointing_stops_after_saving_and_goes_on(tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    first = start(tmp_path, job="checkpointing", STEPS="3")
    pause = threading.Event()
    for _ in range(4000):
        if report.exists() and '"step": 1' in report.read_text():
            break
        pause.wait(0.005)
    first.send_signal(signal.SIGTERM)
    assert first.wait(20) == 85
    (saved,) = (tmp_path / "checkpoints").iterdir()
    assert f'{{"checkpoint": "{saved.name}"' in report.read_text()
    assert not (tmp_path / "output" / "result").exists()

    second = start(tmp_path, job="checkpointing", STEPS="3", resume_from=str(saved))
    assert second.wait(20) == 0
    assert (tmp_path / "output" / "result").read_text() == "all 3 steps done\n"
    steps = [line for line in report.read_text().splitlines() if "progress" in line]
    assert steps[-1] == '{"step": 3, "progress": 1.000}'
    assert len(steps) == 3, "no step was done twice"
