"""What a node should be running now: derived from the state, never stored."""

import zlib

from whaleflux.common.contracts.assignment import AssignedMember, Assignment
from whaleflux.scheduler.core.decide import STORE_DEFAULT
from whaleflux.scheduler.core.state import Ended, Live, Queued, Run, State, Stopping, left

PORT_FIRST = 20_000
PORT_COUNT = 12_000
"""Rendezvous ports lie below Linux' ephemeral range (32768 and up)."""


def assignment(state: State, node_id: str, incarnation: int = 0) -> Assignment:
    """Return the full set of members that *node_id* should be running."""
    node = state.nodes[node_id]
    members: list[AssignedMember] = []
    for (run_id, rank), _attempt in sorted(node.members.items()):
        run = state.runs[run_id]
        if isinstance(run.state, Queued | Ended):
            continue
        members.append(_member(state, run, run.state, rank))
    return Assignment(
        node_id=node_id, incarnation=incarnation, version=node.version, members=tuple(members)
    )


def _member(state: State, run: Run, live: Live, rank: int) -> AssignedMember:
    workload = state.workloads[run.workload_id]
    spec = workload.spec
    placed = next(m for m in left(live) if m.rank == rank)
    return AssignedMember(
        run_id=run.run_id,
        attempt=live.attempt,
        rank=rank,
        world_size=len(live.placement),
        workload_id=run.workload_id,
        tenant=run.tenant,
        project=spec.project,
        phase=run.phase.name,
        iteration=run.iteration,
        role=run.phase.role,
        desired="stop" if isinstance(live, Stopping) else "run",
        gpus=placed.gpus,
        gpu_type=live.gpu_type,
        handover=placed.handover,
        nodes=tuple(m.node_id for m in live.placement),
        master_port=rendezvous_port(run.run_id, live.attempt),
        store=spec.store or STORE_DEFAULT,
        setup=run.phase.setup,
        run=run.phase.run,
        envs={**spec.envs, **run.phase.envs},
        workdir=spec.workdir,
        inputs=run.inputs,
        resume_from=live.resume_from,
        grace_s=workload.checkpoint(run.phase).grace_s,
        fencing=workload.fencing(run.phase),
        max_runtime_s=run.phase.max_runtime_s,
    )


def rendezvous_port(run_id: str, attempt: int) -> int:
    """Return the port on which the members of one attempt find each other."""
    return PORT_FIRST + zlib.crc32(f"{run_id}/{attempt}".encode()) % PORT_COUNT
