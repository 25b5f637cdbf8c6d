"""A gateway whose logs tests write: real streams and views, or memory where that is enough."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from whaleflux.common.testing.memory import MemoryCache
from whaleflux.gateway.shell.view_store import ViewStore
from whaleflux.sim.story import Story


@pytest.fixture
def story() -> Story:
    """Return a scheduler with one node of eight H100, whose log tests fold."""
    story = Story()
    story.join("h100-0", "H100", 8)
    return story


class Shown:
    """Views of a story's log."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.views = ViewStore(MemoryCache())
        self._position = 0

    async def catch_up(self) -> None:
        """Fold what the story has written since."""
        events = list(enumerate(self.story.log, start=1))[self._position :]
        if events:
            await self.views.project("EVT_SCHEDULER_c0", events)
            self._position = len(self.story.log)

    async def workload(self, id_: str) -> dict[str, Any]:
        """Return a workload's document."""
        await self.catch_up()
        found = await self.views.document("workload", id_)
        assert found is not None
        return found

    async def run(self, id_: str) -> dict[str, Any]:
        """Return a run's document."""
        await self.catch_up()
        found = await self.views.document("run", id_)
        assert found is not None
        return found

    async def node(self, id_: str) -> dict[str, Any]:
        """Return a node's document."""
        await self.catch_up()
        found = await self.views.document("node", id_)
        assert found is not None
        return found


@pytest.fixture
async def shown(story: Story) -> AsyncIterator[Shown]:
    """Return the views of the story."""
    shown = Shown(story)
    await shown.views.prepare()
    yield shown
