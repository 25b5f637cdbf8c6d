"""What the embedded stack costs while it does nothing, and how long it takes to be ready."""

import asyncio

from whaleflux.local.fleet import DEFAULT_FLEET, parse_fleet
from whaleflux.local.processes import proportional_mib, resident_mib
from whaleflux.local.session import running_stack, scratch_folder

NAME = "idle"
PEERS: dict[str, float] = {}
NOTES = [
    "eight simulated nodes on this machine; resident memory counts shared pages in every process",
    "proportional_mib_total divides shared pages by their sharers: what the machine really gives",
    "budget: ready in 10 s on 2 cores, under 1 GB in all, under 100 MB for each Python process",
]
QUICK_FLEET = "1xH100x8,1xA100x8"
SETTLE_S = 3.0


def run(quick: bool) -> dict[str, float]:
    """Return memory in MiB and seconds until ready."""
    return asyncio.run(_measure(QUICK_FLEET if quick else DEFAULT_FLEET))


async def _measure(fleet: str) -> dict[str, float]:
    async with (
        scratch_folder() as paths,
        running_stack(paths, parse_fleet(fleet)) as session,
    ):
        await asyncio.sleep(SETTLE_S)
        pids = [process.pid for process in session.stack.supervisor.records]
        resident = [resident_mib(pid) or 0.0 for pid in pids]
        proportional = [proportional_mib(pid) or 0.0 for pid in pids]
        return {
            "resident_mib_total": sum(resident),
            "resident_mib_max": max(resident),
            "proportional_mib_total": sum(proportional),
            "ready_s": session.ready_s,
            "processes": float(len(pids)),
        }
