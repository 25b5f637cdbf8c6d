"""From a submission by the SDK to the first line of the program, on the embedded stack."""

import asyncio
import time

from whaleflux.client import AsyncClient
from whaleflux.common.contracts.workload import WorkloadSpec
from whaleflux.local.demo_story import percentile
from whaleflux.local.fleet import parse_fleet
from whaleflux.local.session import running_stack, scratch_folder

NAME = "submit-latency"
PEERS: dict[str, float] = {}
NOTES = [
    "one job at a time on one simulated node of this machine, by HTTP, durable in the log",
    "the end is the program's own clock (EPOCHREALTIME in its first line)",
    "budget: p50 below 150 ms",
]
FLEET = "1xH100x8"
JOBS, JOBS_QUICK = 100, 25
WARM_UP = 3
JOB_TIMEOUT_S = 30.0
SCRIPT = 'echo "$EPOCHREALTIME" > "$WHALEFLUX_OUTPUT_DIR/started"'


def run(quick: bool) -> dict[str, float]:
    """Return milliseconds from the call of `submit` to the program."""
    return asyncio.run(_measure(JOBS_QUICK if quick else JOBS))


async def _measure(jobs: int) -> dict[str, float]:
    submitted: dict[str, float] = {}
    taken_ms: list[float] = []
    async with scratch_folder() as paths, running_stack(paths, parse_fleet(FLEET)) as session:
        key = paths.api_key.read_text().strip()
        async with AsyncClient(session.addresses.gateway_url, key) as client:
            for number in range(WARM_UP + jobs):
                spec = WorkloadSpec.model_validate(
                    {"name": f"latency-{number}", "resources": {"accelerators": "H100:1"}}
                    | {"run": SCRIPT}
                )
                before_s = time.time()
                workload = await client.submit(spec)
                taken_ms.append((time.time() - before_s) * 1000)
                submitted[workload.id] = before_s
                ended = await client.wait(workload.id, timeout_s=JOB_TIMEOUT_S)
                assert ended.state == "succeeded", ended.reason
        latencies = [
            float((paths.store / f"runs/{id_}-main-1/a1/output/started").read_text()) - before_s
            for id_, before_s in list(submitted.items())[WARM_UP:]
        ]
    in_ms = [latency * 1000 for latency in latencies]
    p50, p95, call = (
        percentile(in_ms, 0.5),
        percentile(in_ms, 0.95),
        percentile(taken_ms[WARM_UP:], 0.5),
    )
    assert p50 is not None and p95 is not None and call is not None
    return {
        "submit_to_start_ms_p50": p50,
        "submit_to_start_ms_p95": p95,
        "submit_call_ms_p50": call,
        "jobs": float(len(in_ms)),
    }
