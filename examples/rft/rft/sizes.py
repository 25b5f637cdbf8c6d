"""How much of everything there is; the one place to make the example bigger or smaller.

`RFT_SCALE` (1 if unset) multiplies the work of each phase, `RFT_SEED` (7 if unset) chooses another
random course. With scale 1 a phase takes 1 to 4 seconds on one core.
"""

import math
import os
from dataclasses import dataclass

from rft.contract import Hopeless


@dataclass(frozen=True)
class Sizes:
    """Amounts of work, from the environment."""

    seed: int
    imitation_epochs: int
    """Passes of the first policy over what people wrote."""
    reward_epochs: int
    feedback_epochs: int
    rollout_steps: int
    """Steps of every rank: a gang divides the messages of a step, not the steps."""
    groups_per_step: int
    """Messages that one step answers, all ranks together."""
    evaluation_answers: int
    """Answers to each held-out message from each policy."""
    group: int = 8
    """Answers to one message; they are compared with one another."""
    scoring_batch: int = 1_000
    update_epochs: int = 3
    check_answers: int = 6
    """Answers to each message with which an update looks at its own result."""


def sizes() -> Sizes:
    """Return the amounts that `RFT_SCALE` and `RFT_SEED` ask for.

    Raises:
        Hopeless: One of them is not a number, or the scale is not above 0.

    """
    scale = _number("RFT_SCALE", usual=1.0)
    if not 0 < scale < math.inf:
        raise _senseless("RFT_SCALE", "it must be above 0, 1 is the usual size")
    seed = _number("RFT_SEED", usual=7.0)
    if seed < 0 or not seed.is_integer():
        raise _senseless("RFT_SEED", "it must be a whole number from 0 on, such as 7")

    def scaled(amount: int, least: int) -> int:
        return max(least, round(amount * scale))

    return Sizes(
        seed=int(seed),
        imitation_epochs=scaled(16, 4),
        reward_epochs=scaled(24, 8),
        feedback_epochs=scaled(8, 3),
        rollout_steps=48,
        groups_per_step=scaled(50, 4),
        evaluation_answers=scaled(300, 20),
    )


def _number(name: str, *, usual: float) -> float:
    try:
        return float(os.environ.get(name) or usual)
    except ValueError:
        raise _senseless(name, f"it must be a number, such as {usual:g}") from None


def _senseless(name: str, reason: str) -> Hopeless:
    return Hopeless(f"{name} is {os.environ.get(name)!r}: {reason}")
