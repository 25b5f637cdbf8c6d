"""Streams on a real server: guards, batches, reads, and publishing many at once."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from whaleflux.common.contracts import subjects
from whaleflux.common.errors import Broken, Refused, Unavailable
from whaleflux.common.jetstream import (
    BATCH_MESSAGES_MAX,
    READ_BYTES_MAX,
    READ_MESSAGES_MAX,
    JetStream,
    OutMessage,
)
from whaleflux.common.log import Conflict
from whaleflux.common.nats_inbox import PULL_EXPIRES_S, PULL_MESSAGES, NatsInbox
from whaleflux.common.streams import StreamSpec, all_streams, ensure_streams, select
from whaleflux.common.testing import servers
from whaleflux.common.testing.eventually import eventually
from whaleflux.common.testing.servers import NatsServer
from whaleflux.common.windowed_publisher import WindowedPublisher

pytestmark = pytest.mark.integration

LOG = StreamSpec(
    name="T_LOG",
    subjects=("t.log.>",),
    allow_direct=True,
    allow_atomic=True,
)
WORK = StreamSpec(name="T_WORK", subjects=("t.work",), retention="workqueue")


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with servers.nats_server() as server:
        yield server


@pytest.fixture
async def js(server: NatsServer) -> AsyncIterator[JetStream]:
    bus = await server.connect()
    js = JetStream(bus)
    for spec in (LOG, WORK):
        await js.ensure_stream(spec)
    yield js
    await bus.close()


def messages(count: int, body: bytes = b"x") -> list[OutMessage]:
    return [OutMessage(f"t.log.{n % 2}", body) for n in range(count)]


async def test_all_streams_of_the_product_can_be_made_and_made_again(js: JetStream) -> None:
    names = list(all_streams())
    await ensure_streams(js, names)
    await ensure_streams(js, names)
    for name in names:
        assert (await js.stream_state(name)).messages == 0


async def test_a_stream_is_changed_to_what_it_should_be(js: JetStream) -> None:
    await js.ensure_stream(StreamSpec(name="T_AGE", subjects=("t.age",), max_age_s=60.0))
    await js.ensure_stream(StreamSpec(name="T_AGE", subjects=("t.age",), max_age_s=3600.0))
    config = (await js.api("STREAM.INFO.T_AGE", b""))["config"]
    assert config["max_age"] == 3600 * 10**9


def test_a_stream_nobody_knows_is_a_fault_of_ours() -> None:
    with pytest.raises(Broken, match="there is no stream EVT_NOBODY"):
        select(["EVT_NOBODY"])


async def test_a_repeated_id_is_stored_once(js: JetStream) -> None:
    first = await js.publish("t.log.a", b"x", msg_id="same")
    again = await js.publish("t.log.a", b"x", msg_id="same")
    assert (again.seq, again.duplicate) == (first.seq, True)
    assert (await js.stream_state(LOG.name)).messages == 1


async def test_publishing_leaves_the_callers_headers_alone(js: JetStream) -> None:
    headers = {"Wf-Type": "t"}
    await js.publish("t.log.a", b"x", headers=headers, msg_id="i", expected_last_seq=0)
    assert headers == {"Wf-Type": "t"}


async def test_a_guard_is_checked_before_an_id_is_recognised(js: JetStream) -> None:
    """Why a lost answer is settled by reading, and locked batches carry no ids."""
    await js.publish("t.log.a", b"x", msg_id="same", expected_last_seq=0)
    with pytest.raises(Conflict):
        await js.publish("t.log.a", b"x", msg_id="same", expected_last_seq=0)


async def test_a_stream_that_is_not_there_is_unavailable_at_once(js: JetStream) -> None:
    with pytest.raises(Unavailable) as caught:
        await js.publish("t.nowhere", b"x", timeout_s=30)
    assert caught.value.code == "no_responders"
    with pytest.raises(Refused):
        await js.stream_state("T_NOWHERE")


async def test_a_batch_that_lost_a_part_stores_nothing_and_may_be_tried_again(
    js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = js.bus.publish
    lost = False

    async def losing(subject: str, body: bytes, **more: object) -> None:
        nonlocal lost
        if not lost:
            lost = True
            return
        await publish(subject, body, **more)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(js.bus, "publish", losing)
    with pytest.raises(Unavailable):
        await js.publish_batch(messages(3), expected_last_seq=0)
    assert (await js.stream_state(LOG.name)).last_seq == 0
    assert (await js.publish_batch(messages(3), expected_last_seq=0)).seq == 3


@pytest.mark.parametrize("size", [0, BATCH_MESSAGES_MAX + 1])
async def test_a_batch_of_an_impossible_size_is_a_fault_of_ours(js: JetStream, size: int) -> None:
    with pytest.raises(Broken):
        await js.publish_batch(messages(size), expected_last_seq=0)


async def test_a_read_goes_through_as_many_pages_as_there_are(js: JetStream) -> None:
    total = 2 * READ_MESSAGES_MAX + 500
    for first in range(0, total, 500):
        await js.publish_batch(messages(500), expected_last_seq=first)
    found = await js.read(LOG.name, after_seq=0)
    assert [m.seq for m in found] == list(range(1, total + 1))
    odd = await js.read(LOG.name, after_seq=10, subject_filter="t.log.1", limit=2100)
    assert [m.seq for m in odd] == list(range(12, 12 + 2 * 2100, 2))
    assert await js.read(LOG.name, after_seq=total) == []


async def test_a_read_of_much_data_comes_in_bounded_pieces(js: JetStream) -> None:
    body = b"x" * 900_000
    count = READ_BYTES_MAX // len(body) * 2 + 1
    for n in range(count):
        await js.publish("t.log.a", body, expected_last_seq=n)
    found = await js.read(LOG.name, after_seq=0)
    assert [len(m.body) for m in found] == [len(body)] * count


async def test_the_last_message_is_the_same_from_a_replica_and_from_the_leader(
    js: JetStream,
) -> None:
    assert await js.last(LOG.name, "t.log.a") is None
    assert await js.last_from_leader(LOG.name, "t.log.a") is None
    await js.publish("t.log.a", b"old")
    await js.publish("t.log.a", b"new", headers={"Wf-Type": "t: with colon"})
    await js.publish("t.log.b", b"other")
    direct, leader = (
        await js.last(LOG.name, "t.log.a"),
        await js.last_from_leader(LOG.name, "t.log.a"),
    )
    assert direct is not None and direct == leader
    assert (direct.seq, direct.body, direct.headers["Wf-Type"]) == (2, b"new", "t: with colon")
    assert abs(datetime.now(UTC) - direct.at) < timedelta(minutes=1)


async def test_a_window_of_publishes_stores_everything_once_and_in_order(js: JetStream) -> None:
    publisher = WindowedPublisher(js, window=50)
    for n in range(1_000):
        await publisher.publish("t.log.a", b"%d" % n, msg_id=f"m{n}")
    await publisher.flush()
    assert [m.body for m in await js.read(LOG.name, after_seq=0)] == [
        b"%d" % n for n in range(1_000)
    ]


async def test_a_publish_that_no_stream_takes_is_told_to_the_caller(js: JetStream) -> None:
    publisher = WindowedPublisher(js)
    await publisher.publish("t.nowhere", b"x", msg_id="m")
    with pytest.raises(Unavailable):
        await publisher.flush()
    await publisher.flush()


async def test_after_a_kill_the_same_ids_again_store_everything_exactly_once(
    server: NatsServer, js: JetStream
) -> None:
    """The library's own asynchronous publish leaves such futures pending for ever."""
    publisher = WindowedPublisher(js, window=200)

    async def send_all() -> None:
        for n in range(3_000):
            await publisher.publish("t.log.a", b"%d" % n, msg_id=f"m{n}", timeout_s=5.0)
        await publisher.flush()

    sending = asyncio.ensure_future(send_all())
    async with asyncio.timeout(30):
        while (await js.stream_state(LOG.name)).messages < 300:
            assert not sending.done()
        server.kill()
        server.start_again()
        with pytest.raises(Unavailable):
            await sending
        await send_all()
    bodies = [m.body for m in await js.read(LOG.name, after_seq=0)]
    assert sorted(bodies, key=int) == [b"%d" % n for n in range(3_000)]


