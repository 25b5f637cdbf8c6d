"""How well the parts of a running stack are, as they say themselves over the bus."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

from whaleflux.common.bus import Bus
from whaleflux.common.contracts import subjects
from whaleflux.common.errors import Unavailable
from whaleflux.local.passwords import Passwords

ANSWER_TIMEOUT_S = 2.0
"""A healthy service answers in a millisecond."""


@dataclass(frozen=True, slots=True)
class Health:
    """What a part says of itself."""

    ok: bool
    detail: str


class HealthProbe:
    """Asks services and agents how they are."""

    def __init__(self, bus: Bus) -> None:
        """Ask over *bus*."""
        self._bus = bus

    @classmethod
    async def connect(cls, nats_url: str, passwords: Passwords) -> "HealthProbe":
        """Return a probe with a connection of its own.

        Raises:
            Unavailable: The bus is not there.

        """
        core = passwords.logins().core
        bus = await Bus.connect(url=nats_url, user=core.user, password=core.password, name="local")
        return cls(bus)

    async def close(self) -> None:
        """Give the connection back."""
        await self._bus.close()

    async def service(self, name: str) -> Health:
        """Return what the service called *name* says."""
        return await self._ask(subjects.question(name, "health"))

    async def agent(self, node: str) -> Health:
        """Return what the agent of *node* says."""
        return await self._ask(subjects.agent_question(node, "health"))

    async def all(self, services: Sequence[str], nodes: Sequence[str]) -> dict[str, Health]:
        """Return what every part says, by the name of its process."""
        names = [*services, *(f"agent-{node}" for node in nodes)]
        answers = await asyncio.gather(
            *(self.service(name) for name in services), *(self.agent(node) for node in nodes)
        )
        return dict(zip(names, answers, strict=True))

    async def _ask(self, subject: str) -> Health:
        try:
            answer = await self._bus.request(subject, b"", timeout_s=ANSWER_TIMEOUT_S)
        except Unavailable as error:
            return Health(False, _WORDS.get(error.code, error.message))
        try:
            body = json.loads(answer.body)
        except ValueError:
            return Health(False, "its answer cannot be read")
        return Health(bool(body.get("ok")), _detail(body))


_WORDS = {"no_responders": "not there yet", "timeout": "does not answer"}


def _detail(body: dict[str, object]) -> str:
    parts = body.get("parts")
    if not isinstance(parts, dict):
        return str(body.get("detail") or "")
    bad = [
        f"{name}: {part.get('detail') or 'not well'}"
        for name, part in parts.items()
        if isinstance(part, dict) and not part.get("ok")
    ]
    return "; ".join(bad)
