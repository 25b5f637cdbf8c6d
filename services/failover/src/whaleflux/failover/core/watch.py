"""How long each node has been silent, and whether the silence may be our own fault.

The clocks are not in the log: a leader that takes over, or that could not write for a while, did
not hear everybody, so it gives every node the full time again.
"""

from dataclasses import dataclass

from whaleflux.common.contracts.failover import LOST_AFTER_S
from whaleflux.failover.core.command import Sweep
from whaleflux.failover.core.state import FencedPatient, Live, State

OUTAGE_NODES_MIN = 4
"""With fewer nodes, losing most of them at once is an ordinary fault."""
OUTAGE_WINDOW_S = 5.0
"""Nodes that fall silent within this time of one another fell silent together."""
HOLD_S_MAX = 60.0
"""How long fencing is held back when most nodes fall silent together."""
SETTLE_S = 5.0
"""How long the others get after the first of them is heard again."""
SWEEP_NODES_MAX = 150
"""Nodes in one decision; each may give three events, and a decision holds 500."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Fencing is held back: most nodes fell silent together."""

    nodes: frozenset[str]
    until_s: float
    """Boottime at which it ends."""
    heard: bool = False
    """One of the nodes renewed, so the end was drawn nearer."""


class Watch:
    """The clocks of one term; all times are the leader's own boottime in seconds."""

    def __init__(self, term: str) -> None:
        """Wait for `restart`; *term* is that of the leader."""
        self.term = term
        self._renewed_at_s: dict[str, float] = {}
        self._live: set[str] = set()
        self._hold: Hold | None = None
        self._excused: frozenset[str] = frozenset()

    @property
    def holding(self) -> bool:
        """Return whether fencing is held back because most nodes fell silent together."""
        return self._hold is not None

    def restart(self, state: State, at_s: float) -> None:
        """Give every node of *state* the full time again."""
        self._renewed_at_s = dict.fromkeys(state.nodes, at_s)
        self._live = {node_id for node_id, node in state.nodes.items() if isinstance(node, Live)}
        self._hold = None
        self._excused = frozenset()

    def renewed(self, node_id: str, at_s: float) -> None:
        """Note that *node_id* was granted a renewal."""
        self._renewed_at_s[node_id] = at_s
        self._live.add(node_id)

    def may_run_on(self, node_id: str, frozen_at_s: float) -> bool:
        """Return whether a node may be told `frozen` when writing failed at *frozen_at_s*.

        Of a node that was silent by then, a fact may be on its way to the log that lets its work
        start elsewhere; it must not hear anything that keeps its members alive.
        """
        if node_id not in self._renewed_at_s:
            return True
        return node_id in self._live and self.silence_s(node_id, frozen_at_s) < LOST_AFTER_S

    def silence_s(self, node_id: str, at_s: float) -> float:
        """Return the seconds since the last granted renewal; 0 for a node without one."""
        return at_s - self._renewed_at_s.get(node_id, at_s)

    def sweeps(self, state: State, at_s: float) -> list[Sweep]:
        """Return what is to be decided about nodes that are silent at *at_s*."""
        watched = [n for n, node in state.nodes.items() if not isinstance(node, FencedPatient)]
        for node_id in watched:
            self._renewed_at_s.setdefault(node_id, at_s)
        silent = [n for n in watched if self.silence_s(n, at_s) >= LOST_AFTER_S]
        self._judge_outage(len(watched), frozenset(silent), at_s)
        return [
            Sweep(
                self.term,
                {n: self.silence_s(n, at_s) for n in silent[start : start + SWEEP_NODES_MAX]},
                holding=self.holding,
            )
            for start in range(0, len(silent), SWEEP_NODES_MAX)
        ]

    def _judge_outage(self, watched: int, silent: frozenset[str], at_s: float) -> None:
        self._excused &= silent
        if self._hold is not None:
            self._review(self._hold, silent, at_s)
        elif watched >= OUTAGE_NODES_MIN:
            together = self._most_together(silent - self._excused)
            if together * 2 > watched:
                self._hold = Hold(silent, at_s + HOLD_S_MAX)

    def _review(self, hold: Hold, silent: frozenset[str], at_s: float) -> None:
        if not hold.heard and hold.nodes - silent:
            hold = Hold(hold.nodes, min(hold.until_s, at_s + SETTLE_S), heard=True)
        if at_s < hold.until_s:
            self._hold = hold
            return
        # What is still silent has been given its time and must not start another hold.
        self._hold = None
        self._excused = silent

    def _most_together(self, nodes: frozenset[str]) -> int:
        """Return how many of *nodes* fell silent within one window."""
        times = sorted(self._renewed_at_s[node] for node in nodes)
        most = first = 0
        for last, time in enumerate(times):
            while time - times[first] > OUTAGE_WINDOW_S:
                first += 1
            most = max(most, last - first + 1)
        return most
