"""Disposable pictures of a core's state, so that a restart replays only what came after."""

import hashlib
import logging
import os
import pickle
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

S = TypeVar("S")

_log = logging.getLogger(__name__)


def schema_of(modules: Iterable[ModuleType]) -> str:
    """Return a version that changes whenever the code of *modules* does."""
    digest = hashlib.sha256()
    for module in modules:
        if module.__file__ is not None:
            digest.update(Path(module.__file__).read_bytes())
    return digest.hexdigest()[:16]


class FileSnapshots(Generic[S]):
    """Implements `decider.Snapshots` with one private file.

    The file is written by this service for itself and is never taken from elsewhere, which is
    what makes pickle acceptable here.
    """

    def __init__(self, path: Path, *, schema: str) -> None:
        """Keep the snapshot at *path*; one of another *schema* is ignored."""
        self._path = path
        self._schema = schema

    def load(self) -> tuple[int, S] | None:
        """Return sequence and state, or None when there is no readable snapshot."""
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            schema, seq, state = pickle.loads(raw)
        except Exception:
            _log.warning("snapshot unreadable, replaying everything")
            return None
        return (seq, state) if schema == self._schema else None

    def save(self, seq: int, state: S) -> None:
        """Replace the snapshot; a torn write leaves the older one."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=".snapshot-")
        with os.fdopen(handle, "wb") as file:
            pickle.dump((self._schema, seq, state), file, protocol=pickle.HIGHEST_PROTOCOL)
        Path(name).replace(self._path)
