"""What phases hand to one another: policies, reward models, answers and their scores."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rft.adam import Parameters
from rft.files import read_arrays, write_arrays
from rft.language import Floats, Numbers
from rft.reward import from_arrays, to_arrays

POLICY = "policy.npz"
REWARD_MODEL = "reward_model.npz"
SCORED = "scored.npz"


def answers_name(rank: int) -> str:
    """Return the name of the file with what one rank of a rollout wrote."""
    return f"answers-rank{rank}.npz"


@dataclass(frozen=True)
class Answers:
    """Answers that a policy wrote; those to the same message stand together."""

    prompts: Numbers
    answers: Numbers
    log_probability: Floats
    """Of the whole answer, by the policy that wrote it."""

    def __len__(self) -> int:
        """Return how many answers there are."""
        return len(self.answers)


def save_policy(folder: Path, policy: Parameters) -> None:
    """Write a policy into an output folder."""
    write_arrays(folder / POLICY, policy)


def load_policy(folder: Path) -> Parameters:
    """Return the policy in an output folder."""
    return dict(read_arrays(folder / POLICY))


def save_reward_model(folder: Path, panel: list[Parameters]) -> None:
    """Write a reward model into an output folder."""
    write_arrays(folder / REWARD_MODEL, to_arrays(panel))


def load_reward_model(folder: Path) -> list[Parameters]:
    """Return the reward model in an output folder."""
    return from_arrays(read_arrays(folder / REWARD_MODEL))


def save_answers(folder: Path, rank: int, written: Answers) -> None:
    """Write what one rank produced."""
    write_arrays(folder / answers_name(rank), vars(written))


def load_answers(folder: Path) -> Answers:
    """Return what all ranks of a rollout wrote, in order of rank."""
    count = len(list(folder.glob(answers_name(0).replace("0", "*"))))
    parts = [read_arrays(folder / answers_name(rank)) for rank in range(count)]
    return Answers(**{name: np.concatenate([p[name] for p in parts]) for name in parts[0]})
