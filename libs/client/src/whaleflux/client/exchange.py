"""What the sync and the async client share about httpx."""

import ssl
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import httpx

from whaleflux.client.errors import Unreachable
from whaleflux.client.wire import Call, Reply

CONNECT_TIMEOUT_S = 5.0
"""A gateway that does not take a connection within this is not there."""


def settings(url: str, api_key: str) -> dict[str, Any]:
    """Return how to make an httpx client; proxies of the environment are honoured."""
    headers = {"user-agent": f"whaleflux-client/{_version()}"}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    found: dict[str, Any] = {"base_url": url, "headers": headers, "follow_redirects": False}
    if url.startswith("http://"):
        # Reading the certificates takes 60 ms; a context without any trusts nobody.
        found["verify"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return found


def arguments(call: Call) -> dict[str, Any]:
    """Return httpx's arguments for *call*, its content left out."""
    headers = dict(call.headers)
    if call.body is not None:
        headers.setdefault("content-type", "application/json")
    if call.file is not None:
        headers["content-length"] = str(call.file.stat().st_size)
    return {
        "method": call.method,
        "url": call.path,
        "params": dict(call.params) or None,
        "headers": headers,
        "timeout": httpx.Timeout(call.timeout_s, connect=CONNECT_TIMEOUT_S),
    }


def open_timeout(call: Call) -> httpx.Timeout:
    """Return the limits of a stream: silence for `timeout_s` ends it."""
    return httpx.Timeout(CONNECT_TIMEOUT_S, read=call.timeout_s)


def read_reply(response: httpx.Response) -> Reply:
    """Return a response, read to its end, as a value."""
    return Reply(response.status_code, response.content, response.headers)


def network_error(error: httpx.TransportError, url: str) -> Unreachable:
    """Return what *error* means to a person."""
    if isinstance(error, httpx.TimeoutException):
        why = "it did not answer in time"
    elif isinstance(error, httpx.ConnectError):
        why = "nothing takes connections there"
    else:
        why = f"the connection broke ({error})" if str(error) else "the connection broke"
    return Unreachable(f"WhaleFlux cannot be reached at {url}: {why}.", url=url)


def _version() -> str:
    try:
        return version("whaleflux-client")
    except PackageNotFoundError:
        return "unknown"
