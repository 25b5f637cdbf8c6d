"""Rules of the tree that no linter knows."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
LONGER_WITH_REASON: dict[str, str] = {}
"""Module or `module:function` → why it may be longer."""


def tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [ROOT / line for line in listing.splitlines() if (ROOT / line).is_file()]


SOURCES = [p for p in tracked("*.py") if "/tests/" not in str(p) and "/examples/" not in str(p)]
PYTHON = tracked("*.py")
MEMBERS = sorted(p.parent for p in tracked("libs/*/pyproject.toml", "services/*/pyproject.toml"))
SERVICES = [p for p in MEMBERS if p.parent.name == "services"]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_member_claims_the_namespace() -> None:
    """One `whaleflux/__init__.py` would hide every other member."""
    assert not tracked("*/src/whaleflux/__init__.py")


def test_no_tests_folder_is_a_package() -> None:
    """With an `__init__.py` pytest takes one `tests.test_x` for another and runs it twice."""
    assert not [p for p in PYTHON if p.name == "__init__.py" and "tests" in p.parts]


@pytest.mark.parametrize("member", MEMBERS, ids=name)
def test_a_member_is_typed_and_known_everywhere(member: Path) -> None:
    assert (member / "src/whaleflux" / member.name / "py.typed").exists()
    root = (ROOT / "pyproject.toml").read_text()
    assert f'"whaleflux-{member.name}"' in root
    assert f"$MYPY_CONFIG_FILE_DIR/{name(member)}/src" in root


@pytest.mark.parametrize("service", SERVICES, ids=name)
def test_a_service_has_its_card(service: Path) -> None:
    """Each as a heading, as the first cell of a row, or bold; not somewhere in a sentence."""
    text = (service / "README.md").read_text()
    missing = [
        word
        for word in ("owns", "hears", "says", "limits")
        if not re.search(rf"^(#+ {word}\b|\| ?\**{word}\** ?\||\*\*{word}\*\*)", text, re.M | re.I)
    ]
    assert missing == []


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_modules_and_functions_stay_readable(path: Path) -> None:
    text = path.read_text()
    if name(path) not in LONGER_WITH_REASON:
        assert len(text.splitlines()) <= MODULE_LINES_MAX
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if f"{name(path)}:{node.name}" not in LONGER_WITH_REASON:
                assert length <= FUNCTION_LINES_MAX, node.name


SUPPRESSION = re.compile(r"#\s*(noqa|type:\s*ignore|pyright:\s*ignore)(.*)")


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_a_suppression_names_its_rule_and_its_reason(path: Path) -> None:
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        found = SUPPRESSION.search(line)
        if found is None or "SUPPRESSION = " in line:
            continue
        rest = found[2]
        assert re.match(r"\s*[:\[]\s*[A-Za-z0-9_, -]+\]?", rest), f"line {number}: no rule"
        reason = re.sub(r"^\s*[:\[]\s*[A-Za-z0-9_,\- ]*?\]?(?=\s+[#-]\s|$)", "", rest)
        assert re.search(r"[#-]\s+\w+", reason), f"line {number}: no reason"


WORDS_NOT_LEFT = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
TEXTS = [p for p in tracked() if p.suffix not in (".lock", ".svg", ".png", ".woff2")]


def test_nothing_is_left_for_later() -> None:
    left = [name(p) for p in TEXTS if WORDS_NOT_LEFT.search(p.read_text(errors="ignore"))]
    assert left == []


# Folders of one developer's machine; a service's own paths inside an image are none.
MACHINE = re.compile("|".join(("/wo" r"rk/", "/ho" r"me/[a-z]", "/Us" r"ers/", "/ro" r"ot/")))


def test_no_path_of_one_machine_is_kept() -> None:
    assert [name(p) for p in TEXTS if MACHINE.search(p.read_text(errors="ignore"))] == []


TESTS = [p for p in PYTHON if p.name.startswith("test_") or p.name == "conftest.py"]
VIRTUAL_TIME = (
    "services/failover/tests/test_leading.py",
    "services/failover/tests/test_node_leases.py",
)
"""Here the loop's clock jumps, and a sleep costs nothing."""
SLEEPS_WITH_REASON = {
    "libs/client/tests/conftest.py": "its stub of a gateway holds a quiet stream open",
    "services/agent/tests/test_agent_on_the_bus.py": "its stub of failover does not answer",
    "services/failover/tests/test_failover_process.py": (
        "that a paused process says nothing once it is awake has no event to wait for"
    ),
}


def gives_way(call: ast.Call) -> bool:
    return ast.unparse(call.args[0]) == "0"


def sleeps(tree: ast.Module) -> list[int]:
    """Return the lines that sleep: not those that only give way, nor polls inside a loop."""
    polls = {
        id(inner)
        for loop in ast.walk(tree)
        if isinstance(loop, ast.While)
        for inner in ast.walk(loop)
    }
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        waits = called == "asyncio.sleep" and id(node) not in polls and not gives_way(node)
        if waits or called in ("time.sleep", "sleep"):
            found.append(node.lineno)
    return found


@pytest.mark.parametrize("path", TESTS, ids=name)
def test_no_test_sleeps(path: Path) -> None:
    """It waits for an event with a deadline, and polls where there is none to wait for."""
    if name(path) in VIRTUAL_TIME:
        assert "virtual" in path.read_text()
    elif name(path) not in SLEEPS_WITH_REASON:
        assert sleeps(ast.parse(path.read_text())) == []


def test_what_counts_as_a_sleep() -> None:
    def lines(text: str) -> list[int]:
        return sleeps(ast.parse(text))

    assert lines("time.sleep(1)") == lines("asyncio.sleep(0.1)") == [1]
    assert lines("while busy():\n time.sleep(1)") == [2]
    assert lines("asyncio.sleep(0)") == lines("while busy():\n asyncio.sleep(0.1)") == []


@pytest.mark.parametrize("path", TESTS, ids=name)
def test_no_test_is_switched_off(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            assert ast.unparse(node) not in ("pytest.mark.skip", "pytest.mark.xfail"), node.lineno


def test_no_lock_of_addresses_is_kept() -> None:
    assert not [p for p in tracked() if p.name == "uv.lock"]


HOSTS = re.compile("|".join(("py" r"pi\.org", "python" r"hosted\.org", "npm" r"js\.org")))


def test_no_registry_is_named() -> None:
    named = [
        name(p)
        for p in tracked()
        if p.suffix in (".py", ".md", ".toml", ".lock", ".yaml", ".yml", ".txt", "", ".json")
        and HOSTS.search(p.read_text(errors="ignore"))
    ]
    assert named == []


@pytest.mark.parametrize("path", tracked("requirements/*.lock"), ids=name)
def test_every_locked_package_has_hashes_and_no_address(path: Path) -> None:
    text = path.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines
    for line in lines:
        assert re.match(r"[a-z0-9._-]+(\[[a-z,]+\])?==\S+", line), line
        assert "--hash=sha256:" in line
        assert "://" not in line
