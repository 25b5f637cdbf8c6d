"""Servers in containers, for machines whose wheels carry no binary; needs a container engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NATS_IMAGE = "nats:2.15-alpine"
VALKEY_IMAGE = "valkey/valkey:8-alpine"
"""The same as in `compose.yaml`."""


@contextmanager
def container_url(image: str, port: int, *, scheme: str, command: str = "") -> Iterator[str]:
    """Run *image* and yield the address of its *port*.

    Raises:
        LookupError: There is no container engine here, or it does not give us the image.

    """
    container = _started(image, port, command)
    try:
        host, mapped = container.get_container_host_ip(), container.get_exposed_port(port)
        yield f"{scheme}://{host}:{mapped}"
    finally:
        container.stop()


def _started(image: str, port: int, command: str) -> Any:  # noqa: ANN401 - ships no types
    try:
        from testcontainers.core.container import DockerContainer

        container = DockerContainer(image).with_exposed_ports(port)
        if command:
            container = container.with_command(command)
        return container.start()
    except Exception as error:
        raise LookupError(f"no container of {image}: {error}") from error
