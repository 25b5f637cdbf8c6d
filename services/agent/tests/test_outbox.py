import asyncio
from pathlib import Path

from whaleflux.agent.shell.outbox import Outbox, OutboxMessage
from whaleflux.common.clock import SystemClock
from whaleflux.common.contracts.agent import RunReported
from whaleflux.common.errors import Refused, Unavailable


def report(step: int) -> RunReported:
    return RunReported(
        at=SystemClock().now(), node_id="n1", run_id="r", attempt=1, rank=0, step=step
    )


async def test_messages_of_a_lane_keep_their_order_and_lanes_do_not_wait(tmp_path: Path) -> None:
    sent: list[str] = []
    blocked = asyncio.Event()

    async def publish(message: OutboxMessage) -> None:
        if message.msg_id == "a1":
            await blocked.wait()
        sent.append(message.msg_id)

    async with asyncio.TaskGroup() as group:
        outbox = Outbox(tmp_path, node_id="n1", publish=publish, group=group)
        acks = [
            outbox.post(report(i), about="r", lane=name[0], msg_id=name)
            for i, name in enumerate(("a1", "a2", "b1"))
        ]
        await acks[2]
        assert sent == ["b1"]
        assert len(list(tmp_path.iterdir())) == 2
        blocked.set()
        await acks[1]
    assert sent == ["b1", "a1", "a2"]
    assert list(tmp_path.iterdir()) == []


async def test_a_message_is_tried_until_it_is_acknowledged(tmp_path: Path) -> None:
    errors = [Unavailable("no stream"), Refused("not permitted yet"), Unavailable("timeout")]

    async def publish(_: OutboxMessage) -> None:
        if errors:
            raise errors.pop()

    async with asyncio.TaskGroup() as group:
        outbox = Outbox(tmp_path, node_id="n1", publish=publish, group=group)
        await outbox.post(report(1), about="r", lane="a", msg_id="a1")
    assert errors == []


async def test_what_an_earlier_agent_left_is_sent_and_torn_files_are_dropped(
    tmp_path: Path,
) -> None:
    async def down(_: OutboxMessage) -> None:
        raise Unavailable("down")

    sent: list[OutboxMessage] = []

    async def up(message: OutboxMessage) -> None:
        sent.append(message)

    async with asyncio.TaskGroup() as group:
        outbox = Outbox(tmp_path, node_id="n1", publish=down, group=group)
        outbox.post(report(1), about="r", lane="a", msg_id="a1")
        outbox.post(report(2), about="r", lane="a", msg_id="a2")
        for task in group._tasks:
            task.cancel()
    (tmp_path / "000000000009.json").write_text("{ torn")
    async with asyncio.TaskGroup() as group:
        outbox = Outbox(tmp_path, node_id="n1", publish=up, group=group)
        assert outbox.restore() == 2
    assert [message.msg_id for message in sent] == ["a1", "a2"]
    assert sent[0].subject == "wf.evt.agent.run.reported.n1.r"


async def test_posting_what_waits_already_adds_nothing(tmp_path: Path) -> None:
    sent: list[str] = []

    async def publish(message: OutboxMessage) -> None:
        sent.append(message.msg_id)

    async with asyncio.TaskGroup() as group:
        outbox = Outbox(tmp_path, node_id="n1", publish=publish, group=group)
        first = outbox.post(report(1), about="r", lane="a", msg_id="a1")
        assert outbox.post(report(1), about="r", lane="a", msg_id="a1") is first
    assert sent == ["a1"]
