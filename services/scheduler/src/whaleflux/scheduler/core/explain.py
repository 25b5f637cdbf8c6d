"""Why a run waits, in one code, one sentence with numbers, and changes that would start it now."""

import difflib
from dataclasses import replace

from whaleflux.common.contracts.scheduler import Explanation, WaitCode
from whaleflux.common.contracts.workload import Accelerator
from whaleflux.scheduler.core.placement import (
    Found,
    Missing,
    Overlay,
    Request,
    find,
    fleet_types,
    gpus_of_type,
)
from whaleflux.scheduler.core.state import State

COUNTERFACTUALS_MAX = 3
"""Changes offered; more would bury the cheapest."""


def never(state: State, request: Request) -> tuple[WaitCode, str] | None:
    """Return why no state of this fleet could ever run *request*, or None.

    A fleet of which no node has joined yet says nothing.
    """
    if not state.nodes or not request.accelerators:
        return None
    reasons = [_never_alternative(state, request, wanted) for wanted in request.accelerators]
    if any(reason is None for reason in reasons):
        return None
    return reasons[0]


def _never_alternative(
    state: State, request: Request, wanted: Accelerator
) -> tuple[WaitCode, str] | None:
    types = fleet_types(state)
    per_node = [len(gpus_of_type(node, wanted.type)) for node in state.nodes.values()]
    if not any(per_node):
        known = ", ".join(f"{count} {name}" for name, count in types.items())
        near = difflib.get_close_matches(wanted.type.upper(), types, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        return (
            WaitCode.NO_SUCH_TYPE,
            f"The fleet has no GPU of type {wanted.type}; it has {known}.{hint}",
        )
    if max(per_node) < wanted.count:
        return (
            WaitCode.EXCEEDS_FLEET_MAX,
            f"Needs {wanted.count} {wanted.type} on one node; the largest node has "
            f"{max(per_node)}. Ask for {max(per_node)} on more nodes (num_nodes).",
        )
    fitting = sum(1 for count in per_node if count >= wanted.count)
    if fitting < request.num_nodes:
        return (
            WaitCode.EXCEEDS_FLEET_MAX,
            f"Needs {request.num_nodes} nodes with {wanted.count} {wanted.type} each; the fleet "
            f"has {fitting}.",
        )
    return None


def explain(overlay: Overlay, request: Request, missing: Missing) -> Explanation:
    """Return why *request* waits, from the filters that turned it away."""
    forever = never(overlay.state, request)
    if forever is not None:
        code, sentence = forever
        return Explanation(code=code, sentence=sentence, funnel=missing.funnel)
    if missing.wanted is None:
        return Explanation(
            code=WaitCode.NO_CAPACITY,
            sentence=f"Needs {request.num_nodes} nodes in service; {missing.fitting_nodes} fit.",
        )
    counts = {step.filter: step.gpus for step in missing.funnel}
    return Explanation(
        code=_code(counts, request, missing.wanted),
        sentence=_sentence(counts, request, missing),
        funnel=missing.funnel,
        starts_if=_starts_if(overlay, request),
    )


def _code(counts: dict[str, int], request: Request, wanted: Accelerator) -> WaitCode:
    if counts["node in service"] == 0:
        return WaitCode.NODE_LOST
    if counts[f"reaches store {request.store}"] == 0:
        return WaitCode.STORE_UNREACHABLE
    if counts["free"] >= wanted.count * request.num_nodes:
        return WaitCode.FRAGMENTED
    return WaitCode.NO_CAPACITY


def _sentence(counts: dict[str, int], request: Request, missing: Missing) -> str:
    wanted = missing.wanted
    assert wanted is not None
    nodes = f" on each of {request.num_nodes} nodes" if request.num_nodes > 1 else " on one node"
    usable = counts[f"reaches store {request.store}"]
    text = f"Needs {wanted.count} {wanted.type}{nodes}. {counts['free']} of {usable} are free"
    if missing.fitting_nodes:
        return f"{text}, and {missing.fitting_nodes} of the nodes it needs could take it now."
    if counts["free"]:
        return f"{text}, on no node enough together."
    return f"{text}."


def _starts_if(overlay: Overlay, request: Request) -> tuple[str, ...]:
    """Try the cheapest single changes, each by a real placement on the same overlay."""
    wanted = request.accelerators[0]
    found: list[str] = []
    for type_ in fleet_types(overlay.state):
        if type_.lower() not in {a.type.lower() for a in request.accelerators}:
            other = (Accelerator(type=type_, count=wanted.count),)
            if isinstance(find(overlay, replace(request, accelerators=other)), Found):
                found.append(f"type {type_} instead of {wanted.type}")
    count = wanted.count // 2
    while count >= 1:
        fewer = (Accelerator(type=wanted.type, count=count),)
        if isinstance(find(overlay, replace(request, accelerators=fewer)), Found):
            found.append(f"{count} {wanted.type} on each node instead of {wanted.count}")
            break
        count //= 2
    nodes = request.num_nodes - 1
    while nodes >= 1:
        if isinstance(find(overlay, replace(request, num_nodes=nodes)), Found):
            found.append(f"{nodes} nodes instead of {request.num_nodes}")
            break
        nodes //= 2
    return tuple(found[:COUNTERFACTUALS_MAX])
