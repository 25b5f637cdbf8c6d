"""The newest figures of every GPU, in memory."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from whaleflux.common.contracts.telemetry import GpuSample, NodeSample
from whaleflux.telemetry.shell.settings import STALE_AFTER_S


@dataclass(frozen=True, slots=True)
class Reading:
    """What one GPU said last."""

    node_id: str
    simulated: bool
    sample: GpuSample
    body: bytes
    """JSON: the fields of `GpuSample`, and `node_id`, `at`, `simulated`."""
    heard_at_s: float
    """Boottime of this process."""


@dataclass(frozen=True, slots=True)
class Probed:
    """Whether a node could measure at all."""

    error: str | None
    heard_at_s: float


class Live:
    """Readings by GPU; what is stale is not there."""

    def __init__(self) -> None:
        self._readings: dict[str, Reading] = {}
        self._nodes: dict[str, Probed] = {}

    def take(self, sample: NodeSample, now_s: float) -> list[Reading]:
        """Keep the figures of *sample* and return them.

        A GPU belongs to the node that reported it first, until that node has been silent about it
        for so long that its figures are stale; what another node says of it meanwhile is left out.
        """
        self._nodes[sample.node_id] = Probed(sample.probe_error, now_s)
        about = {"node_id": sample.node_id, "at": sample.at.isoformat()}
        tail = b"," + json.dumps({**about, "simulated": sample.simulated}).encode()[1:]
        taken: list[Reading] = []
        for gpu in sample.gpus:
            if self._belongs_elsewhere(gpu.uuid, sample.node_id, now_s):
                continue
            # Two JSON objects are joined as text: this runs for every GPU and second.
            body = gpu.__pydantic_serializer__.to_json(gpu)[:-1] + tail
            reading = Reading(sample.node_id, sample.simulated, gpu, body, now_s)
            self._readings[gpu.uuid] = reading
            taken.append(reading)
        return taken

    def _belongs_elsewhere(self, uuid: str, node_id: str, now_s: float) -> bool:
        before = self._readings.get(uuid)
        if before is None or before.node_id == node_id:
            return False
        return not _stale(before.heard_at_s, now_s)

    def readings(self, now_s: float) -> Iterator[Reading]:
        """Yield what is not stale, in order of the GPUs' identity."""
        for uuid in sorted(self._readings):
            reading = self._readings.get(uuid)
            if reading is not None and not _stale(reading.heard_at_s, now_s):
                yield reading

    def nodes(self, now_s: float) -> Iterator[tuple[str, str | None]]:
        """Yield each node that is heard and why it cannot measure, or None."""
        for node_id, probed in list(self._nodes.items()):
            if not _stale(probed.heard_at_s, now_s):
                yield node_id, probed.error

    def forget_stale(self, now_s: float) -> None:
        """Let go of what will not be shown again."""
        for uuid in [u for u, r in self._readings.items() if _stale(r.heard_at_s, now_s)]:
            del self._readings[uuid]
        for node_id in [n for n, p in self._nodes.items() if _stale(p.heard_at_s, now_s)]:
            del self._nodes[node_id]


def _stale(heard_at_s: float, now_s: float) -> bool:
    return now_s - heard_at_s > STALE_AFTER_S
