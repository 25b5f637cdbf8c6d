"""Fleets that scheduler tests start from."""

import pytest

from whaleflux.sim.story import Story


@pytest.fixture
def story() -> Story:
    """Return a scheduler that has heard nothing yet."""
    return Story()


@pytest.fixture
def fleet(story: Story) -> Story:
    """Return a scheduler with 2 x H100:8 and 1 x A100:8."""
    story.join("h100-0", "H100", 8)
    story.join("h100-1", "H100", 8)
    story.join("a100-0", "A100", 8)
    return story
