"""Phase `reward_training`: learn from people's judgements before any reinforcement.

Two things come out: the first policy, which imitates the answers people wrote, good and bad alike,
and the reward model, trained on which of two answers they preferred. The first policy is also the
reference that later ones must not drift away from.
"""

import numpy as np

from rft import data, policy, reward
from rft.adam import Adam, Parameters
from rft.contract import Attempt, run
from rft.files import Arrays, below, rng_from_array, rng_to_array, under
from rft.models import save_policy, save_reward_model
from rft.sizes import Sizes, sizes

SAVE_EVERY = 6
IMITATION_BATCH = 256
REWARD_BATCH = 32


class Training:
    """Everything that changes while this phase runs."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.policy = policy.new_policy(rng)
        self.panel = [reward.new_member(rng) for _ in range(reward.PANEL)]
        self.policy_mover = Adam(self.policy, learning_rate=3e-3, weight_decay=0.01)
        self.panel_movers = [
            Adam(member, learning_rate=4e-3, weight_decay=0.08) for member in self.panel
        ]

    def imitate(self, made: policy.Decisions) -> dict[str, float]:
        """Let the policy learn once from all answers; return its loss for each word."""
        order = self.rng.permutation(len(made.choice))
        losses: list[float] = []
        for start in range(0, len(order), IMITATION_BATCH):
            rows = made.rows(order[start : start + IMITATION_BATCH])
            loss, gradients = policy.imitation(self.policy, rows)
            self.policy_mover.move(self.policy, gradients)
            losses.append(loss)
        return {"imitation_loss": float(np.mean(losses))}

    def judge(self, learnt: data.Pairs, checked: data.Pairs) -> dict[str, float]:
        """Let the panel learn once from all pairs; return its loss, and accuracy on others."""
        losses = [
            reward.train_epoch(member, mover, learnt, self.rng, batch=REWARD_BATCH)
            for member, mover in zip(self.panel, self.panel_movers, strict=True)
        ]
        return {
            "pair_loss": float(np.mean(losses)),
            "pair_accuracy": reward.accuracy(self.panel, checked),
        }

    def state(self) -> Arrays:
        """Return everything that must be saved."""
        movers = [self.policy_mover, *self.panel_movers]
        saved = {**under("policy", self.policy), **under("panel", reward.to_arrays(self.panel))}
        for index, mover in enumerate(movers):
            saved |= under(f"mover{index}", mover.state())
        return {**saved, "rng": rng_to_array(self.rng)}

    def load(self, saved: Arrays) -> None:
        """Go on from what `state` returned."""
        self.rng = rng_from_array(saved["rng"])
        _fill(self.policy, below("policy", saved))
        for member, old in zip(self.panel, reward.from_arrays(below("panel", saved)), strict=True):
            _fill(member, old)
        for index, mover in enumerate([self.policy_mover, *self.panel_movers]):
            mover.load(below(f"mover{index}", saved))


def program(attempt: Attempt) -> None:
    """Run the phase."""
    size: Sizes = sizes()
    training = Training(attempt.rng(size.seed))
    learnt, checked = data.preferences().split()
    made = policy.decisions(
        np.concatenate([learnt.prompts, learnt.prompts]),
        np.concatenate([learnt.chosen, learnt.rejected]),
    )
    total = size.imitation_epochs + size.reward_epochs
    done = 0
    if (resumed := attempt.resume()) is not None:
        done, saved = resumed
        training.load(saved)
    for step in range(done + 1, total + 1):
        if step <= size.imitation_epochs:
            metrics = training.imitate(made)
        else:
            metrics = training.judge(learnt, checked)
        attempt.step_done(
            step, of=total, state=training.state, save=step % SAVE_EVERY == 0, metrics=metrics
        )
    panel = reward.scaled(training.panel, learnt)
    attempt.say(f"the reward model agrees with people in {reward.accuracy(panel, checked):.1%}")
    save_policy(attempt.output, training.policy)
    save_reward_model(attempt.output, panel)


def _fill(parameters: Parameters, saved: Arrays) -> None:
    for name in parameters:
        parameters[name] = saved[name].copy()


if __name__ == "__main__":
    run(program)
