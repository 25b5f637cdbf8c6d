"""Files that are there whole or not at all, and arrays in them."""

import contextlib
import io
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


class Torn(Exception):
    """A file is missing, cut short or damaged; the message says which."""


def write_whole(path: Path, content: bytes) -> None:
    """Write *content* so that a crash at any moment leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in *folder* on disk when this returns."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays; equal arrays give equal bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, **dict(arrays))  # type: ignore[arg-type]  # its stub knows only positional arrays
    write_whole(path, buffer.getvalue())


def read_arrays(path: Path) -> Arrays:
    """Return what `write_arrays` wrote.

    Raises:
        Torn: The file is not whole; each array's checksum is checked.

    """
    with _opened(path) as file:
        return {name: file[name] for name in file.files}


def read_array(path: Path, name: str) -> NDArray[Any]:
    """Return one array of a file, without reading the others.

    Raises:
        Torn: The file is not whole, or has no such array.

    """
    with _opened(path) as file:
        return np.asarray(file[name])


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with np.load(path, allow_pickle=False) as file:
            yield file
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise Torn(f"{path} cannot be read: {error}") from error


def under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return *arrays* with `prefix/` before each name, so that several sets fit into one file."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def below(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the set that `under` put away under *prefix*."""
    start = f"{prefix}/"
    return {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}


def rng_to_array(rng: np.random.Generator) -> NDArray[Any]:
    """Return the exact state of a random generator as an array."""
    return np.frombuffer(json.dumps(rng.bit_generator.state).encode(), dtype=np.uint8)


def rng_from_array(array: NDArray[Any]) -> np.random.Generator:
    """Return a random generator that goes on where `rng_to_array` looked."""
    rng = np.random.default_rng()
    rng.bit_generator.state = json.loads(array.tobytes())
    return rng
