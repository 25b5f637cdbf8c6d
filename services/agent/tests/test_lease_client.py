import json
from pathlib import Path

import pytest

from whaleflux.agent.shell.environment import Node
from whaleflux.agent.shell.folders import NodeFolder
from whaleflux.agent.shell.lease_client import LeaseClient
from whaleflux.common.clock import SystemClock
from whaleflux.common.contracts.failover import LeaseAnswer, LeaseReply, LeaseRequest
from whaleflux.common.errors import Unavailable


class Steps:
    """A clock that a test moves, and what the lease rules over."""

    def __init__(self, root: Path) -> None:
        self.folder = NodeFolder(root)
        self.folder.create()
        self.now_s = 100.0
        self.answer_takes_s = 0.4
        self.alive = 0
        self.answers: list[LeaseAnswer | None] = []
        self.asked: list[LeaseRequest] = []
        self.heard: list[str] = []
        self.health: list[bool] = []
        self.refreshed = True
        node = Node("n1", "ag_1", "boot-1", True, self.folder, {})
        self.client = LeaseClient(
            node=node,
            clock=self,
            ask=self._ask,
            leased=self,
            before_clean=self._before_clean,
            on_granted_again=lambda: self.heard.append("granted again"),
            say_health=lambda part, ok, detail: self.health.append(ok),
        )

    now = SystemClock.now

    def boottime_s(self) -> float:
        return self.now_s

    def extend(self, renewed_s: float) -> None:
        self.heard.append(f"extended {renewed_s:g}")

    def allow_starts(self) -> None:
        self.heard.append("starts allowed")

    def give_up(self) -> None:
        self.heard.append("given up")

    async def _before_clean(self) -> None:
        if not self.refreshed:
            raise Unavailable("assignment not read")
        self.heard.append("renounced")

    async def _ask(self, body: bytes) -> bytes:
        self.asked.append(LeaseRequest.model_validate_json(body))
        self.now_s += self.answer_takes_s
        answer = self.answers.pop(0)
        if answer is None:
            raise Unavailable("no answer")
        return LeaseReply(answer=answer).model_dump_json().encode()

    def fence(self) -> dict[str, object] | None:
        if not self.folder.fence.exists():
            return None
        kept: dict[str, object] = json.loads(self.folder.fence.read_text())
        return kept


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path)


async def test_the_deadline_counts_from_when_the_request_was_sent(steps: Steps) -> None:
    steps.answers = [LeaseAnswer.GRANTED]
    await steps.client.renew()
    assert steps.fence() == {"renewed_boottime_s": 100.0, "boot_id": "boot-1"}
    assert steps.heard == ["extended 100", "starts allowed"]


async def test_no_answer_extends_nothing(steps: Steps) -> None:
    steps.answers = [None]
    await steps.client.renew()
    assert steps.fence() is None


async def test_frozen_extends_the_deadline_and_allows_no_start(steps: Steps) -> None:
    steps.answers = [LeaseAnswer.FROZEN, LeaseAnswer.GRANTED]
    await steps.client.renew()
    assert steps.heard == ["extended 100"]
    await steps.client.renew()
    assert steps.heard[-1] == "starts allowed"


async def test_a_node_says_clean_only_while_nothing_lives_and_nothing_may_start(
    steps: Steps,
) -> None:
    steps.alive = 1
    steps.answers = [LeaseAnswer.FROZEN, LeaseAnswer.GRANTED, LeaseAnswer.GRANTED]
    await steps.client.renew()
    steps.alive = 0
    await steps.client.renew()
    await steps.client.renew()
    assert [request.clean for request in steps.asked] == [False, True, False]


async def test_a_given_up_node_ends_everything_renounces_and_comes_back_clean(
    steps: Steps,
) -> None:
    steps.answers = [LeaseAnswer.GRANTED, LeaseAnswer.FENCED, LeaseAnswer.FENCED]
    await steps.client.renew()
    steps.alive = 2
    assert await steps.client.renew() is False
    await steps.client.renew()
    steps.alive = 0
    steps.answers = [LeaseAnswer.GRANTED]
    await steps.client.renew()
    assert [request.clean for request in steps.asked] == [True, False, False, True]
    assert steps.heard[2:] == [
        "given up",
        "given up",
        "renounced",
        "extended 101.2",
        "starts allowed",
        "granted again",
    ]


async def test_an_idle_given_up_node_asks_again_at_once(steps: Steps) -> None:
    steps.answers = [LeaseAnswer.FENCED, LeaseAnswer.FENCED]
    assert await steps.client.renew() is True
    assert await steps.client.renew() is False


async def test_a_given_up_node_is_not_clean_before_it_has_read_its_assignment(
    steps: Steps,
) -> None:
    steps.answers = [LeaseAnswer.FENCED]
    await steps.client.renew()
    steps.refreshed = False
    await steps.client.renew()
    assert len(steps.asked) == 1


async def test_a_grant_to_a_node_that_was_given_up_and_is_not_clean_extends_nothing(
    steps: Steps,
) -> None:
    steps.answers = [LeaseAnswer.FENCED, LeaseAnswer.GRANTED]
    steps.alive = 1
    await steps.client.renew()
    await steps.client.renew()
    assert steps.fence() is None
    assert steps.heard == ["given up"]


async def test_the_node_is_well_only_while_its_lease_is_granted(steps: Steps) -> None:
    steps.answers = [None, LeaseAnswer.GRANTED, None, LeaseAnswer.GRANTED, LeaseAnswer.FENCED]
    for _ in range(5):
        await steps.client.renew()
    assert steps.health == [False, True, False, True, False]
