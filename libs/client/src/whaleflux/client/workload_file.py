"""Workload files: YAML to `WorkloadSpec` and back."""

import os
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any, cast

from pydantic import ValidationError

from whaleflux.client.spec_problem import SpecError, SpecProblem
from whaleflux.client.yaml_document import (
    Document,
    Path,
    pointer,
    read_document,
    write_document,
)
from whaleflux.common.contracts.explain import explain_validation
from whaleflux.common.contracts.workload import JOB_PHASE, Kind, PhaseSpec, WorkloadSpec

JOB_KEYS = ("resources", "num_nodes", "setup", "run", "role", "max_runtime_s")
"""What a job says beside its name instead of in `phases`."""


def from_yaml(
    source: str | FilePath, *, name: str | None = None, environ: Mapping[str, str] | None = None
) -> WorkloadSpec:
    """Return the workload that *source* describes: YAML text, or the path of a file.

    *name* replaces the file's. A variable under `envs` without a value is taken from *environ*
    (this process's environment when None).

    Raises:
        SpecProblem: Something in it is wrong; every error names line and column.

    """
    if isinstance(source, FilePath):
        try:
            document = read_document(source.read_text(encoding="utf-8"))
            return spec_of(document, name=name or _name_in(document, source), environ=environ)
        except SpecProblem as problem:
            raise problem.of(str(source)) from problem
    return spec_of(read_document(source), name=name, environ=environ)


def spec_of(
    document: Document, *, name: str | None = None, environ: Mapping[str, str] | None = None
) -> WorkloadSpec:
    """Return the workload of a *document* that has been read already.

    Raises:
        SpecProblem: Something in it is wrong.

    """
    if name is not None:
        document.value["name"] = name
    _fill_envs(document, os.environ if environ is None else environ)
    try:
        return WorkloadSpec.model_validate(document.value)
    except ValidationError as error:
        raise SpecProblem(_errors(document, error)) from error


def to_yaml(spec: WorkloadSpec) -> str:
    """Return *spec* as a file that reads back as the same workload, defaults left out."""
    return write_document(to_file_form(spec))


def to_file_form(spec: WorkloadSpec) -> dict[str, Any]:
    """Return *spec* as people write it: short forms, defaults left out."""
    body = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    head = {"kind": spec.kind.value, "name": spec.name}
    rest = {key: value for key, value in body.items() if key not in (*head, "phases", "loops")}
    phases = [
        _phase(spec_phase, raw) for spec_phase, raw in zip(spec.phases, body["phases"], strict=True)
    ]
    only = phases[0]
    if spec.kind is Kind.JOB and only["name"] == JOB_PHASE and set(only) <= {"name", *JOB_KEYS}:
        return {**head, **rest, **{k: v for k, v in only.items() if k != "name"}}
    loops = {"loops": body["loops"]} if "loops" in body else {}
    return {**head, **rest, "phases": phases, **loops}


def _name_in(document: Document, file: FilePath) -> str | None:
    return None if "name" in document.value else file.stem


def _phase(phase: PhaseSpec, raw: Mapping[str, Any]) -> dict[str, Any]:
    body = {"name": phase.name, **raw}
    accelerators = [f"{a.type}:{a.count}" for a in phase.resources.accelerators]
    if accelerators:
        resources = cast(dict[str, Any], body["resources"])
        short = accelerators[0] if len(accelerators) == 1 else accelerators
        body["resources"] = {**resources, "accelerators": short}
    return body


def _fill_envs(document: Document, environ: Mapping[str, str]) -> None:
    """Give variables without a value the caller's own."""
    errors: list[SpecError] = []
    places: list[tuple[Path, object]] = [(("envs",), document.value.get("envs"))]
    phases = document.value.get("phases")
    for index, phase in enumerate(phases if isinstance(phases, list) else []):
        if isinstance(phase, dict):
            places.append((("phases", index, "envs"), phase.get("envs")))
    for path, envs in places:
        if not isinstance(envs, dict):
            continue
        for key in [k for k, v in envs.items() if v is None]:
            if key in environ:
                envs[key] = environ[key]
                continue
            here = (*path, key)
            message = f"has no value here and is not set in your environment either; write {key}: …"
            errors.append(SpecError(pointer(here), message, document.place(here)))
    if errors:
        raise SpecProblem(errors)


def _errors(document: Document, error: ValidationError) -> list[SpecError]:
    entries = error.errors(include_url=False)
    # A list whose entries were refused is also said to be too short; that is only an echo.
    inner = {tuple(e["loc"])[:end] for e in entries for end in range(1, len(e["loc"]))}
    locs = {pointer(tuple(e["loc"])): tuple(e["loc"]) for e in entries}
    unknown = {pointer(tuple(e["loc"])) for e in entries if e["type"] == "extra_forbidden"}
    echoes = {
        pointer(tuple(e["loc"]))
        for e in entries
        if e["type"] == "too_short" and tuple(e["loc"]) in inner
    }
    found: list[SpecError] = []
    for problem in explain_validation(error, WorkloadSpec):
        if problem.pointer in echoes:
            continue
        path = _path_in_file(document, locs[problem.pointer])
        detail = problem.detail
        if len(path) == 1 and path[0] in JOB_KEYS and "phases" in document.value:
            detail = "A pipeline says this in each of its phases, not beside them."
        key_place = document.keys.get(path) if problem.pointer in unknown else None
        place = key_place or document.place(path)
        found.append(SpecError(pointer(path), detail, place))
    return sorted(found, key=lambda e: e.place or (0, 0))


def _path_in_file(document: Document, loc: Path) -> Path:
    """Undo what normalising moved: a job's keys stand at the top, accelerators are text."""
    path = loc
    if loc[:2] == ("phases", 0) and "phases" not in document.value:
        path = loc[2:]
    if "accelerators" in path and path not in document.values and path not in document.keys:
        path = path[: path.index("accelerators") + 1]
    return path
