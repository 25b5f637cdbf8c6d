"""Kills the agent of a busy node in the middle of a rollout, for good."""

from dataclasses import dataclass

from whaleflux.common.contracts.workload import WorkloadSpec
from whaleflux.local.demo_story import Attempt, Story
from whaleflux.local.stack import agent_name
from whaleflux.local.supervisor import Supervisor

ROLE = "rollout"
UNSAVED_S = 3.0
"""A rollout that has saved nothing for so long is killed all the same."""


@dataclass(slots=True)
class AgentKill:
    """One kill, before and after."""

    iteration: int = 1
    """Round of the loop in which to kill."""
    node: str = ""
    run_id: str = ""
    attempt: int = 0
    pid: int = 0

    @classmethod
    def in_middle_of(cls, spec: WorkloadSpec) -> "AgentKill":
        """Return a kill in the second rollout of *spec*, or in the only one.

        By then there is something to lose, and hand-overs without a fault to compare with.
        """
        loops = [spec.loop_of(phase.name) for phase in spec.phases if phase.role == ROLE]
        return cls(iteration=2 if any(loop and loop.max > 1 for loop in loops) else 1)

    def consider(self, story: Story, supervisor: Supervisor) -> str | None:
        """Kill if this is the moment, and say so; None otherwise."""
        if self.node:
            return None
        attempt = next((a for a in story.live() if _is_ripe(a, story, self.iteration)), None)
        if attempt is None:
            return None
        self.node, self.run_id, self.attempt = attempt.nodes[0], attempt.run_id, attempt.number
        self.pid = supervisor.kill_for_good(agent_name(self.node))
        saved = "nothing saved yet" if attempt.safe_step is None else f"step {attempt.safe_step}"
        return (
            f"KILLED the agent of {self.node} (process {self.pid}) during "
            f"{attempt.phase} #{attempt.iteration}; newest safe checkpoint: {saved}"
        )


def _is_ripe(attempt: Attempt, story: Story, iteration: int) -> bool:
    if attempt.iteration < iteration:
        return False
    if story.roles.get(attempt.phase) != ROLE or attempt.started_at is None or not attempt.nodes:
        return False
    if attempt.safe_step is not None:
        return True
    return story.last_at is not None and (
        (story.last_at - attempt.started_at).total_seconds() > UNSAVED_S
    )
