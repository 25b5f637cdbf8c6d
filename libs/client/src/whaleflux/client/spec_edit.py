"""Changes from the command line to a workload file: `--set path=value` and `--env NAME=VALUE`."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from whaleflux.client.yaml_document import Document, scalar
from whaleflux.common.contracts.explain import nearest
from whaleflux.common.errors import Refused


def set_paths(document: Document, assignments: Iterable[str]) -> None:
    """Apply `path=value` pairs; a list's entries go by their number or their name.

    Raises:
        Refused: A pair has no `=`, or its path leads nowhere.

    """
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        if not equals or not path.strip():
            raise Refused(f"--set {assignment!r}: write it as path=value.", code="bad_set")
        *parents, last = path.strip().split(".")
        target: Any = document.value
        for part in parents:
            target = _step(target, part, path, create=True)
        _assign(target, last, scalar(value), path)


def set_envs(
    document: Document, pairs: Iterable[str], *, environ: Mapping[str, str] | None = None
) -> None:
    """Add `NAME=VALUE` to the workload's environment; a bare `NAME` takes the caller's value.

    Raises:
        Refused: A bare name is not set in the caller's environment.

    """
    own = os.environ if environ is None else environ
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name:
            raise Refused(f"--env {pair!r}: write it as NAME=VALUE.", code="bad_env")
        if not equals:
            if name not in own:
                raise Refused(f"--env {name}: it is not set in your environment.", code="bad_env")
            value = own[name]
        envs = document.value.get("envs")
        document.value["envs"] = {**(envs if isinstance(envs, dict) else {}), name: value}


def _step(target: Any, part: str, path: str, *, create: bool) -> Any:  # noqa: ANN401 - any value
    if isinstance(target, list):
        return target[_index(target, part, path)]
    if isinstance(target, dict):
        if part not in target and create:
            target[part] = {}
        if target[part] is None:
            target[part] = {}
        return target[part]
    raise Refused(f"--set {path}: {part!r} stands in something that holds nothing.", code="bad_set")


def _assign(target: Any, last: str, value: Any, path: str) -> None:  # noqa: ANN401 - any value
    if isinstance(target, list):
        target[_index(target, last, path)] = value
    elif isinstance(target, dict):
        in_envs = path.split(".")[-2:-1] == ["envs"]
        target[last] = str(value) if in_envs and value is not None else value
    else:
        raise Refused(f"--set {path}: {last!r} has no place there.", code="bad_set")


def _index(entries: list[Any], part: str, path: str) -> int:
    if part.isdigit() and int(part) < len(entries):
        return int(part)
    names = [str(e["name"]) for e in entries if isinstance(e, dict) and "name" in e]
    for index, entry in enumerate(entries):
        if isinstance(entry, dict) and entry.get("name") == part:
            return index
    meant = nearest(part, names)
    hint = f"did you mean {meant!r}?" if meant else f"there are {', '.join(names) or 'none'}."
    raise Refused(f"--set {path}: no entry is called {part!r}; {hint}", code="bad_set")
