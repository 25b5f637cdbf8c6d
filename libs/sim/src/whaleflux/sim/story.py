"""A scheduler core that one talks to in commands and reads in events."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from whaleflux.common.contracts.agent import ExitKind, Gpu
from whaleflux.common.contracts.assignment import CheckpointRef
from whaleflux.common.contracts.scheduler import SchedulerEvent, SubmitWorkload
from whaleflux.common.contracts.workload import WorkloadSpec
from whaleflux.scheduler.core.command import (
    Advance,
    JoinNode,
    Place,
    RecordCheckpoint,
    RecordExit,
    RecordStart,
    Thought,
)
from whaleflux.scheduler.core.decide import decide
from whaleflux.scheduler.core.evolve import evolve
from whaleflux.scheduler.core.state import Run, State

START = datetime(2031, 1, 1, tzinfo=UTC)


class Story:
    """Builds state only by folding what the core itself decided."""

    def __init__(self) -> None:
        self.state = State()
        self.log: list[SchedulerEvent] = []
        self.now = START

    def tell(self, *thoughts: Thought) -> list[SchedulerEvent]:
        """Decide *thoughts*, then advance and place, as one cycle does."""
        self.now += timedelta(seconds=1)
        first = len(self.log)
        for thought in (*thoughts, Advance(), Place()):
            for event in decide(self.state, thought, self.now):
                self.log.append(event)
                evolve(self.state, event, len(self.log))
        return self.log[first:]

    def join(self, node_id: str, type_: str, count: int, **more: object) -> list[SchedulerEvent]:
        """Add a node with *count* GPUs of *type_*."""
        gpus = tuple(
            Gpu(index=i, uuid=f"SIM-{node_id}-{i}", type=type_, memory_mib=81_920)
            for i in range(count)
        )
        facts: dict[str, Any] = {
            "boot_id": "boot-1",
            "simulated": True,
            "cpus": 64,
            "memory_mib": 1 << 20,
            "stores": ("default",),
        } | more
        return self.tell(JoinNode(node_id=node_id, gpus=gpus, **facts))

    def submit(self, id_: str, **spec: object) -> list[SchedulerEvent]:
        """Submit a workload called *id_*; `run` and `name` have defaults."""
        body: dict[str, object] = {"name": id_, **spec}
        if "phases" not in body:
            body = {"run": "true", **body}
        return self.tell(
            SubmitWorkload(
                workload_id=id_,
                tenant="acme",
                user="ada",
                body_hash="hash",
                spec=WorkloadSpec.model_validate(body),
            )
        )

    def run(self, run_id: str) -> Run:
        """Return what the scheduler knows of a run."""
        return self.state.runs[run_id]

    def members(self, run_id: str) -> list[tuple[int, str]]:
        """Return (rank, node) of the live attempt's placement."""
        state: Any = self.run(run_id).state
        return [(m.rank, m.node_id) for m in state.placement]

    def start(self, run_id: str) -> list[SchedulerEvent]:
        """Let every member of the live attempt start."""
        attempt = self.run(run_id).state.attempt
        return self.tell(
            *(
                RecordStart(run_id, attempt, rank, node, None, None)
                for rank, node in self.members(run_id)
            )
        )

    def exit(
        self,
        run_id: str,
        kind: ExitKind = ExitKind.DONE,
        *,
        ranks: Iterable[int] | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> list[SchedulerEvent]:
        """Let members of the live attempt exit, all of them unless *ranks* says which."""
        attempt = self.run(run_id).state.attempt
        wanted = None if ranks is None else set(ranks)
        return self.tell(
            *(
                RecordExit(
                    run_id,
                    attempt,
                    rank,
                    node,
                    kind,
                    exit_code=exit_code,
                    signal=signal,
                    metrics=metrics or {},
                )
                for rank, node in self.members(run_id)
                if wanted is None or rank in wanted
            )
        )

    def save(self, run_id: str, step: int, *, safe: bool = True) -> list[SchedulerEvent]:
        """Let the live attempt's rank 0 register a checkpoint."""
        attempt = self.run(run_id).state.attempt
        ref = CheckpointRef(
            attempt=attempt, step=step, path=f"p/{attempt}/{step}", manifest_sha256="m", safe=safe
        )
        return self.tell(RecordCheckpoint(run_id, self.members(run_id)[0][1], ref))
