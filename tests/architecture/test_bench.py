"""Every benchmark keeps the contract of `./wf bench`, and the runner keeps its own."""

import importlib.util
import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def runner() -> Any:
    spec = importlib.util.spec_from_file_location("bench_runner", ROOT / "bench/run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RUNNER = runner()
NAMES = RUNNER.available()


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "bench/run.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_has_what_the_runner_needs(name: str) -> None:
    module: ModuleType = RUNNER.load(name)
    assert name == module.NAME
    assert NAMES[name], "its docstring says what it measures"
    assert all(isinstance(value, float) for value in module.PEERS.values())
    assert all(isinstance(note, str) for note in module.NOTES)
    assert list(inspect.signature(module.run).parameters) == ["quick"]


def test_the_list_names_them_all_and_the_runner_is_none_of_them() -> None:
    done = bench("--list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(NAMES)
    assert "run" not in NAMES


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    done = bench("nope")
    assert done.returncode == 2
    assert "'nope'" in done.stderr and "submit-latency" in done.stderr


MODULE = SimpleNamespace(NAME="speed", PEERS={"a_per_s": 10.0}, NOTES=["how"])


def test_the_object_has_four_keys_and_never_a_number_that_json_does_not_know() -> None:
    line = RUNNER.as_json(MODULE, {"a_per_s": 25.0, "b_s": float("nan")})
    assert json.loads(line) == {
        "bench": "speed",
        "results": {"a_per_s": 25.0, "b_s": None},
        "peers": {"a_per_s": 10.0},
        "notes": ["how"],
    }
    assert "\n" not in line


def test_the_table_sets_ours_beside_the_peers() -> None:
    head, first, second, note = RUNNER.as_table(MODULE, {"a_per_s": 25.0, "b_s": 1.0}).split("\n")
    assert head.split() == ["speed", "ours", "peer", "ours/peer"]
    assert first.split() == ["a_per_s", "25", "10", "2.50"]
    assert second.split() == ["b_s", "1", "-", "-"]
    assert note == "- how"


@pytest.mark.integration
@pytest.mark.slow
def test_a_real_one_ends_with_its_object() -> None:
    done = bench("append", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["bench"] == "append"
    assert {"appends_per_s", "atomic_batches_per_s"} <= set(document["results"])
