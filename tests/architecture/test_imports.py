"""The rules about imports cover the whole tree, and each of them bites."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RULES: dict[str, dict[str, Any]] = {
    rule["id"]: rule
    for rule in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
}
SERVICES = sorted(
    f"whaleflux.{path.parent.name}" for path in ROOT.glob("services/*/pyproject.toml")
)
LIBS = {f"whaleflux.{path.parent.name}" for path in ROOT.glob("libs/*/pyproject.toml")}
VIOLATIONS = [
    ("independent", "whaleflux.scheduler.shell.planted", "import whaleflux.failover.main"),
    ("layers", "whaleflux.common.planted", "import whaleflux.client"),
    ("layers", "whaleflux.client.planted", "import whaleflux.scheduler.main"),
    ("layers", "whaleflux.sim.planted", "import whaleflux.local.stack"),
    ("shape", "whaleflux.scheduler.planted", ""),
    ("shape", "whaleflux.scheduler.core.planted", "import whaleflux.scheduler.shell"),
    ("core-shape", "whaleflux.scheduler.core.state", "import whaleflux.scheduler.core.decide"),
    ("pure", "whaleflux.scheduler.core.planted", "import time"),
    ("pure", "whaleflux.failover.core.planted", "from uuid import uuid5"),
    ("pure", "whaleflux.common.contracts.planted", "import whaleflux.common.jetstream"),
    ("test-kit", "whaleflux.scheduler.shell.planted", "import whaleflux.common.testing.loop"),
    ("nats", "whaleflux.gateway.shell.planted", "from nats.aio.client import Client"),
    ("redis", "whaleflux.gateway.shell.planted", "import redis.asyncio"),
    ("nvml", "whaleflux.agent.shell.planted", "import pynvml"),
    ("web", "whaleflux.gateway.core.planted", "import fastapi"),
    ("web", "whaleflux.telemetry.shell.planted", "from starlette.types import ASGIApp"),
    ("cycles", "whaleflux.common.clock", "import whaleflux.common.runtime"),
]
"""Rule, the module that breaks it, and the line that does."""
CHECKER = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def test_every_service_is_named_where_services_are() -> None:
    assert sorted(RULES["independent"]["modules"]) == SERVICES
    assert sorted(RULES["shape"]["containers"]) == SERVICES
    layers = [set(layer.split(" | ")) for layer in RULES["layers"]["layers"]]
    assert set(SERVICES) in layers
    assert set.union(*layers) == {*SERVICES, *LIBS}


def test_every_rule_is_broken_once_below() -> None:
    assert set(RULES) == {rule for rule, _module, _line in VIOLATIONS}


def copied(folder: Path) -> dict[str, str]:
    """Copy all sources to *folder* and return an environment in which no others are found."""
    sources = []
    for member in (*ROOT.glob("libs/*/src"), *ROOT.glob("services/*/src")):
        target = folder / member.relative_to(ROOT)
        shutil.copytree(member, target, ignore=shutil.ignore_patterns("__pycache__"))
        sources.append(str(target))
    shutil.copy(ROOT / "pyproject.toml", folder)
    sources.append(sysconfig.get_path("purelib"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sources)}


def broken(folder: Path, environment: dict[str, str]) -> set[str]:
    # Without `site` the editable members of this checkout are not on the path.
    done = subprocess.run(
        [sys.executable, "-S", "-c", CHECKER, "--no-cache"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    names = set(re.findall(r"^(.+?) BROKEN\b", done.stdout, re.M))
    assert "Contracts: " in done.stdout, done.stdout + done.stderr
    return {rule_id for rule_id, rule in RULES.items() if rule["name"] in names}


@pytest.mark.slow
def test_each_rule_finds_what_it_forbids(tmp_path: Path) -> None:
    environment = copied(tmp_path)
    assert broken(tmp_path, environment) == set()
    missed = []
    for rule, module, line in VIOLATIONS:
        part = module.split(".")[1]
        (source,) = tmp_path.glob(f"*/{part}/src")
        path = source / Path(*module.split(".")).with_suffix(".py")
        before = path.read_text() if path.exists() else None
        path.write_text(f"{before or ''}\n{line}\n")
        if rule not in broken(tmp_path, environment):
            missed.append((rule, module, line))
        if before is None:
            path.unlink()
        else:
            path.write_text(before)
    assert missed == []
