"""Logs: one test class, two worlds (memory and a real stream)."""

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from whaleflux.common.bus import BusMessage
from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.base import UnknownEvent
from whaleflux.common.contracts.gateway import (
    GatewayEvent,
    TenantCreated,
    read_gateway_event,
)
from whaleflux.common.errors import Broken, Unavailable, WhalefluxError
from whaleflux.common.jetstream import HEADER_EXPECTED_LAST, JetStream
from whaleflux.common.log import Conflict, Log
from whaleflux.common.nats_log import NatsLog
from whaleflux.common.streams import ensure_streams
from whaleflux.common.testing.memory import MemoryLog
from whaleflux.common.testing.servers import NatsServer

AT = datetime(2031, 1, 1, tzinfo=UTC)


def tenant(name: str) -> GatewayEvent:
    return TenantCreated(at=AT, tenant=name)


class LogContract:
    async def test_an_empty_log_ends_at_zero(self, log: Log[GatewayEvent]) -> None:
        assert await log.last_seq() == 0
        assert list(await log.read(after_seq=0)) == []

    async def test_what_was_appended_is_read_in_order(self, log: Log[GatewayEvent]) -> None:
        assert await log.append([tenant("a")], expected_seq=0) == 1
        assert await log.append([tenant("b"), tenant("c")], expected_seq=1) == 3
        assert [(r.seq, r.event) for r in await log.read(after_seq=1)] == [
            (2, tenant("b")),
            (3, tenant("c")),
        ]
        assert await log.last_seq() == 3

    async def test_a_stale_writer_is_refused_and_writes_nothing(
        self, log: Log[GatewayEvent]
    ) -> None:
        await log.append([tenant("a")], expected_seq=0)
        with pytest.raises(Conflict):
            await log.append([tenant("b"), tenant("c")], expected_seq=0)
        with pytest.raises(Conflict):
            await log.append([tenant("b")], expected_seq=0)
        assert await log.last_seq() == 1

    @pytest.mark.parametrize("size", [1, 3])
    async def test_of_racing_writers_exactly_one_wins(
        self, log: Log[GatewayEvent], size: int
    ) -> None:
        async def write(n: int) -> bool:
            try:
                await log.append([tenant(f"t{n}-{i}") for i in range(size)], expected_seq=0)
            except Conflict:
                return False
            return True

        results = await asyncio.gather(*(write(n) for n in range(20)))
        assert sum(results) == 1
        assert await log.last_seq() == size

    async def test_five_hundred_facts_are_one_append(self, log: Log[GatewayEvent]) -> None:
        events = [tenant(f"t{n}") for n in range(500)]
        assert await log.append(events, expected_seq=0) == 500
        assert [r.event for r in await log.read(after_seq=0)] == events


class TestMemoryLog(LogContract):
    @pytest.fixture
    def log(self) -> Log[GatewayEvent]:
        return MemoryLog(random.Random(1))

    async def test_events_of_unknown_types_are_left_out_but_count(self) -> None:
        log: MemoryLog[GatewayEvent | UnknownEvent] = MemoryLog()
        await log.append([tenant("a"), UnknownEvent(type="x.v1"), tenant("b")], expected_seq=0)
        assert [r.seq for r in await log.read(after_seq=0)] == [1, 3]
        assert await log.last_seq() == 3

    async def test_without_its_guard_the_race_has_many_winners(self) -> None:
        """The contract above notices a missing guard."""
        log: MemoryLog[GatewayEvent] = MemoryLog(random.Random(1), guarded=False)
        with pytest.raises(AssertionError):
            await self.test_of_racing_writers_exactly_one_wins(log, 3)

    async def test_after_a_lost_answer_the_facts_are_there(self) -> None:
        log: MemoryLog[GatewayEvent] = MemoryLog(random.Random(1), answer_loss_rate=1.0)
        with pytest.raises(Unavailable):
            await log.append([tenant("a")], expected_seq=0)
        assert await log.last_seq() == 1


