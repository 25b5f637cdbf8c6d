"""Streams, by the server's own request API: append with a guard, atomic batches, reads, consumers.

Every error of the server comes back as one of ours: a guard that does not hold is a `Conflict`,
everything that may be otherwise in a moment is `Unavailable`, the rest is `Refused`.
"""

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

from whaleflux.common.bus import Bus
from whaleflux.common.bus_message import HEADER_STATUS, BusMessage
from whaleflux.common.contracts.subjects import HEADER_MSG_ID
from whaleflux.common.errors import Broken, Refused, Unavailable, WhalefluxError
from whaleflux.common.log import Conflict
from whaleflux.common.streams import ConsumerSpec, StreamSpec

API_TIMEOUT_S = 5.0
BATCH_MESSAGES_MAX = 1_000
"""The server's own limit for one atomic batch."""
READ_MESSAGES_MAX = 2_000
READ_BYTES_MAX = 8 * 1024 * 1024
"""What one read request may put into the client's memory before it is looked at."""

HEADER_EXPECTED_LAST = "Nats-Expected-Last-Sequence"
HEADER_EXPECTED_LAST_SUBJECT = "Nats-Expected-Last-Subject-Sequence"
HEADER_TTL = "Nats-TTL"
_HEADER_BATCH = "Nats-Batch-Id"
_HEADER_BATCH_SEQ = "Nats-Batch-Sequence"
_HEADER_BATCH_COMMIT = "Nats-Batch-Commit"
_OURS = ("Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Stream", "Nats-Num-Pending")
_SERVER_HEADERS = frozenset((*_OURS, "Nats-Last-Sequence", "Nats-UpTo-Sequence"))

_WRONG_LAST_SEQUENCE = frozenset((10071, 10164, 10201))
_BATCH_INCOMPLETE = 10176
"""A part of an atomic batch was lost with a connection; nothing of it is stored."""
_STREAM_EXISTS_OTHERWISE = 10058
_NOT_FOUND = frozenset((10014, 10037, 10059))
"""Consumer, message, stream."""


