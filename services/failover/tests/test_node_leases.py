"""Nodes under renewals, silence, reboots and changes of leader, in virtual time."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whaleflux.common.contracts.failover import (
    LOST_AFTER_S,
    FailoverEvent,
    FailoverRecord,
    LeaderElected,
    LeaseAnswer,
    NodeAdmitted,
    NodeFenced,
    NodeLost,
    NodeReturned,
)
from whaleflux.common.contracts.workload import FENCING_S, SELF_FENCE_MARGIN_S, Fencing
from whaleflux.failover.core.command import Elect, RenewLease, Sweep, Thought
from whaleflux.failover.core.decide import answer, decide
from whaleflux.failover.core.evolve import evolve
from whaleflux.failover.core.state import FencedFast, FencedPatient, Live, Lost, NodeState, State
from whaleflux.failover.core.watch import HOLD_S_MAX, SETTLE_S, Watch

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Controller:
    """What the shell does around the core, without a bus: one leader after another."""

    at_s: float = 1000.0
    state: State = field(default_factory=State)
    watch: Watch = field(default_factory=lambda: Watch(""))
    older: list[Watch] = field(default_factory=list)
    log: list[tuple[float, FailoverEvent]] = field(default_factory=list)
    records: list[FailoverRecord] = field(default_factory=list)

    def think(self, command: Thought) -> list[FailoverRecord]:
        events = list(decide(self.state, command, START + timedelta(seconds=self.at_s)))
        for event in events:
            self.records.append(event)
            if not isinstance(event, LeaderElected):
                self.log.append((self.at_s, event))
            evolve(self.state, event, len(self.records))
        return events

    def renew(self, node: str, *, boot: str = "b0", clean: bool = False) -> LeaseAnswer:
        silent_s = self.watch.silence_s(node, self.at_s)
        self.think(
            RenewLease(
                node_id=node,
                boot_id=boot,
                agent_id="a",
                clean=clean,
                term=self.watch.term,
                silent_s=silent_s,
            )
        )
        verdict = answer(self.state, node_id=node, boot_id=boot)
        if verdict is LeaseAnswer.GRANTED:
            self.watch.renewed(node, self.at_s)
        return verdict

    def sweep(self) -> list[FailoverRecord]:
        return [e for sweep in self.watch.sweeps(self.state, self.at_s) for e in self.think(sweep)]

    def take_over(self) -> None:
        """Another leader, which knows only the log."""
        self.older.append(self.watch)
        self.state, self.watch = State(), Watch(f"term-{len(self.older)}")
        for seq, event in enumerate(self.records, 1):
            evolve(self.state, event, seq)
        self.think(Elect(self.watch.term))
        self.watch.restart(self.state, self.at_s)

    def wake_older(self) -> list[FailoverRecord]:
        """A leader of before wakes up, reads on and decides by its own old clocks."""
        return [
            event
            for watch in self.older
            for sweep in watch.sweeps(self.state, self.at_s)
            for event in self.think(sweep)
        ]

    def wait(self, seconds: float, *, renewing: tuple[str, ...] = ()) -> list[str]:
        """Let time pass in steps of a second; return the types of what happened."""
        first = len(self.log)
        for _ in range(round(seconds)):
            self.at_s += 1
            for node in renewing:
                self.renew(node)
            self.sweep()
        return [_name(event) for _, event in self.log[first:]]

    def kinds(self, node: str) -> list[str]:
        return [_name(event) for _, event in self.log if event.node_id == node]


def _name(event: FailoverEvent) -> str:
    if isinstance(event, NodeFenced):
        return f"fenced {event.fencing.value}"
    return event.type.split(".")[2]


def test_a_node_heard_for_the_first_time_is_admitted_and_granted() -> None:
    controller = Controller()
    assert controller.renew("n0") is LeaseAnswer.GRANTED
    assert controller.renew("n0") is LeaseAnswer.GRANTED
    assert controller.kinds("n0") == ["admitted"]


def test_silence_loses_a_node_after_10_s_and_fences_it_after_25_and_305() -> None:
    controller = Controller()
    controller.renew("n0")
    assert controller.wait(9) == []
    assert controller.wait(1) == ["lost"]
    assert controller.wait(14) == []
    assert controller.wait(1) == ["fenced fast"]
    assert controller.wait(279) == []
    assert controller.wait(1) == ["fenced patient"]
    assert controller.wait(1000) == []


def test_a_lost_node_that_renews_before_it_is_fenced_returns_with_its_members() -> None:
    controller = Controller()
    controller.renew("n0")
    controller.wait(20)
    assert controller.renew("n0", clean=False) is LeaseAnswer.GRANTED
    assert controller.kinds("n0") == ["admitted", "lost", "returned"]


def test_a_fenced_node_is_told_so_until_it_is_clean() -> None:
    controller = Controller()
    controller.renew("n0")
    controller.wait(30)
    assert controller.renew("n0") is LeaseAnswer.FENCED
    controller.wait(5)
    assert controller.renew("n0") is LeaseAnswer.FENCED
    assert controller.renew("n0", clean=True) is LeaseAnswer.GRANTED
    assert controller.kinds("n0") == [
        "admitted",
        "lost",
        "fenced fast",
        "fenced patient",
        "returned",
    ]


def test_a_fenced_node_that_asks_in_vain_does_not_delay_the_patient_fence() -> None:
    controller = Controller()
    controller.renew("n0")
    renewed_at_s = controller.at_s
    controller.wait(30)
    for _ in range(300):
        controller.at_s += 1
        controller.renew("n0")
        controller.sweep()
    fenced_at_s = [at for at, e in controller.log if _name(e) == "fenced patient"]
    assert fenced_at_s == [renewed_at_s + 305]


def test_a_restarted_agent_on_the_same_boot_keeps_its_members() -> None:
    controller = Controller()
    controller.renew("n0")
    controller.at_s += 4
    controller.think(RenewLease("n0", "b0", "another agent", clean=False, term="", silent_s=4))
    assert answer(controller.state, node_id="n0", boot_id="b0") is LeaseAnswer.GRANTED
    assert controller.kinds("n0") == ["admitted"]


def test_a_rebooted_machine_has_lost_all_its_members_and_returns_at_once() -> None:
    controller = Controller()
    controller.renew("n0")
    controller.at_s += 5
    assert controller.renew("n0", boot="b1", clean=True) is LeaseAnswer.GRANTED
    assert controller.kinds("n0") == [
        "admitted",
        "lost",
        "fenced fast",
        "fenced patient",
        "returned",
    ]
    assert controller.state.nodes["n0"] == Live("b1", 1)


@pytest.mark.parametrize("silent_s", [12, 40, 400])
def test_a_machine_that_reboots_while_it_is_missed_is_fenced_only_for_what_is_left(
    silent_s: int,
) -> None:
    controller = Controller()
    controller.renew("n0")
    controller.wait(silent_s)
    assert controller.renew("n0", boot="b1", clean=True) is LeaseAnswer.GRANTED
    assert controller.kinds("n0") == [
        "admitted",
        "lost",
        "fenced fast",
        "fenced patient",
        "returned",
    ]


def test_a_second_machine_under_the_same_name_is_not_let_in() -> None:
    controller = Controller()
    for _ in range(30):
        controller.at_s += 1
        assert controller.renew("n0", boot="b0") is LeaseAnswer.GRANTED
        assert controller.renew("n0", boot="impostor", clean=True) is LeaseAnswer.FENCED
    assert controller.kinds("n0") == ["admitted"]


def test_incidents_are_numbered_across_nodes_and_kept_through_a_whole_incident() -> None:
    controller = Controller()
    for node in ("n0", "n1"):
        controller.renew(node)
    controller.wait(30)
    for node in ("n0", "n1"):
        controller.renew(node, clean=True)
    numbers = {
        (e.node_id, e.incident) for _, e in controller.log if not isinstance(e, NodeAdmitted)
    }
    assert numbers == {("n0", 1), ("n1", 2)}


def test_a_new_leader_gives_every_node_the_full_time_again() -> None:
    controller = Controller()
    controller.renew("n0")
    controller.wait(24)
    controller.take_over()
    assert controller.wait(24) == []
    assert controller.wait(1) == ["fenced fast"]


def test_a_leader_that_slept_cannot_fence_the_nodes_of_its_successor() -> None:
    controller = Controller()
    controller.renew("n0")
    controller.at_s += 16
    controller.take_over()
    controller.wait(60, renewing=("n0",))
    assert controller.wake_older() == []
    assert controller.kinds("n0") == ["admitted"]


def test_only_a_node_that_was_live_may_run_on_while_the_log_cannot_be_written() -> None:
    controller = Controller()
    for node in ("live", "silent"):
        controller.renew(node)
    controller.wait(12, renewing=("live",))
    may = controller.watch.may_run_on
    assert [may(n, controller.at_s) for n in ("live", "silent", "new")] == [True, False, True]
    controller.take_over()
    may = controller.watch.may_run_on
    assert [may(n, controller.at_s) for n in ("live", "silent", "new")] == [True, False, True]
    controller.renew("silent")
    assert may("silent", controller.at_s)


def test_most_nodes_silent_at_once_are_lost_but_not_fenced_for_a_minute() -> None:
    controller = Controller()
    names = [f"n{i}" for i in range(5)]
    for node in names:
        controller.renew(node)
    first_lost_s = LOST_AFTER_S
    happened = controller.wait(first_lost_s + HOLD_S_MAX - 1, renewing=("n0",))
    assert happened == ["lost"] * 4
    assert controller.wait(2, renewing=("n0",)) == ["fenced fast"] * 4
    assert controller.wait(400, renewing=("n0",)) == ["fenced patient"] * 4


def test_one_node_heard_again_ends_the_hold_after_the_others_had_time_to_speak() -> None:
    controller = Controller()
    names = [f"n{i}" for i in range(4)]
    for node in names:
        controller.renew(node)
    controller.wait(40)
    assert controller.watch.holding
    assert controller.wait(SETTLE_S - 1, renewing=("n0", "n1")) == ["returned", "returned"]
    assert controller.wait(3, renewing=("n0", "n1")) == ["fenced fast", "fenced fast"]
    assert not controller.watch.holding


def test_losing_most_of_three_nodes_is_an_ordinary_fault() -> None:
    controller = Controller()
    for node in ("n0", "n1", "n2"):
        controller.renew(node)
    assert controller.wait(25).count("fenced fast") == 3


def test_nodes_that_fall_silent_one_after_another_are_not_held_back() -> None:
    controller = Controller()
    names = [f"n{i}" for i in range(6)]
    for node in names:
        controller.renew(node)
    for silent in range(1, 7):
        controller.wait(6, renewing=tuple(names[silent:]))
        assert not controller.watch.holding
    assert controller.wait(30).count("fenced fast") >= 1


def test_a_sweep_never_makes_more_events_than_one_append_takes() -> None:
    controller = Controller()
    for i in range(1000):
        controller.renew(f"n{i}")
    controller.at_s += 400
    sweeps = controller.watch.sweeps(controller.state, controller.at_s)
    assert sum(len(s.silences_s) for s in sweeps) == 1000
    for sweep in sweeps:
        unheld = Sweep("", sweep.silences_s, holding=False)
        assert len(decide(controller.state, unheld, START)) <= 500


NODES = ("n0", "n1", "n2", "n3", "n4")
ONE_NODE = st.sampled_from(("n0", "n0", "n0", *NODES))
SECONDS = st.one_of(
    st.floats(min_value=0.01, max_value=20.0), st.floats(min_value=20.0, max_value=320.0)
)
STEPS = st.one_of(
    st.tuples(st.just("wait"), SECONDS),
    st.tuples(st.just("watch"), SECONDS),
    st.tuples(st.just("take_over"), st.none()),
    st.tuples(st.just("wake_older"), st.none()),
    st.tuples(st.just("renew"), ONE_NODE),
    st.tuples(st.just("renew_clean"), ONE_NODE),
    st.tuples(st.just("reboot"), ONE_NODE),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_no_fence_is_announced_before_every_member_must_be_dead(
    steps: list[tuple[str, object]],
) -> None:
    controller = Controller()
    granted_at_s: dict[str, float] = {}
    granted_boot: dict[str, str] = {}
    boots = dict.fromkeys(NODES, 0)
    for kind, argument in steps:
        before = len(controller.log)
        proof = False
        if kind in ("wait", "watch"):
            assert isinstance(argument, float)
            controller.at_s += argument
            if kind == "watch":
                controller.sweep()
        elif kind == "take_over":
            controller.take_over()
        elif kind == "wake_older":
            controller.wake_older()
        else:
            node = str(argument)
            boots[node] += kind == "reboot"
            boot = f"b{boots[node]}"
            proof = kind == "renew_clean" or boot != granted_boot.get(node)
            clean = kind != "renew"
            if controller.renew(node, boot=boot, clean=clean) is LeaseAnswer.GRANTED:
                granted_at_s[node] = controller.at_s
                granted_boot[node] = boot
        for at_s, event in controller.log[before:]:
            if isinstance(event, NodeFenced) and not proof:
                dead_at_s = granted_at_s[event.node_id] + FENCING_S[event.fencing]
                assert at_s >= dead_at_s + SELF_FENCE_MARGIN_S
    for node in NODES:
        _assert_incidents_are_complete(controller.kinds(node))


def _assert_incidents_are_complete(kinds: list[str]) -> None:
    """Every incident is lost, then fenced in order or not at all, then returned."""
    allowed = {
        "": {"admitted"},
        "admitted": {"lost"},
        "lost": {"fenced fast", "returned"},
        "fenced fast": {"fenced patient"},
        "fenced patient": {"returned"},
        "returned": {"lost"},
    }
    for earlier, later in zip(["", *kinds], kinds, strict=False):
        assert later in allowed[earlier], kinds


STATES: tuple[NodeState | None, ...] = (
    None,
    Live("b0", 0),
    Live("b0", 3),
    Lost("b0", 3),
    FencedFast("b0", 3),
    FencedPatient("b0", 3),
)
EVENTS: tuple[FailoverEvent, ...] = (
    NodeAdmitted(at=START, node_id="n0", boot_id="b1"),
    NodeLost(at=START, node_id="n0", incident=4, silent_s=10),
    NodeFenced(at=START, node_id="n0", incident=4, fencing=Fencing.FAST),
    NodeFenced(at=START, node_id="n0", incident=4, fencing=Fencing.PATIENT),
    NodeReturned(at=START, node_id="n0", incident=4, boot_id="b1"),
)


@pytest.mark.parametrize(("before", "event"), list(product(STATES, EVENTS)))
def test_every_event_is_folded_in_every_state(
    before: NodeState | None, event: FailoverEvent
) -> None:
    state = State()
    if before is not None:
        state.nodes["n0"] = before
        state.incidents = before.incident
    evolve(state, event, 1)
    after = state.nodes["n0"]
    match event:
        case NodeAdmitted() | NodeReturned():
            assert isinstance(after, Live)
            assert after.boot_id == "b1"
        case NodeLost():
            kept = isinstance(before, FencedFast | FencedPatient)
            assert after == before if kept else isinstance(after, Lost)
        case NodeFenced():
            both = event.fencing is Fencing.PATIENT or isinstance(before, FencedPatient)
            assert isinstance(after, FencedPatient if both else FencedFast)
    if not isinstance(event, NodeAdmitted):
        assert state.incidents == 4


COMMANDS: tuple[Thought, ...] = (
    Elect("t1"),
    *(
        RenewLease("n0", boot, "a", clean=clean, term="", silent_s=silent_s)
        for boot, clean, silent_s in product(("b0", "b1"), (False, True), (0.0, 4.0, 500.0))
    ),
    *(
        Sweep("", {"n0": silent_s}, holding=holding)
        for silent_s, holding in product((0.0, 9.9, 10.0, 25.0, 305.0), (False, True))
    ),
)


@pytest.mark.parametrize(("before", "command"), list(product(STATES, COMMANDS)))
def test_no_command_asks_for_anything_twice(before: NodeState | None, command: Thought) -> None:
    state = State()
    if before is not None:
        state.nodes["n0"] = before
        state.incidents = before.incident
    for event in decide(state, command, START):
        evolve(state, event, 1)
    assert decide(state, command, START) == []


def test_deciding_leaves_the_state_alone() -> None:
    state = State(nodes={"n0": Live("b0", 0)})
    decide(state, Sweep("", {"n0": 400.0}, holding=False), START)
    assert state == State(nodes={"n0": Live("b0", 0)})
