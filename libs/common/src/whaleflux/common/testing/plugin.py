"""Fixtures that every test folder shares, loaded by pytest through `addopts`."""

import os
from collections.abc import Iterator

import pytest

from whaleflux.common.testing import servers
from whaleflux.common.testing.servers import NatsServer


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """Return a real nats-server without accounts: `WF_NATS_URL`, else one of our own."""
    url = os.environ.get("WF_NATS_URL")
    if url:
        yield NatsServer(url)
        return
    with servers.nats_server() as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[str]:
    """Return the URL of a real Valkey: `WF_VALKEY_URL`, else one of our own."""
    url = os.environ.get("WF_VALKEY_URL")
    if url:
        yield url
        return
    with servers.valkey_server() as own:
        yield own
