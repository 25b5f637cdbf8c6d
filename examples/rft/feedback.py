"""Phase `feedback`: correct the reward model with what people said in this round.

People look at what the policy writes now and say which of two answers is better. Nobody waits for
them here: what they have said until this round lies in `data/feedback.jsonl`, and the phase trains
on it together with all earlier judgements, so that nothing is forgotten. It runs beside `scoring`,
on cheaper GPUs; the next round's scoring uses the corrected model.
"""

import numpy as np

from rft import data, reward
from rft.adam import Adam, Parameters
from rft.contract import Attempt, run
from rft.files import Arrays, below, rng_from_array, rng_to_array, under
from rft.models import load_answers, load_reward_model, save_reward_model
from rft.sizes import sizes

SAVE_EVERY = 2
BATCH = 32
SHOWN = 500
"""Answers of the rollout of which the corrected model's opinion is reported."""


class Correction:
    """Everything that changes while this phase runs."""

    def __init__(self, panel: list[Parameters], rng: np.random.Generator) -> None:
        self.rng = rng
        self.panel = [reward.unscaled(member) for member in panel]
        self.movers = [Adam(member, learning_rate=2e-3, weight_decay=0.08) for member in self.panel]

    def learn(self, learnt: data.Pairs) -> float:
        """Go once through all pairs with every member; return the mean loss."""
        return float(
            np.mean(
                [
                    reward.train_epoch(member, mover, learnt, self.rng, batch=BATCH)
                    for member, mover in zip(self.panel, self.movers, strict=True)
                ]
            )
        )

    def state(self) -> Arrays:
        """Return everything that must be saved."""
        saved = {**under("panel", reward.to_arrays(self.panel)), "rng": rng_to_array(self.rng)}
        for index, mover in enumerate(self.movers):
            saved |= under(f"mover{index}", mover.state())
        return saved

    def load(self, saved: Arrays) -> None:
        """Go on from what `state` returned."""
        self.rng = rng_from_array(saved["rng"])
        self.panel = reward.from_arrays(below("panel", saved))
        for index, mover in enumerate(self.movers):
            mover.load(below(f"mover{index}", saved))


def program(attempt: Attempt) -> None:
    """Run the phase."""
    size = sizes()
    source = attempt.previous("feedback") or attempt.needed("reward_training")
    correction = Correction(load_reward_model(source), attempt.rng(size.seed))
    before, _ = data.preferences().split()
    learnt = before.and_also(data.feedback(first_round=1, last_round=attempt.iteration).split()[0])
    written = load_answers(attempt.needed("rollout"))
    shown, answers = written.prompts[:SHOWN], written.answers[:SHOWN]
    _, checked = data.feedback(first_round=1, last_round=data.LAST_ROUND).split()
    done, total = 0, size.feedback_epochs
    if (resumed := attempt.resume()) is not None:
        done, saved = resumed
        correction.load(saved)
    for step in range(done + 1, total + 1):
        loss = correction.learn(learnt)
        # The scale stays tied to the first judgements, so that all rounds can be compared.
        panel = reward.scaled(correction.panel, before)
        metrics = {
            "pair_loss": loss,
            "pair_accuracy": reward.accuracy(panel, checked),
            "opinion_of_rollout": float(reward.reward(panel, shown, answers).mean()),
        }
        attempt.step_done(
            step, of=total, state=correction.state, save=step % SAVE_EVERY == 0, metrics=metrics
        )
    save_reward_model(attempt.output, reward.scaled(correction.panel, before))
    attempt.say(f"learnt from {len(learnt)} judgements, {len(learnt) - len(before)} of them new")


if __name__ == "__main__":
    run(program)