async def test_an_inbox_takes_more_than_one_pull_brings(js: JetStream) -> None:
    total = 3 * PULL_MESSAGES + 7
    publisher = WindowedPublisher(js)
    for n in range(total):
        await publisher.publish("t.work", b"%d" % n, msg_id=f"m{n}")
    await publisher.flush()
    inbox = await NatsInbox.open(js, stream=WORK.name, durable="w")
    bodies: list[bytes] = []
    async with asyncio.timeout(20):
        while len(bodies) < total:
            for delivery in await inbox.take(limit=100, wait_s=1.0):
                bodies.append(delivery.body)
                await delivery.ack()
    assert bodies == [b"%d" % n for n in range(total)]
    await inbox.close()


async def test_an_inbox_goes_on_after_its_server_was_killed(
    server: NatsServer, js: JetStream
) -> None:
    inbox = await NatsInbox.open(js, stream=WORK.name, durable="w")
    waiting = asyncio.ensure_future(inbox.take(limit=1, wait_s=30))
    server.kill()
    await eventually(lambda: not js.bus.connected)
    server.start_again()
    await js.publish("t.work", b"after", timeout_s=10)
    async with asyncio.timeout(PULL_EXPIRES_S / 2):  # it does not wait until its pull is overdue
        (delivery,) = await waiting
    assert delivery.body == b"after"
    await inbox.close()


