"""The folder a member starts in: unpacked once for the node, copied afresh for each member."""

import hashlib
import os
import shutil
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

from whaleflux.common.contracts.assignment import blob_file
from whaleflux.common.errors import Refused

ENTRIES_MAX = 200_000
BYTES_MAX = 16 * 2**30
"""An archive that unpacks to more is refused: it would fill the node's disk."""
KEPT = 16
"""Unpacked archives kept on the node; the least recently used goes first."""
READ_BYTES = 1 << 20


def provide(workdir: str | None, *, store: Path, cache: Path, target: Path) -> None:
    """Make *target* a private copy of what *workdir* (`sha256:<hex>`) names; empty for None.

    Raises:
        Refused: The archive is missing, is not what its name says, or would unpack outside.

    """
    if workdir is None:
        target.mkdir(mode=0o700, exist_ok=True)
        return
    digest = workdir.removeprefix("sha256:")
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise Refused(f"workdir {workdir!r} is not 'sha256:' and 64 hexadecimal digits")
    unpacked = cache / digest
    if not unpacked.is_dir():
        _unpack(store / blob_file(digest), digest, unpacked)
        _drop_oldest(cache, keep=unpacked)
    os.utime(unpacked)
    shutil.copytree(unpacked, target, symlinks=True, dirs_exist_ok=True)


def _unpack(archive: Path, digest: str, target: Path) -> None:
    try:
        found = _sha256(archive)
    except OSError as error:
        raise Refused(f"workdir archive {digest[:12]} is not in the store: {error}") from error
    if found != digest:
        raise Refused(f"workdir archive {digest[:12]} is damaged: its content has hash {found}")
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=".unpacking-"))
    try:
        with tarfile.open(archive, "r:*") as tar:
            _extract(tar, temporary)
        os.rename(temporary, target)
    except (tarfile.TarError, EOFError, OSError) as error:
        if not target.is_dir():
            raise Refused(f"workdir archive {digest[:12]} cannot be unpacked: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _extract(tar: tarfile.TarFile, target: Path) -> None:
    size = 0
    for count, entry in enumerate(tar, start=1):
        size += entry.size
        if count > ENTRIES_MAX or size > BYTES_MAX:
            raise tarfile.TarError(f"more than {ENTRIES_MAX} entries or {BYTES_MAX} bytes")
        _place(tar, entry, target)


def _place(tar: tarfile.TarFile, entry: tarfile.TarInfo, target: Path) -> None:
    """Write one entry below *target*, and nothing anywhere else.

    Python's own filter for this is missing from 3.11.0 to 3.11.3, which Debian still ships.
    """
    name = PurePosixPath(entry.name)
    if name.is_absolute() or ".." in name.parts:
        raise tarfile.TarError(f"{entry.name!r} leads outside")
    if not name.parts:
        return  # `./`, the folder itself
    place = target.joinpath(*name.parts)
    for parent in reversed(place.relative_to(target).parents[:-1]):
        if (target / parent).is_symlink():
            raise tarfile.TarError(f"{entry.name!r} lies behind a link")
    place.parent.mkdir(parents=True, exist_ok=True)
    if entry.isdir():
        place.mkdir(exist_ok=True)
    elif entry.issym():
        _check_link(entry, name)
        place.symlink_to(entry.linkname)
    elif entry.isfile():
        _write(tar, entry, place)
    else:
        raise tarfile.TarError(f"{entry.name!r} is neither a file, a folder nor a symbolic link")


def _check_link(entry: tarfile.TarInfo, name: PurePosixPath) -> None:
    end = PurePosixPath(os.path.normpath(name.parent / entry.linkname))
    if PurePosixPath(entry.linkname).is_absolute() or end.parts[:1] == ("..",):
        raise tarfile.TarError(f"{entry.name!r} is a link that leads outside")


def _write(tar: tarfile.TarFile, entry: tarfile.TarInfo, place: Path) -> None:
    content = tar.extractfile(entry)
    if content is None:
        raise tarfile.TarError(f"{entry.name!r} has no content")
    mode = (entry.mode & 0o755) | 0o600
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with content, os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(content, file, READ_BYTES)
    os.chmod(place, mode)
    os.utime(place, (entry.mtime, entry.mtime))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _drop_oldest(cache: Path, keep: Path) -> None:
    known = [p for p in cache.iterdir() if p.is_dir() and not p.name.startswith(".")]
    for path in sorted(known, key=lambda p: p.stat().st_mtime)[:-KEPT]:
        if path != keep:
            shutil.rmtree(path, ignore_errors=True)