class PubAck(NamedTuple):
    """Where a message was stored, durably."""

    stream: str
    seq: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class OutMessage:
    """A message to be stored."""

    subject: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as a stream keeps it."""

    seq: int
    subject: str
    body: bytes
    headers: Mapping[str, str]
    at: datetime


class StreamState(NamedTuple):
    """How far a stream reaches."""

    first_seq: int
    last_seq: int
    messages: int


class JetStream:
    """What services do with streams."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self._batches = 0

    async def ensure_stream(self, spec: StreamSpec) -> None:
        """Create the stream, or change it to what *spec* says.

        A stream that stands on more servers than *spec* asks for stays there.
        """
        config = spec.config()
        try:
            await self.api(f"STREAM.CREATE.{spec.name}", json.dumps(config).encode())
        except _ApiError as error:
            if error.number != _STREAM_EXISTS_OTHERWISE:
                raise
            standing = (await self.api(f"STREAM.INFO.{spec.name}", b""))["config"]
            config["num_replicas"] = max(spec.replicas, standing["num_replicas"])
            await self.api(f"STREAM.UPDATE.{spec.name}", json.dumps(config).encode())

    async def ensure_consumer(self, spec: ConsumerSpec) -> None:
        """Create the durable consumer, or change it to what *spec* says."""
        body = json.dumps({"stream_name": spec.stream, "config": spec.config()}).encode()
        await self.api(f"CONSUMER.CREATE.{spec.stream}.{spec.durable}", body)

    async def delete_consumer(self, stream: str, durable: str) -> None:
        """Remove a consumer and what it knew; none is fine."""
        try:
            await self.api(f"CONSUMER.DELETE.{stream}.{durable}", b"")
        except _ApiError as error:
            if error.number not in _NOT_FOUND:
                raise

    async def publish(
        self,
        subject: str,
        body: bytes,
        *,
        msg_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        timeout_s: float = API_TIMEOUT_S,
    ) -> PubAck:
        """Store one message and wait until it is durable.

        Raises:
            Conflict: The stream's, or the subject's, last sequence is not the expected one.
            Unavailable: No answer; the message may or may not be stored.
            Refused: The stream does not take such a message.

        """
        merged = dict(headers or {})
        if msg_id is not None:
            merged[HEADER_MSG_ID] = msg_id
        if expected_last_seq is not None:
            merged[HEADER_EXPECTED_LAST] = str(expected_last_seq)
        if expected_last_subject_seq is not None:
            merged[HEADER_EXPECTED_LAST_SUBJECT] = str(expected_last_subject_seq)
        return ack_of(await self.bus.request(subject, body, headers=merged, timeout_s=timeout_s))

    async def publish_batch(
        self,
        messages: Sequence[OutMessage],
        *,
        expected_last_seq: int,
        timeout_s: float = 2 * API_TIMEOUT_S,
    ) -> PubAck:
        """Store all of *messages*, one after another, or none of them.

        Raises:
            Conflict: The stream's last sequence is not the expected one.
            Unavailable: No answer; all or nothing is stored.

        """
        if not 1 <= len(messages) <= BATCH_MESSAGES_MAX:
            raise Broken(f"a batch has 1 to {BATCH_MESSAGES_MAX} messages, not {len(messages)}")
        guard = {HEADER_EXPECTED_LAST: str(expected_last_seq)}
        if len(messages) == 1:
            headers = {**messages[0].headers, **guard}
            return ack_of(
                await self.bus.request(
                    messages[0].subject, messages[0].body, headers=headers, timeout_s=timeout_s
                )
            )
        self._batches += 1
        batch = f"{self.bus.new_inbox().rsplit('.', 1)[-1]}{self._batches}"
        await self.bus.wait_connected(timeout_s)
        *middle, last = (
            OutMessage(
                message.subject,
                message.body,
                {
                    **message.headers,
                    **(guard if number == 1 else {}),
                    _HEADER_BATCH: batch,
                    _HEADER_BATCH_SEQ: str(number),
                },
            )
            for number, message in enumerate(messages, 1)
        )
        for message in middle:
            await self.bus.publish(message.subject, message.body, headers=message.headers)
        commit = {**last.headers, _HEADER_BATCH_COMMIT: "1"}
        return ack_of(
            await self.bus.request(last.subject, last.body, headers=commit, timeout_s=timeout_s)
        )

    async def read(
        self,
        stream: str,
        *,
        after_seq: int,
        subject_filter: str | None = None,
        limit: int | None = None,
    ) -> list[StoredMessage]:
        """Return the messages after *after_seq*, at most *limit*, oldest first.

        A replica may answer, and may be behind; guards, not reads, decide what is true.
        """
        found: list[StoredMessage] = []
        while limit is None or len(found) < limit:
            room = (
                READ_MESSAGES_MAX if limit is None else min(READ_MESSAGES_MAX, limit - len(found))
            )
            page, pending = await self._read_page(stream, after_seq, subject_filter, room)
            found += page
            if not page or pending == 0:
                break
            after_seq = page[-1].seq
        return found

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        """Return the newest message of *subject*, or None; a replica may answer."""
        answer = await self.bus.request(
            f"$JS.API.DIRECT.GET.{stream}.{subject}", b"", timeout_s=API_TIMEOUT_S
        )
        if answer.status == "404":
            return None
        _raise_status(answer)
        return _stored(answer)

    async def last_from_leader(self, stream: str, subject: str) -> StoredMessage | None:
        """Return the newest message of *subject* as the stream's leader has it, or None."""
        try:
            answer = await self.api(
                f"STREAM.MSG.GET.{stream}", json.dumps({"last_by_subj": subject}).encode()
            )
        except _ApiError as error:
            if error.number in _NOT_FOUND:
                return None
            raise
        message = answer["message"]
        return StoredMessage(
            seq=message["seq"],
            subject=message["subject"],
            body=base64.b64decode(message.get("data", "")),
            headers=_parse_headers(base64.b64decode(message.get("hdrs", ""))),
            at=_moment(message["time"]),
        )

    async def stream_state(self, stream: str) -> StreamState:
        """Return how far *stream* reaches, as its leader has it."""
        state = (await self.api(f"STREAM.INFO.{stream}", b""))["state"]
        return StreamState(state["first_seq"], state["last_seq"], state["messages"])

    async def api(self, name: str, body: bytes) -> dict[str, Any]:
        """Ask the server's JetStream API and return what it says.

        Raises:
            Unavailable: No answer.
            Refused: It says no.

        """
        message = await self.bus.request(f"$JS.API.{name}", body, timeout_s=API_TIMEOUT_S)
        answer: dict[str, Any] = json.loads(message.body)
        if "error" in answer:
            _raise_error(answer["error"])
        return answer

    async def _read_page(
        self, stream: str, after_seq: int, subject_filter: str | None, room: int
    ) -> tuple[list[StoredMessage], int]:
        """Return one page and how many messages are left behind it."""
        page: list[StoredMessage] = []
        end: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def collect(reply: BusMessage | WhalefluxError) -> None:
            if end.done():
                return
            if isinstance(reply, WhalefluxError):
                end.set_exception(reply)
            elif not reply.status:
                page.append(_stored(reply))
            elif reply.status == "204":
                end.set_result(int(reply.headers.get("Nats-Num-Pending", "0")))
            elif reply.status == "404":
                end.set_result(0)
            else:
                end.set_exception(_status_error(reply, f"cannot read {stream}"))

        request = {
            "seq": after_seq + 1,
            "batch": room,
            "max_bytes": READ_BYTES_MAX,
            "next_by_subj": subject_filter or ">",
        }
        subject = f"$JS.API.DIRECT.GET.{stream}"
        await self.bus.wait_connected(API_TIMEOUT_S)
        reply, close = self.bus.open_reply(collect, of=subject)
        try:
            await self.bus.publish(subject, json.dumps(request).encode(), reply=reply)
            async with asyncio.timeout(2 * API_TIMEOUT_S):
                return page, await end
        except TimeoutError:
            raise Unavailable(f"reading {stream} took too long", code="timeout") from None
        finally:
            close()


