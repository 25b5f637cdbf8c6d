"""The reward model: what people would say of an answer, learnt from pairs (Bradley-Terry).

It reads an answer as pairs of neighbouring words beside the prompt, adds up what it thinks of each,
and gives one number. Several such networks, trained from different starts, form a panel. Where
they disagree they know too little, and a careful reward counts their doubt against the answer;
otherwise the policy would learn to please the mistakes of one network.
"""

import numpy as np

from rft.adam import Adam, Parameters
from rft.data import Pairs
from rft.language import ANSWER_LENGTH, PAD_NUMBER, START_NUMBER, WORDS, Floats, Numbers

PANEL = 5
EMBEDDING = 10
HIDDEN = 32
DOUBT = 0.5
"""Standard deviations of the panel that are taken off its mean."""
_WORD_INPUTS = 5
_FLAGS = 2
_SCALE = ("center", "spread")


def new_member(rng: np.random.Generator) -> Parameters:
    """Return a network that likes nothing in particular."""
    inputs = _WORD_INPUTS * EMBEDDING + _FLAGS

    def normal(*shape: int, scale: float) -> Floats:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    return {
        "words": normal(len(WORDS), EMBEDDING, scale=0.3),
        "hidden": normal(inputs, HIDDEN, scale=inputs**-0.5),
        "hidden_bias": np.zeros(HIDDEN, dtype=np.float32),
        "out": normal(HIDDEN, scale=0.1),
    }


def train_epoch(
    member: Parameters, optimiser: Adam, pairs: Pairs, rng: np.random.Generator, *, batch: int
) -> float:
    """Go once through *pairs* in random order; return the mean loss before each move."""
    order = rng.permutation(len(pairs))
    losses: list[float] = []
    for start in range(0, len(order), batch):
        loss, gradients = pair_loss(member, pairs.rows(order[start : start + batch]))
        optimiser.move(member, gradients)
        losses.append(loss)
    return float(np.mean(losses))


def accuracy(panel: list[Parameters], pairs: Pairs) -> float:
    """Return in how many of *pairs* (0 to 1) the panel's mean agrees with the people."""
    chosen = np.mean([_scores(member, pairs.prompts, pairs.chosen) for member in panel], axis=0)
    rejected = np.mean([_scores(member, pairs.prompts, pairs.rejected) for member in panel], axis=0)
    return float((chosen > rejected).mean())


def scaled(panel: list[Parameters], pairs: Pairs) -> list[Parameters]:
    """Return the panel with scales by which the answers of *pairs* have mean 0 and deviation 1.

    Preferences fix scores only up to an offset and a factor; members must share both to be
    averaged, and rewards of different rounds must share them to be compared.
    """
    prompts = np.concatenate([pairs.prompts, pairs.prompts])
    answers = np.concatenate([pairs.chosen, pairs.rejected])
    result: list[Parameters] = []
    for member in panel:
        scores = _scores(member, prompts, answers)
        center, spread = np.array([scores.mean()]), np.array([scores.std() + 1e-6])
        result.append(
            {
                **unscaled(member),
                "center": center.astype(np.float32),
                "spread": spread.astype(np.float32),
            }
        )
    return result


def unscaled(member: Parameters) -> Parameters:
    """Return a copy of a member without its scale, to be trained on."""
    return {name: value.copy() for name, value in member.items() if name not in _SCALE}


def reward(panel: list[Parameters], prompts: Numbers, answers: Numbers) -> Floats:
    """Return the careful reward of each answer; 0 is what people's drafts get on average."""
    votes = np.stack(
        [
            (_scores(member, prompts, answers) - member["center"]) / member["spread"]
            for member in panel
        ]
    )
    careful: Floats = votes.mean(axis=0) - np.float32(DOUBT) * votes.std(axis=0)
    return careful


def to_arrays(panel: list[Parameters]) -> Parameters:
    """Return a panel as one flat set of named arrays."""
    return {f"{index}.{name}": value for index, m in enumerate(panel) for name, value in m.items()}


def from_arrays(arrays: Parameters) -> list[Parameters]:
    """Return the panel that `to_arrays` flattened."""
    panel: list[Parameters] = []
    for index in range(len({name.partition(".")[0] for name in arrays})):
        prefix = f"{index}."
        panel.append(
            {n.removeprefix(prefix): a.copy() for n, a in arrays.items() if n.startswith(prefix)}
        )
    return panel


def pair_loss(member: Parameters, pairs: Pairs) -> tuple[float, Parameters]:
    """Return how surprised a member is by people's choices, on average, and its gradients."""
    good, good_cache = _forward(member, pairs.prompts, pairs.chosen)
    bad, bad_cache = _forward(member, pairs.prompts, pairs.rejected)
    chance = 1 / (1 + np.exp(bad - good))
    by_gap = ((chance - 1) / len(pairs)).astype(np.float32)
    up, down = _gradients(member, good_cache, by_gap), _gradients(member, bad_cache, -by_gap)
    return -float(np.log(chance + 1e-9).mean()), {name: up[name] + down[name] for name in up}


def _scores(member: Parameters, prompts: Numbers, answers: Numbers) -> Floats:
    return _forward(member, prompts, answers)[0]


_Cache = tuple[Numbers, Floats, Floats, Numbers]


def _forward(member: Parameters, prompts: Numbers, answers: Numbers) -> tuple[Floats, _Cache]:
    answer, place = np.nonzero(answers != PAD_NUMBER)
    word = answers[answer, place]
    before = np.where(place > 0, answers[answer, place - 1], START_NUMBER)
    seen = np.concatenate([np.stack([before, word], axis=1), prompts[answer]], axis=1)
    in_prompt = (word[:, None] == prompts[answer]).any(axis=1)
    inputs = np.concatenate(
        [
            member["words"][seen].reshape(len(seen), _WORD_INPUTS * EMBEDDING),
            in_prompt[:, None].astype(np.float32),
            _repeated(answers)[answer, place][:, None],
        ],
        axis=1,
    )
    hidden = np.tanh(inputs @ member["hidden"] + member["hidden_bias"])
    scores = np.bincount(answer, weights=hidden @ member["out"], minlength=len(answers))
    return scores.astype(np.float32), (seen, inputs, hidden, answer)


def _gradients(member: Parameters, cache: _Cache, by_score: Floats) -> Parameters:
    seen, inputs, hidden, answer = cache
    by_place = by_score[answer][:, None]
    by_hidden = by_place * member["out"][None, :] * (1 - hidden * hidden)
    by_input = by_hidden @ member["hidden"].T
    by_word = np.zeros_like(member["words"])
    for column in range(_WORD_INPUTS):
        one_hot = np.zeros((len(seen), len(WORDS)), dtype=np.float32)
        one_hot[np.arange(len(seen)), seen[:, column]] = 1.0
        by_word += one_hot.T @ by_input[:, column * EMBEDDING : (column + 1) * EMBEDDING]
    return {
        "words": by_word,
        "hidden": inputs.T @ by_hidden,
        "hidden_bias": by_hidden.sum(axis=0),
        "out": (hidden * by_place).sum(axis=0),
    }


def _repeated(answers: Numbers) -> Floats:
    """Return 1 where a word has been said before in its answer."""
    flags = np.zeros(answers.shape, dtype=np.float32)
    for place in range(1, ANSWER_LENGTH):
        flags[:, place] = (answers[:, :place] == answers[:, place : place + 1]).any(axis=1)
    flags[answers == PAD_NUMBER] = 0
    return flags
