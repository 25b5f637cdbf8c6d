"""The words of a service desk, the customers' messages, and answers as arrays of word numbers.

A message (the prompt) is three words: how the customer feels, what it is about, and the channel it
came by, as in `angry refund mail`. An answer is up to `ANSWER_WORDS_MAX` words and ends with
`<end>`.
"""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Floats = NDArray[np.float32]

PAD, START, END = "<pad>", "<start>", "<end>"
MOODS = ("calm", "angry", "worried", "hurried")
TOPICS = (
    "refund",
    "delivery",
    "invoice",
    "password",
    "order",
    "account",
    "repair",
    "return",
    "booking",
    "warranty",
)
CHANNELS = ("chat", "mail")
GREETINGS = ("hello", "hi", "dear")
COURTESIES = ("thank", "you", "please", "sorry")
ACTIONS = ("check", "send", "fix", "explain")
SMALL_WORDS = ("we", "will", "your", "the", "for", "today", "now")
FILLERS = ("well", "basically", "actually", "um")
RUDE_WORDS = ("no", "whatever", "nonsense", "busy", "wait")

WORDS = (
    *(PAD, START, END),
    *(*MOODS, *TOPICS, *CHANNELS),
    *(*GREETINGS, *COURTESIES, *ACTIONS, *SMALL_WORDS, *FILLERS, *RUDE_WORDS),
)
NUMBER_OF = {word: number for number, word in enumerate(WORDS)}
PAD_NUMBER, START_NUMBER, END_NUMBER = (NUMBER_OF[word] for word in (PAD, START, END))
SAYABLE = np.array([word not in (PAD, START, *MOODS, *CHANNELS) for word in WORDS])
"""Which words may stand in an answer; the others belong to the customer."""

ANSWER_WORDS_MAX = 13
ANSWER_LENGTH = ANSWER_WORDS_MAX + 1
"""Places in an answer's row: its words, `<end>`, then `<pad>`."""

Prompt = tuple[str, str, str]
HELD_OUT_EVERY = 5
"""One message in five is never trained on; the evaluation asks exactly those."""


def prompts(*, held_out: bool) -> list[Prompt]:
    """Return the messages to train on, or those kept for the evaluation."""
    every = list(itertools.product(MOODS, TOPICS, CHANNELS))
    # Stepping through the product diagonally spreads moods, topics and channels over both sides.
    return [
        prompt
        for number, prompt in enumerate(every)
        if ((number + number // len(CHANNELS)) % HELD_OUT_EVERY == 0) is held_out
    ]


def encode_prompts(many: Sequence[Prompt]) -> Numbers:
    """Return one row of three word numbers for each prompt."""
    return np.array([[NUMBER_OF[word] for word in prompt] for prompt in many], dtype=np.int64)


def encode_answers(many: Sequence[Sequence[str]]) -> Numbers:
    """Return one row of `ANSWER_LENGTH` word numbers for each answer.

    Raises:
        ValueError: An answer is too long.

    """
    rows = np.full((len(many), ANSWER_LENGTH), PAD_NUMBER, dtype=np.int64)
    for row, words in zip(rows, many, strict=True):
        if len(words) > ANSWER_WORDS_MAX:
            raise ValueError(f"an answer has {len(words)} words, at most {ANSWER_WORDS_MAX} fit")
        row[: len(words)] = [NUMBER_OF[word] for word in words]
        row[len(words)] = END_NUMBER
    return rows


def decode_answer(row: Iterable[int]) -> list[str]:
    """Return the words of one row, `<end>` and what follows left out."""
    words = (WORDS[int(number)] for number in row)
    return list(itertools.takewhile(lambda word: word not in (END, PAD), words))


def answer_lengths(answers: Numbers) -> Numbers:
    """Return how many words each answer has."""
    words = (answers != PAD_NUMBER) & (answers != END_NUMBER)
    return np.asarray(words.sum(axis=1), dtype=np.int64)