class _ApiError(Refused):
    """The server's answer to a request that it will not serve, with its number."""

    def __init__(self, number: int, description: str) -> None:
        super().__init__(description, code=f"jetstream_{number}")
        self.number = number


def ack_of(message: BusMessage) -> PubAck:
    """Return what a stream says to a message that was sent to it; raises as `publish` does."""
    if not message.body:
        raise _status_error(message, "the stream did not take the message")
    answer: dict[str, Any] = json.loads(message.body)
    if "error" in answer:
        _raise_error(answer["error"])
    return PubAck(answer["stream"], answer["seq"], answer.get("duplicate", False))


def _raise_error(error: Mapping[str, Any]) -> NoReturn:
    number, description = int(error.get("err_code", 0)), str(error.get("description", ""))
    if number in _WRONG_LAST_SEQUENCE:
        raise Conflict(description, code="conflict", retry_after_s=0.0)
    passing = int(error.get("code", 500)) in (408, 429, 500, 503) and number not in _NOT_FOUND
    if passing or number == _BATCH_INCOMPLETE:
        raise Unavailable(f"{description} ({number})", code="stream_unavailable")
    raise _ApiError(number, description)


def _status_error(message: BusMessage, what: str) -> WhalefluxError:
    description = message.headers.get("Description", "no reason given")
    text = f"{what}: {message.headers.get(HEADER_STATUS, 'empty answer')} {description}"
    if message.status == "503":
        return Unavailable(text, code="no_responders")
    return Unavailable(text, code="stream_unavailable")


def _raise_status(message: BusMessage) -> None:
    if message.status:
        raise _status_error(message, "the stream did not answer")


def _stored(message: BusMessage) -> StoredMessage:
    headers = message.headers
    return StoredMessage(
        seq=int(headers["Nats-Sequence"]),
        subject=headers["Nats-Subject"],
        body=message.body,
        headers={k: v for k, v in headers.items() if k not in _SERVER_HEADERS},
        at=_moment(headers["Nats-Time-Stamp"]),
    )


def _moment(text: str) -> datetime:
    # The server writes nanoseconds without trailing zeros; Python reads at most six digits.
    head, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{head}.{fraction[:6]:0<6}+00:00")


def _parse_headers(raw: bytes) -> dict[str, str]:
    lines = raw.decode().split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {key.strip(): value.strip() for key, _, value in pairs}
