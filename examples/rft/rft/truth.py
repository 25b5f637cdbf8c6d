"""What the people who wrote the preferences really like.

Only `make_data.py` (in the role of the people) and the evaluation look in here. Training sees
nothing but the pairs, as in real life.
"""

import itertools
from collections.abc import Sequence

from rft.language import ACTIONS, FILLERS, GREETINGS, RUDE_WORDS, Prompt

WORDS_WELCOME = {"chat": 9, "mail": 11}
WRONG_GREETING = {"chat": "dear", "mail": "hi"}


def true_score(prompt: Prompt, answer: Sequence[str]) -> float:
    """Return how much people like *answer*; a bad one is below 0, the best reach 4."""
    return (
        _manners(prompt, answer)
        + _substance(prompt, answer)
        - 0.6 * sum(word in RUDE_WORDS for word in answer)
        - 0.3 * sum(word in FILLERS for word in answer)
        - 0.4 * (len(answer) - len(set(answer)))
        - 0.25 * max(0, len(answer) - WORDS_WELCOME[prompt[2]])
    )


def _manners(prompt: Prompt, answer: Sequence[str]) -> float:
    mood, _, channel = prompt
    score = 0.0
    if answer and answer[0] in GREETINGS:
        score += 0.3 if answer[0] == WRONG_GREETING[channel] else 0.7
    if list(answer[-2:]) == ["thank", "you"]:
        score += 0.7
    if "sorry" in answer:
        score += 0.5 if mood in ("angry", "worried") else -0.3
    return score


def _substance(prompt: Prompt, answer: Sequence[str]) -> float:
    mood, topic, _ = prompt
    pairs = set(itertools.pairwise(answer))
    score = 0.0
    if topic in answer:
        score += 1.0 if ("your", topic) in pairs else 0.7
    if any(("will", action) in pairs for action in ACTIONS):
        score += 0.7
    if "today" in answer or "now" in answer:
        score += 0.5 if mood == "hurried" else 0.2
    if not answer:
        score -= 1.0
    return score
