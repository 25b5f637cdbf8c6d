"""Write the human preferences that this example learns from; run once, results are in `data/`.

    python make_data.py

Two answers to the same message are drawn from people's drafts of mixed quality, and an annotator
says which is better. Annotators err: with probability `1 / (1 + exp(gap / NOISE))` they prefer the
one that `rft.truth` likes less. `feedback.jsonl` holds later rounds of the same, in which drafts
are better, since people then compare what a trained policy writes. The same seed always gives the
same files, byte for byte.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from rft.language import (
    ACTIONS,
    ANSWER_WORDS_MAX,
    FILLERS,
    GREETINGS,
    RUDE_WORDS,
    TOPICS,
    Prompt,
    prompts,
)
from rft.truth import true_score

SEED = 20240
PAIRS = 600
ROUNDS = 4
PAIRS_PER_ROUND = 90
NOISE = 0.35
SKILL_FIRST = 0.42
SKILL_OF_ROUND = (0.55, 0.65, 0.75, 0.8)
"""How likely a writer gets each part of a draft right."""


def draft(rng: np.random.Generator, prompt: Prompt, skill: float) -> list[str]:
    """Return an answer as a writer of *skill* (0 to 1) would put it."""

    def well() -> bool:
        return bool(rng.random() < skill)

    def one_of(words: tuple[str, ...]) -> str:
        return words[int(rng.integers(len(words)))]

    mood, topic, channel = prompt
    words = [one_of(("hello", "dear" if channel == "mail" else "hi"))] if well() else []
    if not words and rng.random() < 0.4:
        words.append(one_of((*GREETINGS, *FILLERS)))
    if rng.random() < (0.2 + 0.6 * skill if mood in ("angry", "worried") else 0.15):
        words.append("sorry")
    if well():
        words += ["we", "will", one_of(ACTIONS)]
    else:
        words += [one_of((*RUDE_WORDS, *FILLERS)), "we", one_of(("will", *RUDE_WORDS, *FILLERS))]
    if well():
        words += ["your", topic]
    elif rng.random() < 0.6:
        words += [one_of(("your", "the")), one_of(TOPICS)]
    if rng.random() < (skill if mood == "hurried" else 0.3):
        words.append(one_of(("today", "now")))
    if well():
        words += ["thank", "you"]
    elif rng.random() < 0.5:
        words.append(one_of((*RUDE_WORDS, *FILLERS, "please", "you")))
    while rng.random() < 0.5 * (1 - skill):
        place = int(rng.integers(len(words) + 1))
        words.insert(place, one_of((*FILLERS, *RUDE_WORDS, *words)))
    return words[:ANSWER_WORDS_MAX]


def pair(rng: np.random.Generator, asked: list[Prompt], skill: float) -> dict[str, str]:
    """Return one message with a chosen and a rejected answer."""
    prompt = asked[int(rng.integers(len(asked)))]
    first, second = draft(rng, prompt, skill), draft(rng, prompt, skill)
    while second == first:
        second = draft(rng, prompt, skill)
    gap = true_score(prompt, first) - true_score(prompt, second)
    if rng.random() >= 1 / (1 + math.exp(-gap / NOISE)):
        first, second = second, first
    return {"prompt": " ".join(prompt), "chosen": " ".join(first), "rejected": " ".join(second)}


def texts() -> dict[str, str]:
    """Return the content of each file by its name."""
    rng = np.random.default_rng(SEED)
    asked = prompts(held_out=False)
    first = [pair(rng, asked, SKILL_FIRST) for _ in range(PAIRS)]
    later = [
        {"round": number, **pair(rng, asked, skill)}
        for number, skill in enumerate(SKILL_OF_ROUND[:ROUNDS], start=1)
        for _ in range(PAIRS_PER_ROUND)
    ]
    files: dict[str, list[dict[str, Any]]]
    files = {"preferences.jsonl": first, "feedback.jsonl": later}
    return {name: "".join(json.dumps(r) + "\n" for r in rows) for name, rows in files.items()}


def main() -> None:
    """Write the files into `data` beside this script."""
    for name, text in texts().items():
        (Path(__file__).parent / "data" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
