"""Runs the command line's verbs in processes of their own, in folders of their own."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from whaleflux.local.processes import of_state

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_S = 30.0
POLL_S = 0.05


@dataclass(frozen=True)
class Home:
    """A user's folders, all below one scratch folder."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def environment(self) -> Mapping[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("WHALEFLUX_")}
        return {
            **kept,
            "HOME": str(self.root),
            "XDG_CONFIG_HOME": str(self.root / "config"),
            "XDG_STATE_HOME": str(self.root / "xdg-state"),
            "TMPDIR": str(self.root / "tmp"),
        }

    def verb(self, name: str, *arguments: str, timeout_s: float = 110.0) -> Any:
        """Run a verb to its end."""
        return subprocess.run(
            self.command(name, *arguments),
            env=dict(self.environment),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def command(self, name: str, *arguments: str) -> list[str]:
        code = f"from whaleflux.local.commands import {name}; {name}()"
        return [sys.executable, "-c", code, *arguments]

    def status(self) -> dict[str, Any]:
        done = self.verb("status", "--state", str(self.state), "-o", "json")
        body: dict[str, Any] = json.loads(done.stdout)
        return body


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Give a home; whatever of it still runs afterwards fails the test and is ended."""
    (tmp_path / "tmp").mkdir()
    one = Home(tmp_path)
    yield one
    one.verb("down", "--state", str(one.state))
    left = of_state(tmp_path)
    for process in left:
        os.kill(process.pid, 9)
    assert not left


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Return a function that waits until something holds, for a while."""

    def wait(holds: Callable[[], bool]) -> None:
        pause = threading.Event()
        for _ in range(int(DEADLINE_S / POLL_S)):
            if holds():
                return
            pause.wait(POLL_S)
        raise AssertionError(f"not within {DEADLINE_S} s")

    return wait
