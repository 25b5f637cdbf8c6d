"""Uploads into the pool's store, by content: what is there already is not written again."""

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

from whaleflux.common.contracts.assignment import blob_file
from whaleflux.common.errors import Refused, Unavailable
from whaleflux.gateway.shell.settings import BLOB_BYTES_MAX


class Digest(Protocol):
    """A hash that is being computed."""

    def update(self, data: bytes, /) -> None:
        """Take *data* in."""
        ...


class Blobs:
    """Archives in one store."""

    def __init__(self, root: str | None) -> None:
        """Keep archives below *root*; None when this gateway reaches no store."""
        self._root = None if root is None else Path(root)

    async def exists(self, sha256: str) -> bool:
        """Return whether the archive is there, whole."""
        return await asyncio.to_thread(self._path(sha256).exists)

    async def put(self, sha256: str, chunks: AsyncIterator[bytes]) -> int:
        """Write an archive and return its size in bytes.

        Raises:
            Refused: It is too large, or not what its hash says.
            Unavailable: The store cannot be written.

        """
        path = self._path(sha256)
        try:
            # A store may be a shared mount, where even a look at a folder can take a while.
            handle, name = await asyncio.to_thread(_temporary, path.parent)
        except OSError as error:
            raise _unwritable(error) from error
        try:
            with os.fdopen(handle, "wb") as file:
                size, digest = await _copy(chunks, file.write)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            if digest != sha256:
                raise Refused(
                    f"The body's SHA-256 is {digest}, not {sha256}: it was changed on the way.",
                    code="wrong_hash",
                )
            await asyncio.to_thread(_put_in_place, Path(name), path)
        except OSError as error:
            raise _unwritable(error) from error
        finally:
            Path(name).unlink(missing_ok=True)
        return size

    def _path(self, sha256: str) -> Path:
        if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
            raise Refused(
                "A blob is named by its SHA-256: 64 lower-case hexadecimal digits.",
                code="invalid_request",
            )
        if self._root is None:
            raise Unavailable("This gateway has no store 'default'.", code="no_store")
        return self._root / blob_file(sha256)


def _temporary(folder: Path) -> tuple[int, str]:
    folder.mkdir(parents=True, exist_ok=True)
    return tempfile.mkstemp(dir=folder, prefix=".upload-")


def _put_in_place(written: Path, path: Path) -> None:
    written.chmod(0o644)
    written.replace(path)


async def _copy(chunks: AsyncIterator[bytes], write: Callable[[bytes], int]) -> tuple[int, str]:
    digest = hashlib.sha256()
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > BLOB_BYTES_MAX:
            raise Refused(
                f"An archive may have {BLOB_BYTES_MAX // (1 << 20)} MiB at most; keep larger "
                "data in the store and name it by file_mounts.",
                code="too_large",
            )
        await asyncio.to_thread(_take, digest, write, chunk)
    return size, digest.hexdigest()


def _take(digest: Digest, write: Callable[[bytes], int], chunk: bytes) -> None:
    digest.update(chunk)
    write(chunk)


def _unwritable(error: OSError) -> Unavailable:
    return Unavailable(f"The store cannot be written: {error.strerror}.", code="store")
