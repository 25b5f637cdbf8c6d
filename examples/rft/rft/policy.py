"""The policy: a small autoregressive network that writes an answer word by word.

It looks at the prompt's three words, the last three words said, how far it has come, and which
words it has said already; one hidden layer, a softmax over the words. Gradients are by hand.
"""

from dataclasses import dataclass

import numpy as np

from rft.adam import Parameters
from rft.language import (
    ANSWER_LENGTH,
    ANSWER_WORDS_MAX,
    END_NUMBER,
    PAD_NUMBER,
    SAYABLE,
    START_NUMBER,
    WORDS,
    Floats,
    Numbers,
)

EMBEDDING = 16
HIDDEN = 96
LOOKS_BACK = 3
PLACES = 3 + LOOKS_BACK
"""Words that go in through the embedding: the prompt's and the last ones said."""
Cache = tuple[Floats, Floats, Floats]
"""Inputs, hidden layer and log-probabilities of a forward pass."""
NEVER = np.float32(-30.0)
"""Added to the logit of a word that may not stand in an answer."""


def new_policy(rng: np.random.Generator) -> Parameters:
    """Return a policy that knows nothing."""
    inputs = (PLACES + 1) * EMBEDDING + len(WORDS)

    def normal(*shape: int, scale: float) -> Floats:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    return {
        "words": normal(len(WORDS), EMBEDDING, scale=0.3),
        "places": normal(ANSWER_LENGTH, EMBEDDING, scale=0.3),
        "hidden": normal(inputs, HIDDEN, scale=inputs**-0.5),
        "hidden_bias": np.zeros(HIDDEN, dtype=np.float32),
        "out": normal(HIDDEN, len(WORDS), scale=0.05),
        "out_bias": np.zeros(len(WORDS), dtype=np.float32),
    }


@dataclass(frozen=True)
class Decisions:
    """Every choice of a word in some answers, one row each, and where it came from."""

    seen: Numbers
    """Numbers of the words that go in through the embedding."""
    place: Numbers
    said: Floats
    """1 for each word said before."""
    choice: Numbers
    answer: Numbers
    """Row of the answer it belongs to."""

    def rows(self, which: Numbers) -> "Decisions":
        """Return some of the decisions."""
        return Decisions(
            self.seen[which],
            self.place[which],
            self.said[which],
            self.choice[which],
            self.answer[which],
        )


def decisions(prompts: Numbers, answers: Numbers) -> Decisions:
    """Return the choices that led to *answers*, in order of answer and place."""
    count = len(answers)
    before = np.full((count, LOOKS_BACK + ANSWER_LENGTH), START_NUMBER, dtype=np.int64)
    before[:, LOOKS_BACK:] = answers
    said = np.zeros((count, ANSWER_LENGTH, len(WORDS)), dtype=np.float32)
    for later in range(1, ANSWER_LENGTH):
        said[:, later] = said[:, later - 1]
        said[np.arange(count), later, answers[:, later - 1]] = 1.0
    answer, place = np.nonzero(answers != PAD_NUMBER)
    back = np.stack([before[answer, place + look] for look in range(LOOKS_BACK)], axis=1)
    return Decisions(
        seen=np.concatenate([prompts[answer], back], axis=1),
        place=place,
        said=said[answer, place],
        choice=answers[answer, place],
        answer=answer,
    )


def log_probabilities(policy: Parameters, seen: Numbers, place: Numbers, said: Floats) -> Floats:
    """Return the logarithm of each word's probability, one row for each decision."""
    return _forward(policy, seen, place, said)[2]


def answer_log_probabilities(policy: Parameters, prompts: Numbers, answers: Numbers) -> Floats:
    """Return the logarithm of each answer's probability given its prompt."""
    made = decisions(prompts, answers)
    logs = log_probabilities(policy, made.seen, made.place, made.said)
    chosen = logs[np.arange(len(logs)), made.choice]
    return np.bincount(made.answer, weights=chosen, minlength=len(answers)).astype(np.float32)


