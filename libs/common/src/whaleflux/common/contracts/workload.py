"""What a user submits: a job or a pipeline of phases with bounded loops.

The file a person writes (YAML, SkyPilot's names first) and the body of `POST /v1/workloads` are
both read by `WorkloadSpec`. Short forms are accepted and normalised: `accelerators: H100:8`,
`memory: 32+`, a job's `run` beside `resources` instead of a `phases` list.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from whaleflux.common.contracts.base import Part

PHASES_MAX = 64
ITERATIONS_MAX = 100_000
NODES_PER_RUN_MAX = 512
COMMAND_LENGTH_MAX = 65_536

PhaseName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,47}$")]
"""Becomes part of a run's id and, in capitals, of `WHALEFLUX_INPUT_<PHASE>`."""

Role: TypeAlias = Literal[
    "reward_training",
    "rollout",
    "scoring",
    "policy_update",
    "feedback",
    "evaluation",
    "data_prep",
    "training",
    "inference",
    "preprocess",
    "postprocess",
]


class Kind(StrEnum):
    """What sort of work this is."""

    JOB = "job"
    PIPELINE = "pipeline"


class Fencing(StrEnum):
    """How long an unreachable node's members may run on before they end themselves."""

    FAST = "fast"
    PATIENT = "patient"


FENCING_S: Mapping[Fencing, float] = {Fencing.FAST: 20.0, Fencing.PATIENT: 300.0}
"""Seconds from the last renewal that reached failover to the end of the last member."""

SELF_FENCE_MARGIN_S = 5.0
"""Members start to end this long before the deadline; the controller waits as long after it."""


class Accelerator(Part):
    """So many GPUs of one type, on each node."""

    type: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    count: int = Field(ge=1, le=1024)


class Resources(Part):
    """What each node of a run must offer.

    `accelerators` takes `H100:8`, `H100`, `{H100: 8}`, or a list of those; several entries are
    alternatives, the first preferred. None means no GPU.
    """

    accelerators: tuple[Accelerator, ...] = ()
    cpus: float | None = Field(default=None, gt=0, le=4096)
    memory_gib: float | None = Field(default=None, gt=0, le=65536, alias="memory")

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @field_validator("accelerators", mode="before")
    @classmethod
    def _read_accelerators(cls, value: object) -> object:
        return _accelerators(value)

    @field_validator("cpus", "memory_gib", mode="before")
    @classmethod
    def _read_at_least(cls, value: object) -> object:
        if isinstance(value, str):
            return value.strip().removesuffix("+").removesuffix("GiB").removesuffix("GB").strip()
        return value

    @property
    def gpus_per_node(self) -> int:
        """GPUs on each node in the preferred alternative; 0 without accelerators."""
        return self.accelerators[0].count if self.accelerators else 0


class Retry(Part):
    """How often a run may be tried again after failing by itself."""

    max_attempts: int = Field(default=3, ge=1, le=100)
    """Attempts that ended by the program's own failure; lost nodes do not count."""


class Checkpoint(Part):
    """How a run saves."""

    grace_s: float = Field(default=10.0, ge=0, le=3600)
    """Seconds between SIGTERM and SIGKILL."""


class PhaseSpec(Part):
    """One step of a pipeline."""

    name: PhaseName
    role: Role | None = None
    needs: tuple[PhaseName, ...] = ()
    """Phases (of this iteration, or before the loop) whose outputs this one reads."""
    previous: tuple[PhaseName, ...] = ()
    """Phases of the same loop whose outputs of the *previous* iteration this one reads, if any."""
    resources: Resources = Resources()
    num_nodes: int = Field(default=1, ge=1, le=NODES_PER_RUN_MAX)
    envs: Mapping[str, str] = Field(default_factory=dict)
    setup: str = Field(default="", max_length=COMMAND_LENGTH_MAX)
    run: str = Field(min_length=1, max_length=COMMAND_LENGTH_MAX)
    fencing: Fencing | None = None
    retry: Retry | None = None
    checkpoint: Checkpoint | None = None
    max_runtime_s: float | None = Field(default=None, gt=0)

    @field_validator("envs", mode="before")
    @classmethod
    def _read_envs(cls, value: object) -> object:
        return _envs(value)


class LoopSpec(Part):
    """Phases that repeat, at most `max` times."""

    name: PhaseName = "loop"
    phases: tuple[PhaseName, ...] = Field(min_length=1)
    max: int = Field(ge=1, le=ITERATIONS_MAX)
    until: str | None = None
    """`<phase>.<metric> >= <number>` (or `> <= <`): stop once true of the last iteration."""

    @field_validator("until")
    @classmethod
    def _read_until(cls, value: str | None) -> str | None:
        if value is not None and UNTIL.fullmatch(value.strip()) is None:
            raise ValueError("write it as '<phase>.<metric> >= <number>'")
        return value


UNTIL = re.compile(
    r"(?P<phase>[a-z][a-z0-9_]*)\.(?P<metric>[A-Za-z0-9_./-]+)\s*(?P<op>>=|<=|>|<)\s*(?P<bound>-?[0-9.eE+-]+)"
)


