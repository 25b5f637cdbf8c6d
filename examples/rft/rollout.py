"""Phase `rollout`: the current policy answers messages, several times each.

A gang: every rank answers its share of the messages into a file of its own. In the first round the
policy is the one from `reward_training`, later the one from the previous `policy_update`.
Words are drawn one after the other, one answer at a time: like real decoding, this is bound by
latency and not by arithmetic, which is why rollouts take most of a round.
"""

import numpy as np

from rft.adam import Parameters
from rft.contract import Attempt, run
from rft.files import Arrays, rng_from_array, rng_to_array
from rft.language import Numbers, encode_prompts, prompts
from rft.models import Answers, load_policy, save_answers, save_policy
from rft.policy import write_answers
from rft.sizes import sizes

SAVE_EVERY = 4
DECODED_AT_ONCE = 1


class Rollout:
    """What one rank has written so far, and the chance it draws from."""

    def __init__(self, policy: Parameters, rng: np.random.Generator) -> None:
        self.policy = policy
        self.rng = rng
        self._parts: list[Answers] = []

    def answer(self, asked: Numbers, *, groups: int, group: int) -> None:
        """Answer *groups* messages drawn from *asked*, each *group* times."""
        for _ in range(groups):
            prompt = asked[self.rng.integers(len(asked))]
            for start in range(0, group, DECODED_AT_ONCE):
                rows = np.repeat(prompt[None], min(DECODED_AT_ONCE, group - start), axis=0)
                self._parts.append(Answers(rows, *write_answers(self.policy, rows, self.rng)))

    def written(self) -> Answers:
        """Return all answers so far."""
        if len(self._parts) > 1:
            names = vars(self._parts[0])
            joined = {n: np.concatenate([getattr(p, n) for p in self._parts]) for n in names}
            self._parts = [Answers(**joined)]
        return self._parts[0]

    def state(self) -> Arrays:
        """Return everything that must be saved."""
        return {**vars(self.written()), "rng": rng_to_array(self.rng)}

    def load(self, saved: Arrays) -> None:
        """Go on from what `state` returned."""
        self.rng = rng_from_array(saved.pop("rng"))
        self._parts = [Answers(**saved)]


def program(attempt: Attempt) -> None:
    """Run the phase."""
    size = sizes()
    source = attempt.previous("policy_update") or attempt.needed("reward_training")
    rollout = Rollout(load_policy(source), attempt.rng(size.seed))
    asked = encode_prompts(prompts(held_out=False))
    groups = len(range(attempt.rank, size.groups_per_step, attempt.world_size))
    done = 0
    if (resumed := attempt.resume()) is not None:
        done, saved = resumed
        rollout.load(saved)
    for step in range(done + 1, size.rollout_steps + 1):
        rollout.answer(asked, groups=groups, group=size.group)
        attempt.step_done(
            step,
            of=size.rollout_steps,
            state=rollout.state,
            save=step % SAVE_EVERY == 0,
            metrics={"answers": float(step * groups * size.group)},
        )
    save_answers(attempt.output, attempt.rank, rollout.written())
    if attempt.rank == 0:
        save_policy(attempt.output, rollout.policy)


if __name__ == "__main__":
    run(program)
