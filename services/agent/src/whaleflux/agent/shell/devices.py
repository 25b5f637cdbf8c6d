"""Which probe a node has."""

from whaleflux.agent.shell.nvml_probe import NvmlProbe
from whaleflux.agent.shell.probe import Probe
from whaleflux.agent.shell.simulated_probe import SimulatedProbe
from whaleflux.common.clock import Clock, SystemClock
from whaleflux.common.errors import Refused


def open_probe(devices: str, node_id: str, *, clock: Clock | None = None) -> Probe:
    """Return the probe that *devices* asks for: `nvml`, or `simulated:H200x8`.

    A simulated node may mix types: `simulated:H200x4,RTX4090x2`.

    Raises:
        Refused: *devices* is neither.

    """
    kind, _, types = devices.partition(":")
    if kind == "nvml" and not types:
        return NvmlProbe(node_id, clock=clock or SystemClock())
    if kind == "simulated":
        return SimulatedProbe(node_id, types=types, clock=clock or SystemClock())
    raise Refused(
        f"devices is {devices!r}; write 'nvml' or 'simulated:<type>x<count>', such as"
        " 'simulated:H200x8'",
        code="bad_devices",
        fields={"devices": devices},
    )
