"""`./wf test` says one last line for its two runs, and passes on how they ended."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
Fake = Callable[[str, str], Any]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Return the module with an interpreter that plays pytest: a script for each of both runs."""
    spec = importlib.util.spec_from_file_location("tasks_under_test", ROOT / "tasks.py")
    assert spec is not None and spec.loader is not None
    tasks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tasks)

    def playing(alone: str, others: str) -> Any:
        player = tmp_path / "python"
        player.write_text(
            f'#!/bin/bash\ncase "$*" in *"not alone"*) {others} ;; *) {alone} ;; esac\n'
        )
        player.chmod(0o755)
        monkeypatch.setattr(tasks.sys, "executable", str(player))
        return tasks

    return playing


def last_line(capfd: pytest.CaptureFixture[str]) -> str:
    return capfd.readouterr().out.splitlines()[-1].partition(" in ")[0]


def test_what_both_runs_counted_is_added_up(fake: Fake, capfd: pytest.CaptureFixture[str]) -> None:
    tasks = fake(
        "printf '..\\n2 passed, 9 deselected in 1.00s\\n'",
        "printf 'F.\\n1 failed, 3 passed, 1 warning, 2 errors in 61.00s (0:01:01)\\n'; exit 1",
    )
    assert tasks.test([]) == 1
    assert last_line(capfd) == "5 passed, 1 failed, 1 warning, 2 errors"


def test_a_tier_without_tests_is_no_failure(fake: Fake, capfd: pytest.CaptureFixture[str]) -> None:
    tasks = fake("echo '7 deselected in 0.10s'; exit 5", "echo '4 passed in 1.00s'")
    assert tasks.test(["--all"]) == 0
    assert last_line(capfd) == "4 passed"


def test_a_failure_among_those_that_run_alone_is_not_forgotten(
    fake: Fake, capfd: pytest.CaptureFixture[str]
) -> None:
    tasks = fake("echo '1 failed in 1.00s'; exit 1", "echo '4 passed in 1.00s'")
    assert tasks.test([]) == 1
    assert last_line(capfd) == "1 failed, 4 passed"


def test_after_an_interruption_nothing_else_starts(
    fake: Fake, capfd: pytest.CaptureFixture[str]
) -> None:
    tasks = fake("echo '1 passed in 1.00s'; exit 2", "echo '4 passed in 1.00s'")
    assert tasks.test([]) == 2
    assert last_line(capfd) == "1 passed"


def test_other_words_go_to_pytest(fake: Fake, capfd: pytest.CaptureFixture[str]) -> None:
    tasks = fake('echo "$*"', "false")
    assert tasks.test(["services", "-k", "gang"]) == 0
    assert capfd.readouterr().out == "-m pytest -q -m not slow services -k gang\n"