class WorkloadSpec(BaseModel):
    """A whole workload, as users write it and as the scheduler keeps it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    kind: Kind = Kind.JOB
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]{0,62}$")
    project: str = Field(default="default", pattern=r"^[a-z0-9][a-z0-9_-]{0,47}$")
    priority: int = Field(default=0, ge=-1000, le=1000)
    store: str | None = None
    """The pool's store when None; `local` keeps everything on the node (lost with it)."""
    workdir: str | None = None
    """A folder in the file a person writes; `sha256:<hex>` of its archive once uploaded."""
    envs: Mapping[str, str] = Field(default_factory=dict)
    fencing: Fencing = Fencing.PATIENT
    retry: Retry = Retry()
    checkpoint: Checkpoint = Checkpoint()
    phases: tuple[PhaseSpec, ...] = Field(min_length=1, max_length=PHASES_MAX)
    loops: tuple[LoopSpec, ...] = ()

    @field_validator("envs", mode="before")
    @classmethod
    def _read_envs(cls, value: object) -> object:
        return _envs(value)

    @model_validator(mode="before")
    @classmethod
    def _read_job(cls, value: object) -> object:
        return _job_as_phase(value)

    @model_validator(mode="after")
    def _check_graph(self) -> "WorkloadSpec":
        _check_graph(self)
        return self

    def phase(self, name: str) -> PhaseSpec:
        """Return the phase called *name*."""
        return next(p for p in self.phases if p.name == name)

    def loop_of(self, phase: str) -> LoopSpec | None:
        """Return the loop that *phase* belongs to, or None."""
        return next((loop for loop in self.loops if phase in loop.phases), None)


JOB_PHASE = "main"
_JOB_KEYS = ("resources", "num_nodes", "setup", "run", "role", "max_runtime_s")


def _job_as_phase(value: object) -> object:
    if not isinstance(value, dict):
        return value
    body: dict[str, Any] = dict(cast(dict[str, Any], value))
    if body.get("kind", "job") != "job" or "phases" in body:
        return body
    phase = {key: body.pop(key) for key in _JOB_KEYS if key in body}
    if "run" in phase:
        body["phases"] = [{"name": JOB_PHASE, **phase}]
    elif phase or "name" in body:
        raise ValueError("a job needs 'run': the command to start on each node")
    return body


def _accelerators(value: object) -> object:
    if value is None:
        return ()
    if isinstance(value, str):
        type_, _, count = value.strip().partition(":")
        return ({"type": type_, "count": count or 1},)
    if isinstance(value, Accelerator):
        return (value,)
    if isinstance(value, dict):
        entries = cast(dict[str, object], value)
        if set(entries) <= {"type", "count"} and "type" in entries:
            return (entries,)
        return tuple({"type": k, "count": 1 if v is None else v} for k, v in entries.items())
    if isinstance(value, list | tuple):
        found: list[object] = []
        for entry in cast(list[object], value):
            one = _accelerators(entry)
            found += cast(list[object], one) if isinstance(one, list | tuple) else [one]
        return tuple(found)
    return value


def _envs(value: object) -> object:
    if value is None:
        return {}
    if isinstance(value, dict):
        entries = cast(dict[str, object], value)
        return {k: str(v) if isinstance(v, int | float) else v for k, v in entries.items()}
    return value


def _check_graph(spec: WorkloadSpec) -> None:
    names = [p.name for p in spec.phases]
    if len(set(names)) != len(names):
        raise ValueError(f"two phases are called {_first_repeated(names)!r}")
    if spec.kind is Kind.JOB and (len(names) != 1 or spec.loops):
        raise ValueError("a job has one phase and no loops; write 'kind: pipeline'")
    looped = [name for loop in spec.loops for name in loop.phases]
    if len(set(looped)) != len(looped):
        raise ValueError(f"phase {_first_repeated(looped)!r} stands in two loops")
    for loop in spec.loops:
        for name in loop.phases:
            if name not in names:
                raise ValueError(f"loop {loop.name!r} names phase {name!r}, which does not exist")
        if loop.until is not None:
            match = UNTIL.fullmatch(loop.until.strip())
            if match is not None and match["phase"] not in loop.phases:
                raise ValueError(f"'until' of loop {loop.name!r} needs a phase of that loop")
    for phase in spec.phases:
        _check_phase(spec, phase, names)
    _check_acyclic(spec)


def _check_phase(spec: WorkloadSpec, phase: PhaseSpec, names: list[str]) -> None:
    for need in (*phase.needs, *phase.previous):
        if need not in names:
            raise ValueError(f"phase {phase.name!r} needs {need!r}, which does not exist")
    loop = spec.loop_of(phase.name)
    for name in phase.previous:
        if loop is None or name not in loop.phases:
            raise ValueError(
                f"phase {phase.name!r} reads the previous {name!r}, which is not in its loop"
            )


def _check_acyclic(spec: WorkloadSpec) -> None:
    """Refuse cycles, also those that run through a loop as a whole (Kahn's algorithm)."""
    unit = {p.name: _unit(spec, p.name) for p in spec.phases}
    for edges in (
        {(n, p.name) for p in spec.phases for n in p.needs},
        {(unit[n], unit[p.name]) for p in spec.phases for n in p.needs if unit[n] != unit[p.name]},
    ):
        waiting = {b for _, b in edges}
        nodes = {a for a, _ in edges} | waiting
        while nodes:
            ready = {n for n in nodes if not any(b == n and a in nodes for a, b in edges)}
            if not ready:
                raise ValueError(f"phases need one another in a circle: {', '.join(sorted(nodes))}")
            nodes -= ready


def _unit(spec: WorkloadSpec, phase: str) -> str:
    loop = spec.loop_of(phase)
    return phase if loop is None else f"loop {loop.name}"


def _first_repeated(names: list[str]) -> str:
    return next(n for i, n in enumerate(names) if n in names[:i])
