"""A working folder as one archive whose bytes depend on the content alone.

Entries are sorted, owners and times are zero, and modes are 0644 or 0755: the same files give the
same hash on every machine with the same compression library, so an unchanged folder is uploaded
once.
"""

import gzip
import hashlib
import os
import posixpath
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from whaleflux.client.ignore_rules import GIT_FILE, OWN_FILE, Rule, is_ignored, read_rules
from whaleflux.common.errors import Refused

BYTES_MAX = 512 * 2**20
"""Unpacked. Code fits; data belongs into a store."""
ENTRIES_MAX = 50_000
COMPRESSION_LEVEL = 6
LARGEST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Archive:
    """A packed folder; *sha256* is its name in the store."""

    path: Path
    sha256: str
    bytes: int
    entries: int
    unpacked_bytes: int

    @property
    def reference(self) -> str:
        """What stands in a workload's `workdir` once the archive is uploaded."""
        return f"sha256:{self.sha256}"


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    source: Path
    info: os.stat_result


@contextmanager
def packed(folder: Path, *, bytes_max: int = BYTES_MAX) -> Iterator[Archive]:
    """Give the archive of *folder* in a scratch file that goes away afterwards.

    Raises:
        Refused: There is no such folder, a file cannot be read, a link leads out, or it is too big.

    """
    entries = list_entries(folder, bytes_max=bytes_max)
    with tempfile.TemporaryDirectory(prefix="whaleflux-workdir-") as scratch:
        target = Path(scratch) / "workdir.tar.gz"
        with target.open("wb") as file:
            _write(entries, file)
        yield Archive(
            path=target,
            sha256=_sha256(target),
            bytes=target.stat().st_size,
            entries=len(entries),
            unpacked_bytes=sum(_size(e) for e in entries),
        )


def list_entries(folder: Path, *, bytes_max: int = BYTES_MAX) -> list[_Entry]:
    """Return what of *folder* is packed, in the order of the archive.

    Raises:
        Refused: There is no such folder, a link leads out of it, or it is too big.

    """
    if not folder.is_dir():
        raise Refused(f"workdir: there is no folder {str(folder)!r}.", code="no_workdir")
    own = _rules(folder / OWN_FILE, "")
    found = sorted(_walk(folder, "", own, own is not None), key=lambda e: e.path.encode())
    total = sum(_size(e) for e in found)
    if total > bytes_max or len(found) > ENTRIES_MAX:
        largest = sorted(found, key=_size, reverse=True)[:LARGEST_SHOWN]
        names = ", ".join(f"{e.path} ({_mib(_size(e))})" for e in largest)
        raise Refused(
            f"workdir: {str(folder)!r} holds {len(found)} entries with {_mib(total)}; at most "
            f"{ENTRIES_MAX} entries with {_mib(bytes_max)} are uploaded. The largest are {names}. "
            f"Name what stays at home in {OWN_FILE}, and put data into a store.",
            code="workdir_too_large",
        )
    return found


def _walk(folder: Path, base: str, rules: tuple[Rule, ...] | None, own: bool) -> Iterator[_Entry]:
    known = rules or ()
    if not own:
        known = (*known, *(_rules(folder / GIT_FILE, base) or ()))
    try:
        children = sorted(os.scandir(folder), key=lambda c: c.name)
    except OSError as error:
        raise Refused(f"workdir: cannot read {str(folder)!r}: {error.strerror}.") from error
    for child in children:
        path = f"{base}/{child.name}" if base else child.name
        is_folder = child.is_dir(follow_symlinks=False)
        if is_ignored(known, path, folder=is_folder):
            continue
        info = child.stat(follow_symlinks=False)
        if child.is_symlink():
            _check_link(path, os.readlink(child.path))
        elif not is_folder and not stat.S_ISREG(info.st_mode):
            continue
        yield _Entry(path, Path(child.path), info)
        if is_folder:
            yield from _walk(Path(child.path), path, known, own)


def _check_link(path: str, target: str) -> None:
    """Refuse links that would lead nowhere, or somewhere else, on another machine."""
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if posixpath.isabs(target) or inside == ".." or inside.startswith("../"):
        raise Refused(
            f"workdir: the link {path!r} leads to {target!r}, outside the folder. Copy what it "
            f"names into the folder, or name the link in {OWN_FILE}.",
            code="workdir_link",
        )


def _rules(file: Path, base: str) -> tuple[Rule, ...] | None:
    try:
        return read_rules(file.read_text(encoding="utf-8", errors="replace"), base=base)
    except (FileNotFoundError, IsADirectoryError):
        return None


def _write(entries: list[_Entry], file: IO[bytes]) -> None:
    with (
        gzip.GzipFile(
            filename="", mode="wb", fileobj=file, mtime=0, compresslevel=COMPRESSION_LEVEL
        ) as zipped,
        tarfile.open(fileobj=cast(IO[bytes], zipped), mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for entry in entries:
            _add(tar, entry)


def _add(tar: tarfile.TarFile, entry: _Entry) -> None:
    header = tarfile.TarInfo(entry.path)
    header.mtime = 0
    mode = entry.info.st_mode
    if stat.S_ISDIR(mode):
        header.type, header.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(header)
    elif stat.S_ISLNK(mode):
        header.type, header.mode = tarfile.SYMTYPE, 0o777
        header.linkname = os.readlink(entry.source)
        tar.addfile(header)
    else:
        header.mode = 0o755 if mode & 0o111 else 0o644
        header.size = entry.info.st_size
        try:
            with entry.source.open("rb") as content:
                tar.addfile(header, content)
        except OSError as error:
            raise Refused(
                f"workdir: cannot read {entry.path!r}: {error.strerror or 'it changed meanwhile'}.",
                code="workdir_unreadable",
            ) from error


def _size(entry: _Entry) -> int:
    return entry.info.st_size if stat.S_ISREG(entry.info.st_mode) else 0


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