def gradients(policy: Parameters, made: Decisions, by_logit: Floats, cache: Cache) -> Parameters:
    """Return the gradients of all parameters, given that of the loss by each logit."""
    inputs, hidden, _ = cache
    by_hidden = (by_logit @ policy["out"].T) * (1 - hidden * hidden)
    by_input = by_hidden @ policy["hidden"].T
    by_word = np.zeros_like(policy["words"])
    for column in range(PLACES):
        here = by_input[:, column * EMBEDDING : (column + 1) * EMBEDDING]
        by_word += _one_hot(made.seen[:, column], len(WORDS)).T @ here
    by_place = by_input[:, PLACES * EMBEDDING : (PLACES + 1) * EMBEDDING]
    return {
        "words": by_word,
        "places": _one_hot(made.place, ANSWER_LENGTH).T @ by_place,
        "hidden": inputs.T @ by_hidden,
        "hidden_bias": by_hidden.sum(axis=0),
        "out": hidden.T @ by_logit,
        "out_bias": by_logit.sum(axis=0),
    }


def forward(policy: Parameters, made: Decisions) -> Cache:
    """Return what `gradients` needs; the last of it are the log-probabilities."""
    return _forward(policy, made.seen, made.place, made.said)


def imitation(policy: Parameters, made: Decisions) -> tuple[float, Parameters]:
    """Return the mean cross-entropy of the choices made, and its gradients."""
    cache = forward(policy, made)
    logs = cache[2]
    rows = np.arange(len(logs))
    by_logit = np.exp(logs)
    by_logit[rows, made.choice] -= 1
    by_logit /= np.float32(len(logs))
    loss = -float(logs[rows, made.choice].mean())
    return loss, gradients(policy, made, by_logit, cache)


def write_answers(
    policy: Parameters, prompts: Numbers, rng: np.random.Generator
) -> tuple[Numbers, Floats]:
    """Return an answer to each prompt, drawn word by word, and its log-probability."""
    count = len(prompts)
    answers = np.full((count, ANSWER_LENGTH), PAD_NUMBER, dtype=np.int64)
    total = np.zeros(count, dtype=np.float32)
    said = np.zeros((count, len(WORDS)), dtype=np.float32)
    seen = np.full((count, PLACES), START_NUMBER, dtype=np.int64)
    seen[:, :3] = prompts
    rows, speaking = np.arange(count), np.ones(count, dtype=bool)
    for place in range(ANSWER_WORDS_MAX):
        logs = _forward(policy, seen, np.full(count, place), said)[2]
        # Adding Gumbel noise and taking the greatest draws from the softmax exactly.
        word = (logs + rng.gumbel(size=logs.shape).astype(np.float32)).argmax(axis=1)
        word[~speaking] = PAD_NUMBER
        answers[:, place] = word
        total[speaking] += logs[rows, word][speaking]
        speaking &= word != END_NUMBER
        if not speaking.any():
            return answers, total
        said[rows, word] = 1.0
        seen[:, 3:-1] = seen[:, 4:]
        seen[:, -1] = word
    # Whoever still speaks is cut off; ending there was the only choice left.
    logs = _forward(policy, seen, np.full(count, ANSWER_WORDS_MAX), said)[2]
    answers[speaking, ANSWER_WORDS_MAX] = END_NUMBER
    total[speaking] += logs[speaking, END_NUMBER]
    return answers, total


def _forward(policy: Parameters, seen: Numbers, place: Numbers, said: Floats) -> Cache:
    words = policy["words"][seen].reshape(len(seen), PLACES * EMBEDDING)
    inputs = np.concatenate([words, policy["places"][place], said], axis=1)
    hidden = np.tanh(inputs @ policy["hidden"] + policy["hidden_bias"])
    logits = hidden @ policy["out"] + policy["out_bias"]
    logits += np.where(SAYABLE, np.float32(0), NEVER)
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return inputs, hidden, logits


def _one_hot(numbers: Numbers, width: int) -> Floats:
    rows = np.zeros((len(numbers), width), dtype=np.float32)
    rows[np.arange(len(numbers)), numbers] = 1.0
    return rows