@pytest.mark.integration
class TestNatsLog(LogContract):
    @pytest.fixture
    async def js(self, nats_server: NatsServer) -> AsyncIterator[JetStream]:
        bus = await nats_server.connect()
        js = JetStream(bus)
        await ensure_streams(js, [subjects.STREAM_GATEWAY])
        yield js
        await js.api(f"STREAM.DELETE.{subjects.STREAM_GATEWAY}", b"")
        await bus.close()

    @pytest.fixture
    def log(self, js: JetStream) -> Log[GatewayEvent]:
        return NatsLog(
            js,
            stream=subjects.STREAM_GATEWAY,
            reader=read_gateway_event,
            subject_of=lambda event: subjects.event(event.type, event.tenant),
        )

    @pytest.mark.parametrize("size", [1, 3])
    async def test_after_a_lost_answer_the_log_shows_the_truth(
        self,
        js: JetStream,
        log: Log[GatewayEvent],
        monkeypatch: pytest.MonkeyPatch,
        size: int,
    ) -> None:
        request = js.bus.request

        async def deaf(subject: str, body: bytes, **more: object) -> BusMessage:
            await request(subject, body, **more)  # type: ignore[arg-type]  # passed on as they came
            raise Unavailable("the answer was lost", code="timeout")

        events = [tenant(f"t{n}") for n in range(size)]
        monkeypatch.setattr(js.bus, "request", deaf)
        with pytest.raises(Unavailable) as caught:
            await log.append(events, expected_seq=0)
        assert not isinstance(caught.value, Conflict)
        monkeypatch.undo()
        assert [r.event for r in await log.read(after_seq=0)] == events
        with pytest.raises(Conflict):
            await log.append(events, expected_seq=0)

    async def test_an_event_that_does_not_fit_its_type_stops_the_reader(
        self, js: JetStream, log: Log[GatewayEvent]
    ) -> None:
        await js.publish(
            "wf.evt.gateway.tenant.created.a", b'{"type":"gateway.tenant.created.v1","at":"x"}'
        )
        with pytest.raises(Broken, match="event 1 of EVT_GATEWAY"):
            await log.read(after_seq=0)

    async def test_decided_events_cannot_be_deleted(
        self, js: JetStream, log: Log[GatewayEvent]
    ) -> None:
        await log.append([tenant("a")], expected_seq=0)
        with pytest.raises(WhalefluxError, match="delete not permitted"):
            await js.api(f"STREAM.MSG.DELETE.{subjects.STREAM_GATEWAY}", b'{"seq":1}')
        with pytest.raises(WhalefluxError, match="purge not permitted"):
            await js.api(f"STREAM.PURGE.{subjects.STREAM_GATEWAY}", b"")
        assert [r.event for r in await log.read(after_seq=0)] == [tenant("a")]

    async def test_more_events_than_a_batch_holds_are_a_fault_of_ours(
        self, log: Log[GatewayEvent]
    ) -> None:
        with pytest.raises(Broken):
            await log.append([tenant("a")] * 1_001, expected_seq=0)
        assert await log.last_seq() == 0

    async def test_events_of_unknown_types_are_left_out_but_count(
        self, js: JetStream, log: Log[GatewayEvent]
    ) -> None:
        await log.append([tenant("a")], expected_seq=0)
        await js.publish(
            "wf.evt.gateway.tenant.renamed.a", b'{"type":"gateway.tenant.renamed.v1","at":"x"}'
        )
        await log.append([tenant("b")], expected_seq=2)
        assert [r.seq for r in await log.read(after_seq=0)] == [1, 3]

    async def test_trace_and_type_travel_in_headers(
        self, js: JetStream, log: Log[GatewayEvent]
    ) -> None:
        trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
        await log.append([tenant("a")], expected_seq=0, trace={subjects.HEADER_TRACE: trace})
        (message,) = await js.read(subjects.STREAM_GATEWAY, after_seq=0)
        assert message.headers[subjects.HEADER_TRACE] == trace
        assert message.headers[subjects.HEADER_TYPE] == "gateway.tenant.created.v1"

    async def test_events_carry_no_more_than_three_headers_and_the_guard(
        self, js: JetStream, log: Log[GatewayEvent]
    ) -> None:
        """Ten headers cost 2.8 times the throughput and twice the storage."""
        trace = {subjects.HEADER_TRACE: "t", subjects.HEADER_CAUSATION: "c"}
        await log.append([tenant("a")], expected_seq=0, trace=trace)
        (message,) = await js.read(subjects.STREAM_GATEWAY, after_seq=0)
        assert set(message.headers) == {
            subjects.HEADER_TYPE,
            subjects.HEADER_TRACE,
            subjects.HEADER_CAUSATION,
            HEADER_EXPECTED_LAST,
        }
