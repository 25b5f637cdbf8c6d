"""Phase `scoring`: give each answer of the rollout its reward.

The reward model's opinion, less a little for every word too many, less a little for drifting away
from the reference (the first policy), as the answers tell: log-probability by the policy that wrote
them minus that by the reference. In the first round the reward model is the one from
`reward_training`, later the one that the previous round's `feedback` has corrected.
"""

import numpy as np

from rft import reward
from rft.contract import Attempt, run
from rft.files import Arrays, write_arrays
from rft.language import Floats, answer_lengths
from rft.models import SCORED, load_answers, load_policy, load_reward_model, save_reward_model
from rft.policy import answer_log_probabilities
from rft.sizes import sizes

SAVE_EVERY = 5
DRIFT_PRICE = 0.05
"""Reward taken off for one nat of drift from the reference."""
WORDS_FREE = 10
WORD_PRICE = 0.1
"""Reward taken off for each word beyond the free ones."""


def program(attempt: Attempt) -> None:
    """Run the phase."""
    size = sizes()
    written = load_answers(attempt.needed("rollout"))
    reference = load_policy(attempt.needed("reward_training"))
    panel = load_reward_model(attempt.previous("feedback") or attempt.needed("reward_training"))
    total = -(-len(written) // size.scoring_batch)
    opinion, drift = np.zeros((2, len(written)), dtype=np.float32)
    done = 0
    if (resumed := attempt.resume()) is not None:
        done, saved = resumed
        opinion, drift = saved["opinion"].copy(), saved["drift"].copy()

    def state() -> Arrays:
        return {"opinion": opinion, "drift": drift}

    for step in range(done + 1, total + 1):
        rows = slice((step - 1) * size.scoring_batch, step * size.scoring_batch)
        prompts, answers = written.prompts[rows], written.answers[rows]
        opinion[rows] = reward.reward(panel, prompts, answers)
        by_reference = answer_log_probabilities(reference, prompts, answers)
        drift[rows] = written.log_probability[rows] - by_reference
        metrics = {"score_mean": _mean(opinion[: rows.stop]), "drift": _mean(drift[: rows.stop])}
        attempt.step_done(step, of=total, state=state, save=step % SAVE_EVERY == 0, metrics=metrics)
    too_long = np.maximum(0, answer_lengths(written.answers) - WORDS_FREE)
    rewards = opinion - np.float32(WORD_PRICE) * too_long - np.float32(DRIFT_PRICE) * drift
    write_arrays(
        attempt.output / SCORED, {"reward": rewards.astype(np.float32), "opinion": opinion}
    )
    save_reward_model(attempt.output, panel)
    attempt.say(f"{len(written)} answers, on average {_mean(opinion):+.3f}")


def _mean(values: Floats) -> float:
    return float(values.mean())


if __name__ == "__main__":
    run(program)
