"""Reads the preference pairs, and divides them into those to learn from and those to check with."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rft.language import Numbers, Prompt, encode_answers, encode_prompts

FOLDER = Path(__file__).resolve().parent.parent / "data"
LAST_ROUND = 4
"""Of the feedback in the file; a later round of the loop finds nothing new."""
CHECKED_EVERY = 6
"""One pair in six is held out of training and measures the reward model's accuracy."""


@dataclass(frozen=True)
class Pairs:
    """Human judgements, one row each: a prompt, the answer chosen, the answer rejected."""

    prompts: Numbers
    chosen: Numbers
    rejected: Numbers

    def __len__(self) -> int:
        """Return how many judgements there are."""
        return len(self.prompts)

    def rows(self, which: Numbers) -> "Pairs":
        """Return some of the pairs."""
        return Pairs(self.prompts[which], self.chosen[which], self.rejected[which])

    def split(self) -> tuple["Pairs", "Pairs"]:
        """Return the pairs to learn from and the pairs to check with."""
        number = np.arange(len(self))
        checked = number % CHECKED_EVERY == CHECKED_EVERY - 1
        return self.rows(number[~checked]), self.rows(number[checked])

    def and_also(self, other: "Pairs") -> "Pairs":
        """Return these pairs followed by *other*."""
        return Pairs(
            np.concatenate([self.prompts, other.prompts]),
            np.concatenate([self.chosen, other.chosen]),
            np.concatenate([self.rejected, other.rejected]),
        )


def preferences() -> Pairs:
    """Return the judgements there were before training began."""
    return _pairs(_lines("preferences.jsonl"))


def feedback(*, first_round: int, last_round: int) -> Pairs:
    """Return the judgements that came in during these rounds, both ends included."""
    lines = _lines("feedback.jsonl")
    return _pairs([line for line in lines if first_round <= int(line["round"]) <= last_round])


def _lines(name: str) -> list[dict[str, str]]:
    text = (FOLDER / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _pairs(lines: list[dict[str, str]]) -> Pairs:
    return Pairs(
        encode_prompts([_prompt(line["prompt"]) for line in lines]).reshape(-1, 3),
        encode_answers([line["chosen"].split() for line in lines]),
        encode_answers([line["rejected"].split() for line in lines]),
    )


def _prompt(text: str) -> Prompt:
    mood, topic, channel = text.split()
    return mood, topic, channel
