"""What nodes measure. What a card cannot say is None, never zero."""

from datetime import datetime
from typing import Literal

from whaleflux.common.contracts.base import Message, Part, Token


class GpuSample(Part):
    """One GPU at one moment."""

    index: int
    uuid: str
    type: str
    utilisation_pct: float | None = None
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    ecc_uncorrected: int | None = None
    run_id: str | None = None
    """The run whose member holds this GPU; None when it is free."""


class NodeSample(Message):
    """All GPUs of a node at one tick; one message for each node and second."""

    type: Literal["agent.node.sampled.v1"] = "agent.node.sampled.v1"
    node_id: Token
    at: datetime
    simulated: bool
    probe_error: str | None = None
    """Why the figures are missing: `nvml stuck`, `no driver` …"""
    gpus: tuple[GpuSample, ...]


class GpusRequest(Part):
    """Ask telemetry (`wf.qry.telemetry.gpus`) for the newest figures of GPUs.

    The answer is `{"items": [...], "next": uuid or null}`; each item has the fields of `GpuSample`
    and `node_id`, `at` and `simulated`. An empty question asks for all of them.
    """

    node_id: Token | None = None
    """Only GPUs of this node."""
    after: str = ""
    """The `next` of the answer before, when not all GPUs fitted into it."""
