"""Validation errors as sentences: which field, what is wrong, the nearest right value."""

import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Union

from pydantic import BaseModel, ValidationError

ALTERNATIVES_SHOWN = 12
_SECRET_PLACES = frozenset({"envs", "secrets"})
"""What stands below these is never repeated: errors end up in logs."""


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One thing that is wrong with a body."""

    pointer: str
    """JSON pointer (RFC 6901); empty for the body as a whole."""
    detail: str


def explain_validation(error: ValidationError, model: type[BaseModel]) -> list[FieldProblem]:
    """Return every problem of *error*, in the words of *model*'s fields."""
    found: list[FieldProblem] = []
    for item in error.errors():
        place = tuple(item["loc"])
        pointer = "".join(f"/{_escape(str(part))}" for part in place)
        problem = FieldProblem(pointer, _detail(item, place, model))
        if problem not in found:
            found.append(problem)
    return found


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the one of *known* that *word* was probably meant to be, or None."""
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def _detail(item: Mapping[str, Any], place: tuple[Any, ...], model: type[BaseModel]) -> str:
    message = str(item["msg"]).removeprefix("Value error, ")
    match item["type"]:
        case "extra_forbidden":
            known = _fields_at(model, place[:-1])
            return unknown_key(str(place[-1]), known)
        case "missing":
            return f"{str(place[-1])!r} is missing."
        case "literal_error" | "enum":
            allowed = str(item.get("ctx", {}).get("expected", ""))
            options = [o.strip().strip("'") for o in allowed.replace(" or ", ",").split(",")]
            near = nearest(str(item["input"]), options)
            hint = f" Did you mean {near!r}?" if near else ""
            return f"{item['input']!r} is none of {allowed}.{hint}"
        case _:
            given: object = item.get("input")
            said = _short(given)
            hidden = isinstance(given, dict | list) or not _SECRET_PLACES.isdisjoint(place)
            shown = "" if hidden else f" (given: {said})"
            return f"{message[:1].upper()}{message[1:]}{shown}."


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Return the sentence for a key that does not exist."""
    names = sorted(known)
    near = nearest(key, names)
    if near is not None:
        return f"There is no {key!r} here. Did you mean {near!r}?"
    return f"There is no {key!r} here. Known are: {', '.join(names[:ALTERNATIVES_SHOWN])}."


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _fields_at(model: type[BaseModel], place: tuple[Any, ...]) -> set[str]:
    here: type[BaseModel] | None = model
    for part in place:
        if here is None or isinstance(part, int):
            continue
        info = next((f for name, f in here.model_fields.items() if part in (name, f.alias)), None)
        here = None if info is None else _model_in(info.annotation)
    if here is None:
        return set()
    extra = _SHORT_FORMS if here is model else set[str]()
    return {f.alias or name for name, f in here.model_fields.items()} | extra


_SHORT_FORMS = {"resources", "num_nodes", "setup", "run", "role", "max_runtime_s"}
"""Keys of a job, which `WorkloadSpec` moves into its one phase."""


def _model_in(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401 - any annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (Union, types.UnionType, tuple, list, typing.Annotated):
        for argument in typing.get_args(annotation):
            found = _model_in(argument)
            if found is not None:
                return found
    return None


def _escape(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")
