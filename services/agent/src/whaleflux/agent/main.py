"""Put one node's agent together and run it."""

from typing import cast

from whaleflux.agent.shell.devices import open_probe
from whaleflux.agent.shell.sampler import run_sampler
from whaleflux.agent.shell.service import AgentService
from whaleflux.agent.shell.settings import AgentSettings
from whaleflux.common.runtime import Runtime, run


async def serve(runtime: Runtime) -> None:
    """Wire the agent to its node and its bus."""
    settings = cast(AgentSettings, runtime.settings)
    probe = open_probe(settings.devices, settings.node_id, clock=runtime.clock)
    service = AgentService(
        settings,
        js=runtime.js,
        clock=runtime.clock,
        ids=runtime.ids,
        probe=probe,
        group=runtime.group,
        say_health=runtime.health.set,
    )
    runtime.group.create_task(run_sampler(probe, runtime.bus, settings.node_id, service.holders))
    try:
        await service.run()
    finally:
        await probe.close()


def main() -> None:
    """Run until told to stop."""
    run("agent", serve, AgentSettings())  # pyright: ignore[reportCallIssue]  # from the environment
