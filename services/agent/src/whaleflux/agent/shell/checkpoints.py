"""Checkpoints: found complete, given a manifest, and verified before anyone resumes from one."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from whaleflux.agent.shell.folders import read_json
from whaleflux.agent.shell.shim_parts.kernel import write_atomically

MANIFEST = "whaleflux-manifest.json"
MANIFEST_VERSION = 1
FILES_MAX = 100_000
READ_BYTES = 1 << 20
TRAINER_STATE = "trainer_state.json"
HF_PREFIX = "checkpoint-"


class Torn(Exception):
    """A checkpoint is not complete, or not what its manifest says; the message says why."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A checkpoint whose manifest is on disk."""

    manifest_sha256: str
    bytes: int


def locate(checkpoints: Path, name: str) -> Path:
    """Return the folder that a program announced by *name*.

    Raises:
        Torn: The name leads outside the checkpoint folder, or there is no such folder.

    """
    folder = checkpoints / name
    if not name or name.startswith("/") or ".." in Path(name).parts or name in (".", "./"):
        raise Torn(f"checkpoint {name!r} is not the name of a folder in the checkpoint folder")
    if folder.is_symlink() or not folder.is_dir():
        raise Torn(f"checkpoint {name!r} is not a folder in {checkpoints}")
    return folder


def seal(folder: Path, *, step: int, attempt: int) -> Sealed:
    """Hash every file in *folder*, force it to disk, and write the manifest last.

    Raises:
        Torn: There is nothing in it, or it changed meanwhile.

    """
    before = _signature(folder)
    if not before:
        raise Torn(f"checkpoint {folder.name!r} holds no file")
    files = [
        {"path": name, "bytes": size, "sha256": _sha256(folder / name, durable=True)}
        for name, size, _ in before
    ]
    if _signature(folder) != before:
        raise Torn(f"checkpoint {folder.name!r} was still being written when it was announced")
    manifest = json.dumps(
        {"version": MANIFEST_VERSION, "step": step, "attempt": attempt, "files": files}, indent=1
    )
    write_atomically(str(folder / MANIFEST), manifest, durable=True)
    digest = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    return Sealed(digest, sum(size for _, size, _ in before))


def verify(folder: Path, manifest_sha256: str) -> None:
    """Check every file against the manifest, and the manifest against *manifest_sha256*.

    Raises:
        Torn: Something is missing or differs.

    """
    try:
        raw = (folder / MANIFEST).read_bytes()
        if hashlib.sha256(raw).hexdigest() != manifest_sha256:
            raise Torn("its manifest is not the one that was registered")
        for entry in json.loads(raw)["files"]:
            path = folder / entry["path"]
            if path.stat().st_size != entry["bytes"]:
                raise Torn(f"{entry['path']} has {path.stat().st_size} of {entry['bytes']} bytes")
            if _sha256(path, durable=False) != entry["sha256"]:
                raise Torn(f"{entry['path']} differs from what was saved")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Torn(f"it cannot be read: {error}") from error


class HuggingFaceScan:
    """Recognises `checkpoint-<step>` folders, whole once they stay as they are for two looks."""

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints
        self._seen: dict[str, tuple[tuple[str, int, int], ...]] = {}

    def look(self, *, known: set[str], program_gone: bool) -> list[tuple[str, int]]:
        """Return name and step of folders newly found whole, oldest first, *known* left out."""
        found: list[tuple[str, int]] = []
        for name, step in self._candidates():
            if name in known:
                self._seen.pop(name, None)
                continue
            state = read_json(self._checkpoints / name / TRAINER_STATE)
            if state is None or state.get("global_step") != step:
                continue
            try:
                signature = _signature(self._checkpoints / name)
            except Torn:
                continue  # It is changing under our eyes; the next look may find it whole.
            if program_gone or self._seen.get(name) == signature:
                found.append((name, step))
            self._seen[name] = signature
        return sorted(found, key=lambda pair: pair[1])

    def _candidates(self) -> Iterator[tuple[str, int]]:
        try:
            entries = list(os.scandir(self._checkpoints))
        except OSError:
            return
        for entry in entries:
            step = entry.name.removeprefix(HF_PREFIX)
            named_so = entry.name.startswith(HF_PREFIX) and step.isdigit()
            if named_so and entry.is_dir(follow_symlinks=False):
                yield entry.name, int(step)


def _signature(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return name, bytes and change time of each file, the manifest left out."""
    found: list[tuple[str, int, int]] = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            relative = str(path.relative_to(folder))
            if relative == MANIFEST or relative.startswith(f"{MANIFEST}."):
                continue
            if len(found) >= FILES_MAX:
                raise Torn(f"checkpoint {folder.name!r} holds more than {FILES_MAX} files")
            try:
                status = path.stat()
            except OSError as error:
                raise Torn(f"{relative} went away: {error}") from error
            found.append((relative, status.st_size, status.st_mtime_ns))
    return tuple(sorted(found))


def _sha256(path: Path, *, durable: bool) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        if durable:
            os.fsync(file.fileno())
        while piece := file.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()
