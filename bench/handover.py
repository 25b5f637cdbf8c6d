"""How long a GPU is empty between two runs while work waits, on the embedded stack."""

import asyncio

from whaleflux.client import AsyncClient
from whaleflux.common.contracts.workload import WorkloadSpec
from whaleflux.local.demo_story import kind_of, percentile
from whaleflux.local.fleet import parse_fleet
from whaleflux.local.session import running_stack, scratch_folder

NAME = "handover"
PEERS: dict[str, float] = {}
NOTES = [
    "a queue of short jobs, each of a whole node; measured by the node's agent from reaping the "
    "last process on the GPUs to exec of the next one, memory-free check included",
    "simulated GPUs: freeing real GPU memory comes on top",
    "budget: p95 below 100 ms",
]
FLEET, FLEET_QUICK = "4xH100x8", "2xH100x8"
JOBS, JOBS_QUICK = 120, 40
TIMEOUT_S = 120.0


def run(quick: bool) -> dict[str, float]:
    """Return the gap in milliseconds."""
    fleet, jobs = (FLEET_QUICK, JOBS_QUICK) if quick else (FLEET, JOBS)
    return asyncio.run(_measure(fleet, jobs))


async def _measure(fleet: str, jobs: int) -> dict[str, float]:
    gaps_ms: list[float] = []
    async with scratch_folder() as paths, running_stack(paths, parse_fleet(fleet)) as session:
        key = paths.api_key.read_text().strip()
        async with AsyncClient(session.addresses.gateway_url, key) as client:
            for number in range(jobs):
                await client.submit(
                    WorkloadSpec.model_validate(
                        {"name": f"job-{number}", "resources": {"accelerators": "H100:8"}}
                        | {"run": "sleep 0.3"}
                    )
                )
            ended = 0
            async with asyncio.timeout(TIMEOUT_S):
                async for event in client.events(since=0):
                    gap = event.data.get("handover_gap_ms")
                    if gap is not None:
                        gaps_ms.append(float(gap))
                    ended += kind_of(event.type) == "workload.ended"
                    if ended == jobs:
                        break
    p50, p95 = percentile(gaps_ms, 0.5), percentile(gaps_ms, 0.95)
    assert p50 is not None and p95 is not None, "no hand-over was measured"
    return {
        "gap_ms_p50": p50,
        "gap_ms_p95": p95,
        "gap_ms_max": max(gaps_ms),
        "handovers": float(len(gaps_ms)),
    }
