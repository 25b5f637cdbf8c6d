import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from whaleflux.agent.shell import workdirs
from whaleflux.common.contracts.assignment import blob_file
from whaleflux.common.errors import Refused


def put(store: Path, fill: Callable[[tarfile.TarFile], None]) -> str:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        fill(tar)
    digest = hashlib.sha256(raw.getvalue()).hexdigest()
    target = store / blob_file(digest)
    target.parent.mkdir(parents=True)
    target.write_bytes(raw.getvalue())
    return digest


def entry(name: str, data: bytes = b"x", **fields: object) -> Callable[[tarfile.TarFile], None]:
    def fill(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        for key, value in fields.items():
            setattr(info, key, value)
        tar.addfile(info, io.BytesIO(data))

    return fill


def provide(tmp_path: Path, digest: str) -> Path:
    (tmp_path / "cache").mkdir(exist_ok=True)
    target = tmp_path / "work"
    workdirs.provide(
        f"sha256:{digest}", store=tmp_path / "store", cache=tmp_path / "cache", target=target
    )
    return target


@pytest.mark.parametrize(
    "fill",
    [
        entry("../outside"),
        entry("a/../../outside"),
        entry("/abs/file"),
        entry("link", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        entry("link", b"", type=tarfile.SYMTYPE, linkname="../../x"),
        entry("dev", b"", type=tarfile.CHRTYPE),
    ],
    ids=["parent", "through parent", "absolute", "absolute link", "relative link", "device"],
)
def test_an_archive_that_reaches_outside_is_refused(
    tmp_path: Path, fill: Callable[[tarfile.TarFile], None]
) -> None:
    with pytest.raises(Refused, match="cannot be unpacked"):
        provide(tmp_path, put(tmp_path / "store", fill))
    assert not (tmp_path / "outside").exists()
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_lies_behind_a_link_is_refused(tmp_path: Path) -> None:
    """Each link alone stays inside; written through, they might not."""

    def fill(tar: tarfile.TarFile) -> None:
        entry("a/b", b"", type=tarfile.DIRTYPE)(tar)
        entry("a/up", b"", type=tarfile.SYMTYPE, linkname="b")(tar)
        entry("a/up/file")(tar)

    with pytest.raises(Refused, match="behind a link"):
        provide(tmp_path, put(tmp_path / "store", fill))


def test_folders_links_modes_and_the_folder_itself_come_as_they_were(tmp_path: Path) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        entry("./", b"", type=tarfile.DIRTYPE)(tar)
        entry("./bin/run", b"#!/bin/sh", mode=0o6755)(tar)
        entry("./data", b"d", mode=0o644)(tar)
        entry("./bin/link", b"", type=tarfile.SYMTYPE, linkname="../data")(tar)

    target = provide(tmp_path, put(tmp_path / "store", fill))
    assert (target / "bin/link").read_bytes() == b"d"
    assert (target / "bin/run").stat().st_mode & 0o7777 == 0o755
    assert (target / "data").stat().st_mode & 0o7777 == 0o644


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    digest = put(tmp_path / "store", entry("file"))
    (tmp_path / "store" / blob_file(digest)).write_bytes(b"other")
    with pytest.raises(Refused, match="is damaged"):
        provide(tmp_path, digest)


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workdirs, "BYTES_MAX", 1000)
    with pytest.raises(Refused, match="more than"):
        provide(tmp_path, put(tmp_path / "store", entry("file", b"0" * 2000)))


def test_the_archive_is_read_once_and_the_oldest_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workdirs, "KEPT", 2)
    digests = [put(tmp_path / "store", entry(f"file{i}")) for i in range(3)]
    for digest in digests:
        provide(tmp_path, digest)
    assert len(list((tmp_path / "cache").iterdir())) == 2
    (tmp_path / "store" / blob_file(digests[2])).unlink()
    provide(tmp_path, digests[2])


@pytest.mark.parametrize("name", ["sha256:../../x", "sha256:", "folder", "sha256:" + "g" * 64])
def test_a_name_that_is_no_digest_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match="64 hexadecimal digits"):
        workdirs.provide(name, store=tmp_path, cache=tmp_path, target=tmp_path / "t")
