"""What comes over the wire, and how an answerer's errors travel with it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from whaleflux.common.errors import Refused, Unavailable, WhalefluxError

HEADER_STATUS = "Status"
HEADER_ERROR = "Nats-Service-Error"
HEADER_ERROR_CODE = "Nats-Service-Error-Code"
STATUS_NO_RESPONDERS = "503"


@dataclass(frozen=True, slots=True)
class BusMessage:
    """What came over the wire."""

    subject: str
    body: bytes
    headers: Mapping[str, str]
    reply: str

    @property
    def status(self) -> str:
        """Return the server's status code, or an empty string for an ordinary message."""
        return self.headers.get(HEADER_STATUS, "")


Handler = Callable[[BusMessage], Awaitable[None]]
Answerer = Callable[[BusMessage], Awaitable[bytes]]
Unsubscribe = Callable[[], Awaitable[None]]


def headers_of(error: WhalefluxError) -> dict[str, str]:
    """Return the headers by which an answerer tells its asker of *error*."""
    match error:
        case Refused():
            status = "400"
        case Unavailable():
            status = "503"
        case _:
            status = "500"
    return {HEADER_ERROR: f"{error.code}: {error.message}", HEADER_ERROR_CODE: status}


def error_of(message: BusMessage) -> WhalefluxError:
    """Return the error that an answerer told of."""
    code, _, sentence = message.headers.get(HEADER_ERROR, "").partition(": ")
    if message.headers[HEADER_ERROR_CODE] == "400":
        return Refused(sentence, code=code)
    return Unavailable(sentence, code=code)
