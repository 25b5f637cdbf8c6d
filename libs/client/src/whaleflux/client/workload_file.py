"""Workload files: YAML to `WorkloadSpec` and back."""

import os
from collections.abc import Mapping
from pathlib import Path as FilePath
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError

from whaleflux.client.spec_problem import SpecError, SpecProblem, nearest
from whaleflux.client.yaml_document import (
    Document,
    Path,
    pointer,
    read_document,
    write_document,
)
from whaleflux.common.contracts.workload import (
    JOB_PHASE,
    Accelerator,
    Kind,
    PhaseSpec,
    WorkloadSpec,
)

JOB_KEYS = ("resources", "num_nodes", "setup", "run", "role", "max_runtime_s")
"""What a job says beside its name instead of in `phases`."""


def _shape(model: type[BaseModel], name: str) -> str:
    for rule in model.model_fields[name].metadata:
        found = getattr(rule, "pattern", None)
        if isinstance(found, str):
            return found
    return ""


PHASE_SHAPE = _shape(PhaseSpec, "name")
NAME_SHAPE = _shape(WorkloadSpec, "name")
PROJECT_SHAPE = _shape(WorkloadSpec, "project")
TYPE_SHAPE = _shape(Accelerator, "type")


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


def known_keys(path: Path, *, job: bool) -> list[str]:
    """Return the keys that may stand in the mapping at *path*; empty where any key may."""
    model: object = WorkloadSpec
    for part in path:
        if isinstance(part, int):
            continue
        model = _model_of(model, part, job=job)
        if model is None:
            return []
    return _names(model, top=not path and job)


def _names(model: object, *, top: bool) -> list[str]:
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return []
    names = [f.alias or n for n, f in model.model_fields.items()]
    return [*names, *JOB_KEYS] if top else names


def _model_of(model: object, key: str, *, job: bool) -> type[BaseModel] | None:
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return None
    for name, info in model.model_fields.items():
        if key in (name, info.alias):
            return _inner_model(info.annotation)
    if job and model is WorkloadSpec and key in JOB_KEYS:
        return _inner_model(PhaseSpec.model_fields[key].annotation)
    return None


def _inner_model(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType, tuple, list):
        found = [_inner_model(arg) for arg in get_args(annotation)]
        return next((m for m in found if m is not None), None)
    return None


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
    found: list[SpecError] = []
    for entry in entries:
        loc = tuple(entry["loc"])
        if entry["type"] == "too_short" and loc in inner:
            continue
        path = _path_in_file(document, loc)
        if entry["type"] == "extra_forbidden":
            place = document.keys.get(path) or document.place(path)
            found.append(SpecError(pointer(path), _unknown_key(document, path), place))
            continue
        said = document.at(path) if path != loc else entry["input"]
        message = _sentence(entry["type"], str(entry["msg"]), said)
        found.append(SpecError(pointer(path), message, document.place(path)))
    return sorted(found, key=lambda e: e.place or (0, 0))


_SHAPES = {
    PHASE_SHAPE: "must be lower-case letters, digits and '_', and begin with a letter",
    NAME_SHAPE: "must be 1 to 63 letters, digits, spaces, '.', '_' or '-'",
    PROJECT_SHAPE: "must be lower-case letters, digits, '_' or '-'",
    TYPE_SHAPE: "must be a GPU type like H100, or a type and a count like H100:8",
}


def _sentence(type_: str, message: str, said: object) -> str:
    if type_ == "value_error":
        return message.removeprefix("Value error, ")
    if type_ == "missing":
        return "is needed and not there"
    if type_ == "string_pattern_mismatch":
        shape = message.partition("'")[2].rpartition("'")[0]
        message = _SHAPES.get(shape, f"must match {shape}")
    message = message.replace("Input should be", "must be").replace("String should", "must")
    return message if isinstance(said, dict | list) else f"{message}, not {said!r}"


def _path_in_file(document: Document, loc: Path) -> Path:
    """Undo what normalising moved: a job's keys stand at the top, accelerators are text."""
    path = loc
    if loc[:2] == ("phases", 0) and "phases" not in document.value:
        path = loc[2:]
    if "accelerators" in path and path not in document.values and path not in document.keys:
        path = path[: path.index("accelerators") + 1]
    return path


def _unknown_key(document: Document, path: Path) -> str:
    *parent, key = path
    job = "phases" not in document.value and document.value.get("kind", "job") == "job"
    known = known_keys(tuple(parent), job=job)
    meant = nearest(str(key), known)
    if meant is not None:
        return f"unknown key; did you mean {meant!r}?"
    if not parent and key in JOB_KEYS:
        return "belongs into each phase of a pipeline, not beside them"
    return f"unknown key; known here: {', '.join(sorted(known))}" if known else "unknown key"
