"""YAML as WhaleFlux reads it: safe, every value with its line and column, no key twice.

Scalars follow YAML 1.2 (`no` and `12:30` are text). Values under `envs` stay exactly as written,
so `VERSION: 1.10` is not rounded; an empty one asks for the caller's own variable.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from whaleflux.client.spec_problem import Place, SpecError, SpecProblem

Path: TypeAlias = tuple[str | int, ...]

FILE_BYTES_MAX = 1_048_576
"""A workload file is written by a person; a megabyte is far beyond that."""
VALUES_MAX = 100_000
"""Aliases can make a small file enormous."""
DEPTH_MAX = 32

_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_INT = re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$")
_FLOAT = re.compile(
    r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
_MERGE = re.compile(r"^<<$")
_TAG = "tag:yaml.org,2002:"

RESOLVERS: tuple[tuple[str, re.Pattern[str], list[str]], ...] = (
    (_TAG + "bool", _BOOL, list("tTfF")),
    (_TAG + "int", _INT, list("-+0123456789")),
    (_TAG + "float", _FLOAT, list("-+.0123456789")),
    (_TAG + "null", _NULL, ["~", "n", "N", ""]),
    (_TAG + "merge", _MERGE, ["<"]),
)
"""Which plain scalars are not text; the writer quotes by the same table."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012 - the base class declares it so


for _tag, _pattern, _first in RESOLVERS:
    _Loader.add_implicit_resolver(_tag, _pattern, _first)


@dataclass(slots=True)
class Document:
    """A YAML file as values, and where each of them stands."""

    value: dict[str, Any]
    keys: dict[Path, Place] = field(default_factory=dict)
    values: dict[Path, Place] = field(default_factory=dict)

    def at(self, path: Path) -> Any:  # noqa: ANN401 - YAML holds anything
        """Return the value at *path*, or None."""
        value: Any = self.value
        for part in path:
            try:
                value = value[part]
            except (LookupError, TypeError):
                return None
        return value

    def place(self, path: Path) -> Place | None:
        """Return where *path* or the nearest part of the file around it stands."""
        for end in range(len(path), 0, -1):
            found = self.values.get(path[:end]) or self.keys.get(path[:end])
            if found is not None:
                return found
        return None


def read_document(text: str) -> Document:
    """Return *text* as a document.

    Raises:
        SpecProblem: It is no YAML, holds no mapping, or says a key twice.

    """
    if len(text.encode()) > FILE_BYTES_MAX:
        raise SpecProblem([SpecError("", f"The file is larger than {FILE_BYTES_MAX} bytes.")])
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise SpecProblem([_syntax(error)]) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecProblem([SpecError("", f"This is not YAML: {error}")]) from error
    if not isinstance(root, yaml.MappingNode):
        raise SpecProblem(
            [SpecError("", "A workload file is a mapping; it starts with lines like 'name: …'.")]
        )
    builder = _Builder()
    value = builder.mapping(root, ())
    if builder.errors:
        raise SpecProblem(builder.errors)
    return Document(value, builder.keys, builder.values)


class _Builder:
    """Turns nodes into values and remembers where they stood."""

    def __init__(self) -> None:
        self.keys: dict[Path, Place] = {}
        self.values: dict[Path, Place] = {}
        self.errors: list[SpecError] = []
        self._built = 0

    def build(self, node: yaml.Node, path: Path) -> Any:  # noqa: ANN401 - YAML holds anything
        """Return the value of *node*, which stands at *path*."""
        self._built += 1
        if self._built > VALUES_MAX or len(path) > DEPTH_MAX:
            raise SpecProblem(
                [SpecError(pointer(path), "The file nests or repeats too much.", _place(node))]
            )
        self.values.setdefault(path, _place(node))
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*path, i)) for i, child in enumerate(node.value)]
        return self._scalar(node, path)

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        """Return a mapping; what `<<` brings stands behind what is said itself."""
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                for source in _sources(value_node):
                    merged = {**self.mapping(source, path), **merged}
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self._error(path, key_node, "A key must be a word.")
                continue
            key = str(key_node.value)
            here = (*path, key)
            if key in found:
                first = self.keys[here]
                self._error(here, key_node, f"{key!r} stands here twice; first in line {first[0]}.")
                continue
            self.keys[here] = _place(key_node)
            found[key] = self.build(value_node, here)
        return {**merged, **found}

    def _scalar(self, node: yaml.Node, path: Path) -> Any:  # noqa: ANN401 - any scalar
        text = str(node.value)
        if node.tag == _TAG + "null":
            return None
        if len(path) >= 2 and path[-2] == "envs":
            return text
        match node.tag.removeprefix(_TAG):
            case "bool":
                return text.lower() == "true"
            case "int":
                return int(text, 0) if text[:2].lower() in ("0x", "0o") else int(text)
            case "float":
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
            case "str" | "merge":
                return text
            case _:
                self._error(path, node, f"The tag {node.tag!r} is not understood here.")
                return None

    def _error(self, path: Path, node: yaml.Node, message: str) -> None:
        self.errors.append(SpecError(pointer(path), message, _place(node)))


def scalar(text: str) -> Any:  # noqa: ANN401 - any scalar, list or mapping
    """Return what *text* means as a YAML value (for `--set path=value`).

    Raises:
        SpecProblem: It is no YAML.

    """
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise SpecProblem([SpecError("", f"{text!r} is not a YAML value: {error}")]) from error
    builder = _Builder()
    value = None if node is None else builder.build(node, ())
    if builder.errors:
        raise SpecProblem(builder.errors)
    return value


def pointer(path: Path) -> str:
    """Return *path* as a JSON pointer."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _place(node: yaml.Node) -> Place:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _sources(node: yaml.Node) -> list[yaml.MappingNode]:
    nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
    return [n for n in nodes if isinstance(n, yaml.MappingNode)]


def _syntax(error: yaml.MarkedYAMLError) -> SpecError:
    mark = error.problem_mark or error.context_mark
    place = None if mark is None else (mark.line + 1, mark.column + 1)
    what = error.problem or "this cannot be read"
    if "found character '\\t'" in what:
        what = "a tab stands where spaces must indent"
    context = f" {error.context}" if error.context else ""
    return SpecError("", f"This is not YAML: {what}{context}.", place)


_OTHER_BREAKS = "\r\x85\u2028\u2029\ufeff"
"""Outside double quotes a reader of YAML turns these into line feeds or drops them."""


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = {}  # noqa: RUF012 - the base class declares it so

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ANN401 - the base class's signature
        return True


for _tag, _pattern, _first in RESOLVERS:
    _Dumper.add_implicit_resolver(_tag, _pattern, _first)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    if any(c in text for c in _OTHER_BREAKS):
        style = '"'
    return dumper.represent_scalar(_TAG + "str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def write_document(value: Mapping[str, Any] | list[Any]) -> str:
    """Return *value* as YAML that `read_document` reads back unchanged."""
    return yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100, indent=2
    )
