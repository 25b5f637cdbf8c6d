"""Inboxes and tables: one test class each, two worlds."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from whaleflux.common.contracts import subjects
from whaleflux.common.errors import Broken
from whaleflux.common.jetstream import JetStream
from whaleflux.common.log import Conflict, Delivery, Inbox, Table
from whaleflux.common.nats_inbox import NatsInbox
from whaleflux.common.nats_table import NatsTable
from whaleflux.common.streams import ensure_streams
from whaleflux.common.testing.memory import MemoryInbox, MemoryTable
from whaleflux.common.testing.servers import NatsServer

Send = Callable[[str, bytes], Awaitable[None]]
SUBJECT = "wf.cmd.scheduler.workload.submit"


async def take(inbox: Inbox, count: int) -> list[Delivery]:
    """Take until *count* deliveries are there."""
    found: list[Delivery] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += await inbox.take(limit=count - len(found), wait_s=1.0)
    return found


class InboxContract:
    async def test_what_was_sent_is_taken_in_order(self, inbox: Inbox, send: Send) -> None:
        for n in range(5):
            await send(SUBJECT, b"%d" % n)
        found = await take(inbox, 5)
        assert [d.body for d in found] == [b"0", b"1", b"2", b"3", b"4"]
        assert [d.deliveries for d in found] == [1] * 5
        seqs = [d.stream_seq for d in found]
        assert seqs == sorted(set(seqs))

    async def test_nothing_waiting_is_nothing_after_the_wait(self, inbox: Inbox) -> None:
        assert list(await inbox.take(limit=5, wait_s=0.05)) == []

    async def test_a_message_wakes_who_waits(self, inbox: Inbox, send: Send) -> None:
        waiting = asyncio.ensure_future(take(inbox, 1))
        await send(SUBJECT, b"hello")
        assert (await waiting)[0].body == b"hello"

    async def test_a_refused_message_comes_again_and_an_accepted_one_does_not(
        self, inbox: Inbox, send: Send
    ) -> None:
        await send(SUBJECT, b"a")
        (first,) = await take(inbox, 1)
        await first.nak()
        (again,) = await take(inbox, 1)
        assert (again.body, again.deliveries) == (b"a", 2)
        await again.ack()
        assert list(await inbox.take(limit=1, wait_s=0.2)) == []

    async def test_a_message_is_settled_once(self, inbox: Inbox, send: Send) -> None:
        await send(SUBJECT, b"a")
        (delivery,) = await take(inbox, 1)
        await delivery.ack()
        with pytest.raises(Broken):
            await delivery.nak()


class TestMemoryInbox(InboxContract):
    @pytest.fixture
    def inbox(self) -> MemoryInbox:
        return MemoryInbox()

    @pytest.fixture
    def send(self, inbox: MemoryInbox) -> Send:
        async def send(subject: str, body: bytes) -> None:
            inbox.send(subject, body)

        return send


@pytest.fixture
async def js(nats_server: NatsServer) -> AsyncIterator[JetStream]:
    bus = await nats_server.connect()
    js = JetStream(bus)
    names = ["CMD_SCHEDULER", "DLQ", "ASSIGNMENTS"]
    await ensure_streams(js, names)
    yield js
    for name in names:
        await js.api(f"STREAM.DELETE.{name}", b"")
    await bus.close()


@pytest.mark.integration
class TestNatsInbox(InboxContract):
    @pytest.fixture
    async def inbox(self, js: JetStream) -> AsyncIterator[NatsInbox]:
        inbox = await NatsInbox.open(js, stream="CMD_SCHEDULER", durable="test")
        yield inbox
        await inbox.close()

    @pytest.fixture
    def send(self, js: JetStream) -> Send:
        async def send(subject: str, body: bytes) -> None:
            await js.publish(subject, body)

        return send

    async def test_a_dead_letter_is_kept_with_its_reason_and_never_comes_again(
        self, js: JetStream, inbox: NatsInbox, send: Send
    ) -> None:
        await send(SUBJECT, b"poison")
        (delivery,) = await take(inbox, 1)
        await delivery.dead_letter(service="scheduler", reason="not JSON")
        (kept,) = await js.read("DLQ", after_seq=0)
        assert kept.body == b"poison"
        assert "not JSON" in json.dumps(dict(kept.headers))
        assert list(await inbox.take(limit=1, wait_s=0.2)) == []

    async def test_a_consumer_that_was_deleted_is_made_again(
        self, js: JetStream, inbox: NatsInbox, send: Send
    ) -> None:
        # A pull that reaches the server with the deletion is lost without a word and found out
        # only when it is overdue; this one has surely arrived.
        assert list(await inbox.take(limit=1, wait_s=0.1)) == []
        await js.delete_consumer("CMD_SCHEDULER", "test")
        await send(SUBJECT, b"after")
        assert (await take(inbox, 1))[0].body == b"after"


class TableContract:
    async def test_a_value_is_replaced_and_read(self, table: Table) -> None:
        subject = subjects.assignment("n1")
        assert await table.get(subject) is None
        first = await table.put(subject, b"one", expected_seq=0)
        second = await table.put(subject, b"two", expected_seq=first)
        assert await table.get(subject) == (second, b"two")
        assert second > first

    async def test_a_stale_writer_is_refused(self, table: Table) -> None:
        subject = subjects.assignment("n2")
        first = await table.put(subject, b"one", expected_seq=0)
        await table.put(subject, b"two")
        with pytest.raises(Conflict):
            await table.put(subject, b"late", expected_seq=first)
        found = await table.get(subject)
        assert found is not None and found[1] == b"two"


class TestMemoryTable(TableContract):
    @pytest.fixture
    def table(self) -> Table:
        return MemoryTable()


@pytest.mark.integration
class TestNatsTable(TableContract):
    @pytest.fixture
    def table(self, js: JetStream) -> Table:
        return NatsTable(js, stream="ASSIGNMENTS")


async def test_in_memory_a_dead_letter_is_kept_with_its_reason() -> None:
    inbox = MemoryInbox()
    inbox.send(SUBJECT, b"a")
    (delivery,) = await inbox.take(limit=1, wait_s=0.1)
    await delivery.dead_letter(service="scheduler", reason="bad")
    assert inbox.dead[0][1] == "bad"
