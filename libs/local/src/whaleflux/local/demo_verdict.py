"""Whether the demo may claim what it claims, and the sentences that say so."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from whaleflux.local.demo_kill import AgentKill
from whaleflux.local.demo_story import Story, percentile
from whaleflux.local.witness import Witness


@dataclass(slots=True)
class Verdict:
    """Numbers, sentences, and what does not hold."""

    numbers: dict[str, object]
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything holds."""
        return not self.failures

    def as_json(self) -> dict[str, object]:
        """Return the one object that `--json` ends with."""
        return {"ok": self.ok, **self.numbers, "failures": self.failures}


def judge(
    story: Story,
    witness: Witness,
    *,
    simulated: bool,
    expects_reward: bool,
    kill: AgentKill | None,
    left: Sequence[str],
    ready_s: float,
    total_s: float,
) -> Verdict:
    """Return the verdict on a demo that has ended; *left* names processes still running."""
    duplicates = sorted({*story.overlaps, *witness.overlaps})
    p50, p95 = percentile(story.gaps_ms, 0.5), percentile(story.gaps_ms, 0.95)
    verdict = Verdict(
        {
            "phases_run": story.phases_run,
            "handovers": len(story.gaps_ms),
            "handover_gap_ms_p50": p50,
            "handover_gap_ms_p95": p95,
            "reward_before": story.reward_before,
            "reward_after": story.reward_after,
            "duplicate_attempts": len(duplicates),
            "lost_steps": max(story.lost_steps, witness.lost_steps),
            "simulated": simulated,
            "ready_s": round(ready_s, 2),
            "total_s": round(total_s, 2),
        }
    )
    verdict.notes.append(
        f"{story.phases_run} phases ran; the stack was ready after {ready_s:.1f} s, "
        f"everything took {total_s:.1f} s."
    )
    if p50 is not None and p95 is not None:
        verdict.notes.append(
            f"Hand-overs: {len(story.gaps_ms)}; GPUs were empty for {p50:.0f} ms (p50), "
            f"{p95:.0f} ms (p95)."
        )
    _judge_outcome(verdict, story)
    _judge_reward(verdict, story, expects_reward=expects_reward)
    _judge_attempts(verdict, duplicates, witness)
    if kill is not None:
        _judge_kill(verdict, story, witness, kill)
    if left:
        verdict.failures.append(f"processes left running: {', '.join(left)}")
    verdict.notes += [f"FAILED: {failure}" for failure in verdict.failures]
    return verdict


def _judge_outcome(verdict: Verdict, story: Story) -> None:
    if story.outcome != "succeeded":
        verdict.failures.append(f"the pipeline {story.outcome}: {story.outcome_reason}")


def _judge_reward(verdict: Verdict, story: Story, *, expects_reward: bool) -> None:
    before, after = story.reward_before, story.reward_after
    if before is None or after is None:
        if expects_reward:
            verdict.failures.append("no evaluation reported the reward before and after")
        return
    verdict.notes.append(f"Reward before {before:.3f}, after {after:.3f}.")
    if after <= before:
        verdict.failures.append("the evaluation did not improve")


def _judge_attempts(verdict: Verdict, duplicates: Sequence[str], witness: Witness) -> None:
    if duplicates:
        verdict.failures.append(f"two live attempts at once of {', '.join(duplicates)}")
        return
    seen = f"; {witness.starts} program starts witnessed" if witness.starts else ""
    verdict.notes.append(f"No run ever had two live attempts{seen}.")


_END_OF_MEMBERS = {
    True: "its members ran to their end unheard, which no longer counted",
    False: "its members ended by themselves at their deadline",
    None: "its members left no account of their own",
}


def _judge_kill(verdict: Verdict, story: Story, witness: Witness, kill: AgentKill) -> None:
    verdict.numbers["killed_node"] = kill.node or None
    if not kill.node:
        verdict.failures.append("there was no rollout in whose middle to kill an agent")
        return
    later = [
        attempt
        for (run_id, number), attempt in story.attempts.items()
        if run_id == kill.run_id and number > kill.attempt and attempt.outcome == "succeeded"
    ]
    if not later:
        verdict.failures.append(f"{kill.run_id} did not go on after its agent was killed")
        return
    again = later[0]
    verdict.numbers["resumed_on"] = list(again.nodes)
    verdict.numbers["resumed_from_step"] = again.resumed_from_step
    where = ", ".join(again.nodes)
    step = again.resumed_from_step
    verdict.notes.append(
        f"The agent of {kill.node} was killed in attempt {kill.attempt} of {again.phase} "
        f"#{again.iteration}; {_END_OF_MEMBERS[witness.finished(kill.run_id, kill.attempt)]}. "
        f"Attempt {again.number} continued on {where} from "
        f"{'the start' if step is None else f'step {step}'}; "
        f"{verdict.numbers['lost_steps']} steps were done twice."
    )
