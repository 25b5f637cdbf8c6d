"""The demo keeps its promises, also when a node is lost in its middle."""

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from whaleflux.local.processes import of_state

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(240)]


def last_line(text: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return body


def test_the_demo_improves_the_reward_and_leaves_nothing_behind(home: Any) -> None:
    done = home.verb("demo", "--json", timeout_s=180)
    assert done.returncode == 0, done.stderr[-3000:]
    told = last_line(done.stdout)
    assert told["ok"] is True and told["simulated"] is True
    assert told["reward_after"] > told["reward_before"]
    assert told["phases_run"] > 5
    assert told["duplicate_attempts"] == 0 and told["lost_steps"] == 0
    assert told["handover_gap_ms_p95"] > 0
    assert of_state(home.root) == ()
    assert list((home.root / "tmp").iterdir()) == []


def test_a_killed_agent_costs_only_the_work_since_the_checkpoint(home: Any) -> None:
    done = home.verb("demo", "--json", "--kill", "agent", timeout_s=220)
    assert done.returncode == 0, done.stderr[-3000:]
    told = last_line(done.stdout)
    assert told["ok"] is True
    assert told["killed_node"] not in told["resumed_on"]
    assert told["resumed_from_step"] is not None
    assert told["duplicate_attempts"] == 0
    assert of_state(home.root) == ()


def test_ctrl_c_takes_everything_down(home: Any) -> None:
    process = subprocess.Popen(
        home.command("demo", "--json"),
        env=dict(home.environment),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if b"submitted" in line:
            break
    os.kill(process.pid, signal.SIGINT)
    said = process.stderr.read().decode()
    assert process.wait(timeout=60) == 130, said
    assert "nothing is left running" in said
    assert of_state(home.root) == ()


def test_what_cannot_be_killed_is_named(home: Any) -> None:
    done = home.verb("demo", "--kill", "everything")
    assert done.returncode == 1
    assert "can kill agent" in done.stderr
