"""Other people's small jobs beside the demo's pipeline, so that GPUs always have a next owner.

They want the GPUs that the rollouts want and come after them in the queue. Without them nobody
would wait when a phase ends, and there would be no hand-over to measure.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whaleflux.client import AsyncClient
from whaleflux.common.contracts.workload import WorkloadSpec

ROLE = "rollout"
PRIORITY = -100
"""The pipeline's phases go first."""
JOB_S = 1.0
"""How long a small job holds its node; a phase waits at most so long for it."""
JOBS_MAX = 60
WAITING = 1
"""Small jobs in the queue beside those that hold a node."""


@dataclass(slots=True)
class Background:
    """A short queue of small jobs, kept short and never empty."""

    client: AsyncClient
    gpu_type: str
    gpus: int
    nodes: int
    submitted: int = 0
    _open: set[str] = field(default_factory=set)
    _room: asyncio.Event = field(default_factory=asyncio.Event)

    async def keep(self) -> None:
        """Submit one job after the other, so that one always waits; JOBS_MAX in all."""
        while self.submitted < JOBS_MAX:
            while len(self._open) < self.nodes + WAITING and self.submitted < JOBS_MAX:
                self.submitted += 1
                spec = WorkloadSpec.model_validate(
                    {
                        "name": f"small-job-{self.submitted}",
                        "project": "experiments",
                        "priority": PRIORITY,
                        "fencing": "fast",
                        "resources": {"accelerators": f"{self.gpu_type}:{self.gpus}"},
                        "run": f"exec sleep {JOB_S:g}",
                    }
                )
                self._open.add((await self.client.submit(spec)).id)
            self._room.clear()
            await self._room.wait()

    def hear(self, kind: str, data: Mapping[str, Any]) -> None:
        """Take note of an event: an ended job makes room for the next."""
        if kind == "workload.ended" and data.get("workload_id") in self._open:
            self._open.discard(str(data["workload_id"]))
            self._room.set()


def beside(
    spec: WorkloadSpec, client: AsyncClient, nodes: Sequence[tuple[str, int]]
) -> Background | None:
    """Return small jobs that compete with the rollouts of *spec*; None where it has none.

    *nodes* are the fleet's nodes as (GPU type, GPUs).
    """
    wanted = [
        accelerator.type
        for phase in spec.phases
        if phase.role == ROLE
        for accelerator in phase.resources.accelerators
    ]
    for type_ in wanted:
        sizes = [gpus for found, gpus in nodes if found == type_]
        if sizes:
            return Background(client, type_, min(sizes), len(sizes))
    return None
