"""Which nodes the embedded stack has, read from a short description.

`2xH200x8,1xRTX4090x4` means two nodes with eight H200 each and one node with four RTX 4090.
"""

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from whaleflux.agent.shell.simulated_probe import MODELS
from whaleflux.common.errors import Refused

DEFAULT_FLEET = "2xH200x8,2xH100x8,2xA100x8,2xRTX4090x8"
NODES_MAX = 32
"""Each node is a process of about 60 MiB; more than this does not fit a laptop."""
GPUS_PER_NODE_MAX = 64
REAL_NODE = "local-0"
KNOWN_TYPES = tuple(MODELS)
"""The types that can be simulated; real devices are named by their driver."""

_ENTRY = re.compile(r"(?P<nodes>\d+)x(?P<type>[A-Za-z0-9]+)x(?P<gpus>\d+)")


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the embedded fleet; `devices` is what its agent is told to look for."""

    name: str
    devices: str

    @property
    def simulated(self) -> bool:
        """Whether its GPUs are made up."""
        return self.devices.startswith("simulated:")


def parse_fleet(text: str) -> tuple[Node, ...]:
    """Return the nodes that *text* describes, in its order.

    Raises:
        Refused: The text does not read as a fleet; the sentence says which entry and why.

    """
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not entries:
        raise Refused(f"The fleet is empty; write it like {DEFAULT_FLEET!r}.", code="fleet")
    nodes: list[Node] = []
    seen: dict[str, int] = {}
    for entry in entries:
        count, type_, gpus = _parse_entry(entry)
        for _ in range(count):
            index = seen.get(type_, 0)
            seen[type_] = index + 1
            nodes.append(Node(f"{type_.lower()}-{index}", f"simulated:{type_}x{gpus}"))
    if len(nodes) > NODES_MAX:
        raise Refused(
            f"The fleet has {len(nodes)} nodes; the embedded stack runs at most {NODES_MAX}.",
            code="fleet",
        )
    return tuple(nodes)


def real_fleet() -> tuple[Node, ...]:
    """Return the one node that has this machine's own GPUs.

    Raises:
        Refused: There are none.

    """
    if count_real_gpus() == 0:
        raise Refused(
            "No NVIDIA GPU is visible on this machine; leave out --real to simulate a fleet.",
            code="no_gpu",
        )
    return (Node(REAL_NODE, "nvml"),)


def count_real_gpus(devices: Path = Path("/dev")) -> int:
    """Return how many NVIDIA GPUs *devices* shows, without loading a driver."""
    return sum(1 for path in devices.glob("nvidia[0-9]*") if path.name[6:].isdigit())


def _parse_entry(entry: str) -> tuple[int, str, int]:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise Refused(
            f"Fleet entry {entry!r} does not read as <nodes>x<type>x<GPUs per node>, "
            "for example 2xH100x8.",
            code="fleet",
        )
    count, gpus = int(match["nodes"]), int(match["gpus"])
    if not 1 <= count <= NODES_MAX:
        raise Refused(f"Fleet entry {entry!r}: write 1 to {NODES_MAX} nodes.", code="fleet")
    if not 1 <= gpus <= GPUS_PER_NODE_MAX:
        raise Refused(
            f"Fleet entry {entry!r}: write 1 to {GPUS_PER_NODE_MAX} GPUs for each node.",
            code="fleet",
        )
    return count, _known_type(entry, match["type"]), gpus


def _known_type(entry: str, type_: str) -> str:
    by_lower = {known.lower(): known for known in KNOWN_TYPES}
    if type_.lower() in by_lower:
        return by_lower[type_.lower()]
    near = difflib.get_close_matches(type_.lower(), by_lower, n=1, cutoff=0.4)
    hint = f" Did you mean {by_lower[near[0]]}?" if near else ""
    raise Refused(
        f"Fleet entry {entry!r}: there is no simulated GPU type {type_!r}.{hint} "
        f"Known are {', '.join(KNOWN_TYPES)}.",
        code="fleet",
    )
