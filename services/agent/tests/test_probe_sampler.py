"""The sampler in virtual time: one message a second, none when nobody can hear."""

import asyncio
import contextlib

from whaleflux.agent.shell.devices import open_probe
from whaleflux.agent.shell.sampler import run_sampler
from whaleflux.common.contracts.telemetry import NodeSample
from whaleflux.common.errors import Unavailable
from whaleflux.common.testing.loop import run_virtual


class Wire:
    """The bus as the sampler sees it."""

    def __init__(self) -> None:
        self.connected = True
        self.breaks = False
        self.sent: list[tuple[str, NodeSample]] = []

    async def publish(self, subject: str, body: bytes) -> None:
        if self.breaks:
            raise Unavailable("the connection dropped meanwhile")
        self.sent.append((subject, NodeSample.model_validate_json(body)))


async def _run_for(wire: Wire, seconds: float, *, node_id: str = "n0") -> None:
    probe = open_probe("simulated:H100x2", node_id)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await run_sampler(probe, wire, node_id, lambda: {1: "r"})


def test_a_node_sends_one_sample_a_second_on_its_own_subject() -> None:
    wire = Wire()
    run_virtual(lambda: _run_for(wire, 60))
    assert 59 <= len(wire.sent) <= 61
    assert {subject for subject, _ in wire.sent} == {"wf.smp.n0"}
    assert {gpu.run_id for _, sample in wire.sent for gpu in sample.gpus} == {None, "r"}


def test_nodes_that_start_together_do_not_send_together() -> None:
    async def first_at_s(node_id: str) -> float:
        wire, loop = Wire(), asyncio.get_running_loop()
        began = loop.time()
        probe = open_probe("simulated:H100x1", node_id)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(run_sampler(probe, wire, node_id, dict))
            while not wire.sent:
                await asyncio.sleep(0.001)
            task.cancel()
        return round(loop.time() - began, 2)

    offsets = {run_virtual(lambda n=f"node-{i}": first_at_s(n)) for i in range(8)}  # type: ignore[misc]  # a default binds the loop variable
    assert len(offsets) >= 6


def test_samples_are_dropped_while_disconnected_and_flow_again_afterwards() -> None:
    wire = Wire()

    async def story() -> None:
        wire.connected = False
        await _run_for(wire, 30)
        assert wire.sent == []
        wire.connected, wire.breaks = True, True
        await _run_for(wire, 30)
        assert wire.sent == []
        wire.breaks = False
        await _run_for(wire, 10)

    run_virtual(story)
    assert 9 <= len(wire.sent) <= 11
