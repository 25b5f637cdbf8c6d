"""The last value for each subject of a stream that keeps one message per subject."""

from whaleflux.common.jetstream import JetStream


class NatsTable:
    """Implements `Table`."""

    def __init__(self, js: JetStream, *, stream: str) -> None:
        """Keep values on *stream*."""
        self._js = js
        self._stream = stream

    async def put(self, subject: str, body: bytes, *, expected_seq: int | None = None) -> int:
        """Replace the value and return its sequence.

        Raises:
            Conflict: The subject's last sequence is another than *expected_seq*.
            Unavailable: No answer; the value may or may not be replaced.

        """
        ack = await self._js.publish(subject, body, expected_last_subject_seq=expected_seq)
        return ack.seq

    async def get(self, subject: str) -> tuple[int, bytes] | None:
        """Return sequence and value, or None."""
        message = await self._js.last(self._stream, subject)
        return None if message is None else (message.seq, message.body)
