"""Phase `policy_update`: make well-rewarded answers likelier, a little at a time.

Each answer is compared with the others to the same message (its advantage), and the policy moves
towards what was better than average. PPO's clipping keeps each move near the policy that wrote the
answers; the price of drift in the rewards keeps it near the reference.
"""

from dataclasses import dataclass

import numpy as np

from rft import policy, reward
from rft.adam import Adam, Parameters
from rft.contract import Attempt, run
from rft.files import Arrays, below, read_arrays, rng_from_array, rng_to_array, under
from rft.language import Floats, Numbers, encode_prompts, prompts
from rft.models import (
    SCORED,
    Answers,
    load_answers,
    load_policy,
    load_reward_model,
    save_policy,
)
from rft.sizes import sizes

CLIP = 0.4
"""A choice stops being pushed once its chance has changed by this share; wider than the usual 0.2,
since there are only four rounds to learn in."""
BATCH = 2_048
LEARNING_RATE = 1e-4
LEAST_SPREAD = 0.3
"""Added to a group's deviation, so that nearly equal answers do not seem worlds apart."""


@dataclass(frozen=True)
class Lesson:
    """All choices of words in a rollout, and how good they turned out."""

    made: policy.Decisions
    log_probability: Floats
    """Of each choice, by the policy that made it."""
    advantage: Floats


class Update:
    """Everything that changes while this phase runs."""

    def __init__(self, start: Parameters, rng: np.random.Generator) -> None:
        self.rng = rng
        self.policy = {name: value.copy() for name, value in start.items()}
        self.mover = Adam(self.policy, learning_rate=LEARNING_RATE)

    def learn(self, lesson: Lesson) -> dict[str, float]:
        """Go once through the lesson in random order; return what moved and how much."""
        order = self.rng.permutation(len(lesson.advantage))
        clipped: list[float] = []
        entropy: list[float] = []
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            made = lesson.made.rows(rows)
            cache = policy.forward(self.policy, made)
            logs, each = cache[2], np.arange(len(rows))
            ratio = np.exp(logs[each, made.choice] - lesson.log_probability[rows])
            advantage = lesson.advantage[rows]
            too_far = np.where(advantage > 0, ratio > 1 + CLIP, ratio < 1 - CLIP)
            push = np.where(too_far, 0, ratio * advantage) / np.float32(len(rows))
            chances = np.exp(logs)
            by_logit = chances * push[:, None]
            by_logit[each, made.choice] -= push
            moved = policy.gradients(self.policy, made, by_logit.astype(np.float32), cache)
            self.mover.move(self.policy, moved)
            clipped.append(float(too_far.mean()))
            entropy.append(-float((chances * logs).sum(axis=1).mean()))
        return {"clip_frac": float(np.mean(clipped)), "entropy": float(np.mean(entropy))}

    def state(self) -> Arrays:
        """Return everything that must be saved."""
        return {
            **under("policy", self.policy),
            **under("mover", self.mover.state()),
            "rng": rng_to_array(self.rng),
        }

    def load(self, saved: Arrays) -> None:
        """Go on from what `state` returned."""
        self.rng = rng_from_array(saved["rng"])
        for name, value in below("policy", saved).items():
            self.policy[name] = value.copy()
        self.mover.load(below("mover", saved))


def lesson_of(writer: Parameters, written: Answers, rewards: Floats, *, group: int) -> Lesson:
    """Return what *written* teaches, the answers of each *group* compared with one another."""
    groups = rewards.reshape(-1, group)
    better = groups - groups.mean(axis=1, keepdims=True)
    advantage = better / (groups.std(axis=1, keepdims=True) + LEAST_SPREAD)
    made = policy.decisions(written.prompts, written.answers)
    logs = policy.log_probabilities(writer, made.seen, made.place, made.said)
    chosen = logs[np.arange(len(logs)), made.choice]
    return Lesson(made, chosen, advantage.ravel()[made.answer].astype(np.float32))


def look(
    candidate: Parameters,
    reference: Parameters,
    panel: list[Parameters],
    asked: Numbers,
    rng: np.random.Generator,
) -> dict[str, float]:
    """Return the mean reward of fresh answers to *asked*, and their drift from the reference."""
    answers, log_probability = policy.write_answers(candidate, asked, rng)
    by_reference = policy.answer_log_probabilities(reference, asked, answers)
    return {
        "reward_mean": float(reward.reward(panel, asked, answers).mean()),
        "kl": float((log_probability - by_reference).mean()),
    }


def program(attempt: Attempt) -> None:
    """Run the phase."""
    size = sizes()
    writer = load_policy(attempt.needed("rollout"))
    reference = load_policy(attempt.needed("reward_training"))
    panel = load_reward_model(attempt.needed("scoring"))
    rewards = read_arrays(attempt.needed("scoring") / SCORED)["reward"]
    written = load_answers(attempt.needed("rollout"))
    lesson = lesson_of(writer, written, rewards, group=size.group)
    asked = np.repeat(encode_prompts(prompts(held_out=False)), size.check_answers, axis=0)
    update = Update(writer, attempt.rng(size.seed))
    done, total = 0, size.update_epochs
    if (resumed := attempt.resume()) is not None:
        done, saved = resumed
        update.load(saved)
    for epoch in range(done + 1, total + 1):
        metrics = update.learn(lesson)
        metrics |= look(update.policy, reference, panel, asked, update.rng)
        attempt.step_done(epoch, of=total, state=update.state, save=True, metrics=metrics)
        attempt.say(", ".join(f"{name} {value:.3f}" for name, value in metrics.items()))
    save_policy(attempt.output, update.policy)


if __name__ == "__main__":
    run(program)
