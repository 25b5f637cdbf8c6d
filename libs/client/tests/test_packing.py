"""Working folders as archives: the same content is the same hash, and nothing else gets in."""

import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whaleflux.client.ignore_rules import is_ignored, read_rules
from whaleflux.client.packing import packed
from whaleflux.common.errors import Refused


def _hash(folder: Path) -> str:
    with packed(folder) as archive:
        return archive.sha256


def _names(folder: Path) -> list[str]:
    with packed(folder) as archive, tarfile.open(archive.path) as tar:
        return tar.getnames()


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


part = st.text("abcXYZ09_-é ", min_size=1, max_size=6).map(lambda s: f"f{s}")
files = st.dictionaries(
    st.lists(part, min_size=1, max_size=3).map(lambda parts: "/".join([*parts, "file"])),
    st.binary(max_size=200),
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(content=files, data=st.data())
def test_the_same_content_gives_the_same_bytes(
    content: dict[str, bytes], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first, second = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    _write(first, content)
    _write(second, dict(data.draw(st.permutations(list(content.items())))))
    for path in second.rglob("*"):
        os.utime(path, (data.draw(st.integers(0, 2**31)), 7))
    assert _hash(first) == _hash(second)


@settings(max_examples=25, deadline=None)
@given(content=files)
def test_unpacking_gives_back_what_was_packed(
    content: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    _write(source, content)
    with packed(source) as archive, tarfile.open(archive.path) as tar:
        tar.extractall(target)
    found = {p.relative_to(target).as_posix(): p.read_bytes() for p in target.rglob("file")}
    assert found == content


def test_a_changed_byte_or_mode_changes_the_hash(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text("echo 1")
    before = _hash(tmp_path)
    file.chmod(0o755)
    executable = _hash(tmp_path)
    file.write_text("echo 2")
    assert len({before, executable, _hash(tmp_path)}) == 3


def test_ignored_files_stay_at_home(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            ".gitignore": b"*.log\n/data/\n!keep.log\n",
            "a.py": b"",
            "x.log": b"",
            "keep.log": b"",
            "data/big": b"",
            "src/data/small": b"",
            "src/.gitignore": b"tmp*\n",
            "src/tmp1": b"",
            ".git/config": b"",
            "src/__pycache__/a.pyc": b"",
        },
    )
    assert _names(tmp_path) == [
        ".gitignore",
        "a.py",
        "keep.log",
        "src",
        "src/.gitignore",
        "src/data",
        "src/data/small",
    ]


def test_wfignore_goes_before_gitignore(tmp_path: Path) -> None:
    _write(
        tmp_path, {".gitignore": b"*.bin\n", ".wfignore": b"*.txt\n", "a.bin": b"", "b.txt": b""}
    )
    assert _names(tmp_path) == [".gitignore", ".wfignore", "a.bin"]


@pytest.mark.parametrize(
    ("pattern", "path", "ignored"),
    [
        ("*.py", "a/b.py", True),
        ("/a.py", "b/a.py", False),
        ("a/**/z", "a/b/c/z", True),
        ("a/**/z", "a/z", True),
        ("**/cache", "x/y/cache", True),
        ("out[0-9]", "out7", True),
        ("out[!0-9]", "out7", False),
        ("out[", "out[", True),
        ("a?c", "a/c", False),
        ("doc/*.md", "doc/sub/x.md", False),
        ("\\#x", "#x", True),
    ],
)
def test_patterns_mean_what_they_mean_in_git(pattern: str, path: str, ignored: bool) -> None:
    assert is_ignored(read_rules(pattern), path, folder=False) is ignored


def test_a_folder_that_is_too_large_names_its_largest_files(tmp_path: Path) -> None:
    _write(tmp_path, {"model.bin": b"x" * 3_000, "a.py": b"x"})
    with pytest.raises(Refused, match=r"model\.bin.*\.wfignore"), packed(tmp_path, bytes_max=1_000):
        pass


def test_a_link_out_of_the_folder_is_refused_and_one_inside_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "inside").symlink_to("a")
    with packed(tmp_path) as archive, tarfile.open(archive.path) as tar:
        assert tar.getmember("inside").linkname == "a"
    (tmp_path / "outside").symlink_to("../elsewhere")
    with pytest.raises(Refused, match=r"'outside' leads to '\.\./elsewhere'"), packed(tmp_path):
        pass


def test_a_folder_that_is_not_there_is_said_by_name(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no folder"), packed(tmp_path / "nothing"):
        pass
