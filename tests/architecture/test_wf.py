"""The launcher says in one sentence what is missing, and starts at once when nothing is."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
TOOLS = (
    "bash",
    "dirname",
    "readlink",
    "cat",
    "cksum",
    "getconf",
    "mkdir",
    "flock",
    "tail",
    "printf",
)


@pytest.fixture
def checkout() -> Iterator[Path]:
    """Return what the launcher needs of a checkout, in a folder that anybody can read."""
    folder = Path(tempfile.mkdtemp(prefix="wf-"))
    folder.chmod(0o755)
    shutil.copy(ROOT / "wf", folder / "wf")
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    for member in (*ROOT.glob("libs/*/pyproject.toml"), *ROOT.glob("services/*/pyproject.toml")):
        target = folder / member.relative_to(ROOT)
        target.parent.mkdir(parents=True)
        shutil.copy(member, target)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def path_without_python(tmp_path: Path) -> str:
    """Return a PATH that holds the launcher's tools and no Python."""
    for tool in TOOLS:
        found = shutil.which(tool)
        if found is not None:
            (tmp_path / tool).symlink_to(found)
    return str(tmp_path)


def wf(
    checkout: Path, *arguments: str, user: int | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run the launcher with an environment of its own."""
    base = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent"}
    return subprocess.run(
        [str(checkout / "wf"), *arguments],
        env=base | environment,
        user=user,
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )


def only_sentence(done: "subprocess.CompletedProcess[str]") -> str:
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("wf: ")]
    return lines[-1]


def test_without_a_python_it_says_which_one_and_how(
    checkout: Path, path_without_python: str
) -> None:
    said = only_sentence(wf(checkout, "jobs", PATH=path_without_python))
    assert "Python 3.11, 3.12 or 3.13 is needed" in said
    assert "WF_PYTHON" in said


@pytest.mark.parametrize("libc", ["glibc 2.17", "none"])
def test_an_old_system_is_told_why_it_will_not_do(checkout: Path, libc: str) -> None:
    said = only_sentence(wf(checkout, "jobs", WF_LIBC=libc))
    assert "glibc 2.28 or newer" in said


def test_a_folder_that_cannot_be_written_is_said_so(checkout: Path) -> None:
    checkout.chmod(0o555)
    user = NOBODY if os.getuid() == 0 else None
    said = only_sentence(wf(checkout, "jobs", user=user))
    checkout.chmod(0o755)
    assert "cannot be written to; copy the checkout" in said


@pytest.mark.slow
def test_without_an_index_it_says_what_could_not_be_installed(checkout: Path) -> None:
    closed = "http://127.0.0.1:9/simple"
    done = wf(
        checkout,
        "jobs",
        PIP_INDEX_URL=closed,
        UV_INDEX_URL=closed,
        PIP_RETRIES="0",
        PIP_CONFIG_FILE="/dev/null",
        HOME=str(checkout),
    )
    said = only_sentence(done)
    assert "could not be installed" in said
    assert "PIP_INDEX_URL" in said


def test_help_needs_nothing(checkout: Path, path_without_python: str) -> None:
    done = wf(checkout, "help", PATH=path_without_python)
    assert done.returncode == 0
    for word in ("demo", "submit", "test [--all]", "bench NAME"):
        assert word in done.stdout
    assert not (checkout / ".venv").exists()


def test_it_works_through_a_link_from_elsewhere(checkout: Path, tmp_path: Path) -> None:
    link = tmp_path / "a link with spaces"
    link.symlink_to(checkout / "wf")
    done = subprocess.run([str(link), "help"], cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0


def test_the_launcher_is_sound_shell() -> None:
    done = subprocess.run(
        ["bash", "-n", str(ROOT / "wf")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len((ROOT / "wf").read_text().splitlines()) < 140
