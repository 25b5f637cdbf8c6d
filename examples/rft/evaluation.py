"""Phase `evaluation`: is the last policy better than the first, on messages nobody trained on?

Judged twice: by what the people who wrote the preferences really like (`rft.truth`, which training
never saw), and by the reward model. Fails unless the last policy is better by the first of them:
a policy that only pleases its reward model has not improved.
"""

import json
import sys

import numpy as np

from rft import reward
from rft.contract import Attempt, run
from rft.files import Arrays, rng_from_array, rng_to_array, write_whole
from rft.language import WORDS, Numbers, decode_answer, encode_prompts, prompts
from rft.models import load_policy, load_reward_model
from rft.policy import write_answers
from rft.sizes import sizes
from rft.truth import true_score

SAVE_EVERY = 20
RESULT = "evaluation.json"
SHOWN = 4
"""Messages of which the log shows an answer of each policy."""


def true_scores(asked: Numbers, answers: Numbers) -> list[float]:
    """Return how much people like each answer."""
    return [
        true_score((WORDS[row[0]], WORDS[row[1]], WORDS[row[2]]), decode_answer(answer))
        for row, answer in zip(asked, answers, strict=True)
    ]


def program(attempt: Attempt) -> None:
    """Run the phase."""
    size = sizes()
    policies = [
        load_policy(attempt.needed("reward_training")),
        load_policy(attempt.needed("policy_update")),
    ]
    panel = load_reward_model(attempt.needed("feedback"))
    asked = encode_prompts(prompts(held_out=True))
    rng = attempt.rng(size.seed)
    total = size.evaluation_answers
    # One row a round; columns: truth by policy, learnt reward by policy, share of wins.
    rows = np.zeros((total, 5))
    done = 0
    if (resumed := attempt.resume()) is not None:
        done, saved = resumed
        rows, rng = saved["rows"].copy(), rng_from_array(saved["rng"])

    def state() -> Arrays:
        return {"rows": rows, "rng": rng_to_array(rng)}

    for step in range(done + 1, total + 1):
        before, after = (write_answers(policy, asked, rng)[0] for policy in policies)
        old, new = np.array(true_scores(asked, before)), np.array(true_scores(asked, after))
        learnt = [float(reward.reward(panel, asked, both).mean()) for both in (before, after)]
        wins = float(((new > old) + 0.5 * (new == old)).mean())
        rows[step - 1] = [old.mean(), new.mean(), *learnt, wins]
        attempt.step_done(
            step,
            of=total,
            state=state,
            save=step % SAVE_EVERY == 0,
            metrics=_metrics(rows[:step]),
        )
        if step == total:
            _show(attempt, asked, before, after)
    metrics = _metrics(rows)
    write_whole(attempt.output / RESULT, json.dumps(metrics, indent=1).encode())
    attempt.say(", ".join(f"{name} {value:.3f}" for name, value in metrics.items()))
    if metrics["reward_after"] <= metrics["reward_before"]:
        sys.exit(
            f"the last policy is no better than the first: people like it by "
            f"{metrics['reward_after']:.3f}, the first by {metrics['reward_before']:.3f}"
        )


def _metrics(rows: np.ndarray) -> dict[str, float]:
    names = (
        "reward_before",
        "reward_after",
        "learnt_reward_before",
        "learnt_reward_after",
        "win_rate",
    )
    return {name: float(value) for name, value in zip(names, rows.mean(axis=0), strict=True)}


def _show(attempt: Attempt, asked: Numbers, before: Numbers, after: Numbers) -> None:
    for row in range(0, len(asked), max(1, len(asked) // SHOWN)):
        message = " ".join(WORDS[number] for number in asked[row])
        attempt.say(f"{message}: {' '.join(decode_answer(before[row]))!r}")
        attempt.say(f"{' ' * len(message)}→ {' '.join(decode_answer(after[row]))!r}")


if __name__ == "__main__":
    run(program)
