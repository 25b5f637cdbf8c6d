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
    assert len((ROOT / "wf").read_text().splitlines()) < 120


FAKE_PYTHON = """#!/bin/bash
# A Python 3.12 whose environments hold this same script, and whose pip only says what it was asked.
case "$*" in
    --version) echo "Python ${FAKE_VERSION:-3.12.0}" ;;
    "-m venv "*)
        mkdir -p "$3/bin" && cp "$FAKE" "$3/bin/python"
        [ -z "${FAKE_VENV_FAILS:-}" ] || exit 1
        printf '#!/bin/bash\\necho "ran $*"; exit 11\\n' >"$3/bin/whaleflux"
        chmod +x "$3/bin/whaleflux" ;;
    "-m pip install "*) echo "$*" >>"$FAKE_LOG" ;;
esac
"""


@pytest.fixture
def fake(checkout: Path, path_without_python: str, tmp_path: Path) -> dict[str, str]:
    """Return an environment whose Python and pip do nothing but answer."""
    for tool in ("rm", "cp", "chmod"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    python = tmp_path / "python3.12"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    return {"PATH": path_without_python, "FAKE": str(python), "FAKE_LOG": str(checkout / "pip.log")}


def start(
    checkout: Path, environment: dict[str, str], *arguments: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(checkout / "wf"), *(arguments or ("jobs",))],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def installs(checkout: Path) -> list[str]:
    return (checkout / "pip.log").read_text().splitlines()


def test_the_first_start_installs_by_hash_and_the_second_nothing(
    checkout: Path, fake: dict[str, str]
) -> None:
    first = start(checkout, fake, "jobs", "-q")
    assert (first.returncode, first.stdout) == (11, "ran jobs -q\n")
    foreign, members = installs(checkout)
    assert "--require-hashes -r requirements/build.lock -r requirements/runtime.lock" in foreign
    assert "dev.lock" not in foreign
    assert "--no-deps --no-build-isolation -e ./libs/" in members
    second = start(checkout, fake)
    assert (second.returncode, second.stderr) == (11, "")
    assert len(installs(checkout)) == 2


def test_tests_bring_their_tools_and_everything_else_then_needs_no_other_set_up(
    checkout: Path, fake: dict[str, str]
) -> None:
    start(checkout, fake, "test")
    assert "-r requirements/dev.lock" in installs(checkout)[0]
    assert start(checkout, fake).stderr == ""
    assert len(installs(checkout)) == 2


def test_a_changed_lock_is_installed_into_the_environment_that_is_there(
    checkout: Path, fake: dict[str, str]
) -> None:
    start(checkout, fake)
    (checkout / ".venv/kept").touch()
    with (checkout / "requirements/runtime.lock").open("a") as lock:
        lock.write("# changed\n")
    start(checkout, fake)
    assert len(installs(checkout)) == 4
    assert (checkout / ".venv/kept").exists()


def test_a_checkout_that_moved_gets_a_new_environment(checkout: Path, fake: dict[str, str]) -> None:
    """Scripts of the old one name the old folder."""
    start(checkout, fake)
    stamp = checkout / ".venv/.wf-stamp"
    stamp.write_text(stamp.read_text().replace(str(checkout), "/elsewhere"))
    (checkout / ".venv/stale").touch()
    assert start(checkout, fake).returncode == 11
    assert not (checkout / ".venv/stale").exists()


def test_an_interpreter_that_is_gone_is_replaced(checkout: Path, fake: dict[str, str]) -> None:
    start(checkout, fake)
    (checkout / ".venv/bin/python").unlink()
    (checkout / ".venv/bin/python").symlink_to("/nonexistent/python")
    assert start(checkout, fake).returncode == 11


def test_a_python_without_venv_is_named_each_time_and_leaves_nothing(
    checkout: Path, fake: dict[str, str]
) -> None:
    for _ in range(2):
        said = only_sentence(start(checkout, fake | {"FAKE_VENV_FAILS": "1"}))
        assert "no working venv module" in said
        assert "python3-venv" in said
        assert not (checkout / ".venv").exists()


def test_pip_takes_over_where_uv_cannot(
    checkout: Path, fake: dict[str, str], tmp_path: Path
) -> None:
    """A mirror or certificate may be configured for pip alone."""
    uv = tmp_path / "uv"
    uv.write_text('#!/bin/bash\n[ "$1" = venv ] && exec "$FAKE" -m venv "${!#}"\nexit 2\n')
    uv.chmod(0o755)
    done = start(checkout, fake)
    assert "uv could not; trying pip" in done.stderr
    assert done.returncode == 11
    assert len(installs(checkout)) == 2


def test_of_starts_at_the_same_time_one_sets_up(checkout: Path, fake: dict[str, str]) -> None:
    starts = [
        subprocess.Popen(
            [str(checkout / "wf"), "jobs"],
            env=fake,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(4)
    ]
    assert [start.wait(timeout=60) for start in starts] == [11] * 4
    assert len(installs(checkout)) == 2


def test_a_python_may_be_named_even_with_spaces(
    checkout: Path, fake: dict[str, str], tmp_path: Path
) -> None:
    named = tmp_path / "my python"
    (tmp_path / "python3.12").rename(named)
    environment = fake | {"FAKE": str(named), "WF_PYTHON": str(named)}
    assert start(checkout, environment).returncode == 11
