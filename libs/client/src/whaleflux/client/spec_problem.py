"""What is wrong with a workload file, place by place."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from whaleflux.common.errors import Refused

Place: TypeAlias = tuple[int, int]
"""Line and column, from 1."""


@dataclass(frozen=True, slots=True)
class SpecError:
    """One thing that is wrong; *pointer* is a JSON pointer into the file's content."""

    pointer: str
    message: str
    place: Place | None = None

    def line(self, source: str) -> str:
        """Return the error as compilers write it: `file:line:column: field: message`."""
        where = source if self.place is None else f"{source}:{self.place[0]}:{self.place[1]}"
        named = self.pointer.strip("/").replace("/", ".")
        return f"{where}: {named}: {self.message}" if named else f"{where}: {self.message}"


class SpecProblem(Refused):
    """A workload file cannot be taken as it stands."""

    def __init__(self, errors: Sequence[SpecError], *, source: str = "workload") -> None:
        """Keep all *errors*; *source* is the file's name for people."""
        self.errors = tuple(errors)
        self.source = source
        super().__init__("\n".join(e.line(source) for e in self.errors), code="invalid_workload")

    def of(self, source: str) -> "SpecProblem":
        """Return the same problem, of the file called *source*."""
        return SpecProblem(self.errors, source=source)