async def test_what_a_reader_took_and_did_not_settle_comes_to_the_next(js: JetStream) -> None:
    await js.publish("t.work", b"x")
    first = await NatsInbox.open(js, stream=WORK.name, durable="w", ack_wait_s=0.5)
    assert len(await first.take(limit=1, wait_s=5)) == 1
    await first.close()
    second = await NatsInbox.open(js, stream=WORK.name, durable="w", ack_wait_s=0.5)
    (delivery,) = await second.take(limit=1, wait_s=10)
    assert (delivery.body, delivery.deliveries) == (b"x", 2)
    await second.close()


async def test_a_dead_letter_says_where_it_came_from_and_is_kept_once(js: JetStream) -> None:
    await ensure_streams(js, [subjects.STREAM_DLQ])
    await js.publish("t.work", b"poison", headers={"Wf-Type": "t"})
    inbox = await NatsInbox.open(js, stream=WORK.name, durable="w")
    (delivery,) = await inbox.take(limit=1, wait_s=5)
    await inbox.bury(delivery, service="scheduler", reason="first try")  # type: ignore[arg-type]  # it is ours
    await delivery.dead_letter(service="scheduler", reason="not\nJSON")
    (kept,) = await js.read(subjects.STREAM_DLQ, after_seq=0)
    assert kept.subject == "wf.dlq.scheduler"
    assert kept.headers["Wf-Type"] == "t"
    assert kept.headers["Wf-Dead-Subject"] == "t.work"
    assert kept.headers["Wf-Dead-Seq"] == str(delivery.stream_seq)
    assert kept.headers["Wf-Dead-Deliveries"] == "1"
    await inbox.close()


async def test_the_second_form_of_ack_subjects_is_understood() -> None:
    """Announced as the server's future default; the library's read loop dies of it."""
    with servers.nats_server({"feature_flags": {"js_ack_fc_v2": True}}) as server:
        bus = await server.connect()
        js = JetStream(bus)
        await js.ensure_stream(WORK)
        inbox = await NatsInbox.open(js, stream=WORK.name, durable="w")
        await js.publish("t.work", b"x")
        (delivery,) = await inbox.take(limit=1, wait_s=5)
        assert (delivery.stream_seq, delivery.deliveries) == (1, 1)
        await delivery.nak()
        (again,) = await inbox.take(limit=1, wait_s=5)
        assert (again.stream_seq, again.deliveries) == (1, 2)
        await again.ack()
        async with asyncio.timeout(5):
            while (await js.stream_state(WORK.name)).messages:
                continue
        await inbox.close()
        await bus.close()
