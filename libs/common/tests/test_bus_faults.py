"""The bus while its server dies, hangs, comes back or throws us out."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from whaleflux.common.bus import Bus, BusMessage
from whaleflux.common.bus_limits import CLOSE_TIMEOUT_S, PING_INTERVAL_S, PINGS_OUTSTANDING_MAX
from whaleflux.common.errors import Refused, Unavailable
from whaleflux.common.testing import servers
from whaleflux.common.testing.eventually import eventually
from whaleflux.common.testing.servers import NatsServer

pytestmark = pytest.mark.integration

USER = {"user": "u", "password": "p"}
PERMITTED = {"publish": ["_INBOX.>", "open.>"], "subscribe": ["_INBOX.>", "open.>"]}


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with servers.nats_server() as server:
        yield server


async def echo(message: BusMessage) -> bytes:
    return message.body


async def test_a_subscription_made_while_the_server_is_away_hears_when_it_is_back(
    server: NatsServer,
) -> None:
    bus = await server.connect()
    server.kill()
    await eventually(lambda: not bus.connected)
    await bus.answer("q", echo)
    server.start_again()
    assert (await bus.request("q", b"hello", timeout_s=10)).body == b"hello"
    await bus.close()


async def test_a_question_asked_while_the_server_is_away_waits_for_it(server: NatsServer) -> None:
    bus = await server.connect()
    await bus.answer("q", echo)
    server.kill()
    await eventually(lambda: not bus.connected)
    asking = asyncio.ensure_future(bus.request("q", b"x", timeout_s=10))
    server.start_again()
    assert (await asking).body == b"x"
    await bus.close()


async def test_without_a_server_a_question_fails_when_its_time_is_up(server: NatsServer) -> None:
    bus = await server.connect()
    server.kill()
    await eventually(lambda: not bus.connected)
    with pytest.raises(Unavailable) as caught:
        await bus.request("q", b"x", timeout_s=0.1)
    assert caught.value.code == "disconnected"
    with pytest.raises(Unavailable):
        await bus.publish("q", b"x")
    await bus.close()


async def test_a_question_in_flight_fails_at_once_when_the_line_drops(server: NatsServer) -> None:
    bus = await server.connect()
    heard = asyncio.Event()

    async def silent(_message: BusMessage) -> None:
        heard.set()

    await bus.subscribe("q", silent)
    asking = asyncio.ensure_future(bus.request("q", b"x", timeout_s=60))
    await heard.wait()
    server.kill()
    async with asyncio.timeout(5):
        with pytest.raises(Unavailable) as caught:
            await asking
    assert caught.value.code == "disconnected"
    await bus.close()


async def test_a_login_that_was_revoked_and_restored_works_again_without_a_restart() -> None:
    """The client closes for good when it hears of the revocation before the line drops."""
    with servers.nats_server({"authorization": {"users": [USER]}}) as server:
        bus = await server.connect("u", "p")
        await bus.answer("q", echo)
        server.reload({"authorization": {"users": [{"user": "other", "password": "o"}]}})
        await eventually(lambda: not bus.connected)
        server.reload({"authorization": {"users": [USER]}})
        assert (await bus.request("q", b"again", timeout_s=15)).body == b"again"
        await bus.close()


async def test_a_client_that_the_server_threw_out_for_good_is_rebuilt(server: NatsServer) -> None:
    bus = await server.connect()
    await bus.answer("q", echo)
    client = bus._client
    await client._process_err("'Authorization Violation'")
    await eventually(lambda: client.is_closed)
    assert (await bus.request("q", b"again", timeout_s=15)).body == b"again"
    assert bus._client is not client
    await bus.close()


@pytest.mark.slow
async def test_a_frozen_server_is_noticed_by_missing_pongs(server: NatsServer) -> None:
    bus = await server.connect()
    await bus.answer("q", echo)
    server.freeze()
    noticed_s = PING_INTERVAL_S * (PINGS_OUTSTANDING_MAX + 1) + 2.0
    await eventually(lambda: not bus.connected, timeout_s=noticed_s)
    server.thaw()
    assert (await bus.request("q", b"x", timeout_s=15)).body == b"x"
    await bus.close()


async def test_closing_does_not_hang_on_a_frozen_server(server: NatsServer) -> None:
    bus = await server.connect()
    server.freeze()
    began = time.monotonic()
    await bus.close()
    assert time.monotonic() - began < 2 * CLOSE_TIMEOUT_S + 1


async def test_what_is_not_permitted_is_refused_at_once() -> None:
    """The server answers such requests not at all; it only says so on the side."""
    user = {**USER, "permissions": PERMITTED}
    with servers.nats_server({"authorization": {"users": [user]}}) as server:
        bus = await server.connect("u", "p")
        with pytest.raises(Refused, match="may not publish to shut"):
            await bus.request("shut", b"", timeout_s=30)
        with pytest.raises(Refused, match="may not hear shut"):
            await bus.subscribe("shut", lambda _message: asyncio.sleep(0))
        await bus.answer("open.q", echo)
        assert (await bus.request("open.q", b"x", timeout_s=2)).body == b"x"
        await bus.close()


async def test_a_handler_that_fails_goes_on_with_the_next_message(server: NatsServer) -> None:
    bus = await server.connect()
    heard: list[bytes] = []

    async def fragile(message: BusMessage) -> None:
        if message.body == b"bad":
            raise ValueError
        heard.append(message.body)

    await bus.subscribe("s", fragile)
    await bus.publish("s", b"bad")
    await bus.publish("s", b"good")
    await eventually(lambda: heard == [b"good"])
    await bus.close()


async def test_an_answerer_that_breaks_says_so_to_the_asker(server: NatsServer) -> None:
    bus = await server.connect()

    async def broken(_message: BusMessage) -> bytes:
        raise KeyError("secret detail")

    await bus.answer("q", broken)
    with pytest.raises(Unavailable, match="the answering service failed") as caught:
        await bus.request("q", b"", timeout_s=30)
    assert "secret" not in str(caught.value)
    await bus.close()


async def test_a_message_that_is_too_large_is_refused(server: NatsServer) -> None:
    bus = await server.connect()
    with pytest.raises(Refused, match="more than the bus takes"):
        await bus.publish("s", b"x" * (1 << 21))
    await bus.close()


async def test_the_callers_headers_stay_as_they_were(server: NatsServer) -> None:
    bus = await server.connect()
    await bus.answer("q", echo)
    headers = {"Wf-Type": "x"}
    await bus.request("q", b"", timeout_s=2, headers=headers)
    assert headers == {"Wf-Type": "x"}
    await bus.close()


async def test_the_password_is_not_in_what_gets_logged() -> None:
    with pytest.raises(Unavailable) as caught:
        await Bus.connect(
            url="nats://127.0.0.1:1", user="u", password="hush", name="t", connect_timeout_s=0.3
        )
    assert "hush" not in str(caught.value)
