"""What the demo has learnt from the public events: who holds which GPU, gaps, reward, attempts.

A fold: feed it every event once, in order. It knows nothing of terminals or processes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

REWARD_METRICS = ("reward_mean", "reward")
"""Names under which a phase reports its reward, the first found wins."""
REWARD_ROLES = ("policy_update", "scoring", "rollout")
"""Phases whose reward is shown while it rises, the first found wins."""
FEED_LENGTH_MAX = 200
"""Lines of the events feed that are kept."""

GpuKey = tuple[str, int]


@dataclass(slots=True)
class Attempt:
    """One try of a run, from its placement on."""

    run_id: str
    phase: str
    iteration: int
    number: int
    gpu_type: str | None = None
    gpus: tuple[GpuKey, ...] = ()
    nodes: tuple[str, ...] = ()
    placed_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: str = ""
    reason: str = ""
    last_step: int | None = None
    resumed_from_step: int | None = None
    safe_step: int | None = None
    """Step of its newest checkpoint that another node can resume from."""

    @property
    def seconds(self) -> float | None:
        """Seconds from the start of all members to the end of the last; None while unknown."""
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at).total_seconds()

    @property
    def live(self) -> bool:
        """Whether it holds GPUs or runs without any."""
        return self.placed_at is not None and self.ended_at is None


@dataclass(slots=True)
class Story:
    """Everything the demo shows and sums up."""

    workload_id: str = ""
    attempts: dict[tuple[str, int], Attempt] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    """Role of each phase, in the order in which the phases were first queued."""
    holders: dict[GpuKey, Attempt] = field(default_factory=dict)
    gaps_ms: list[float] = field(default_factory=list)
    rewards: dict[str, list[float]] = field(default_factory=dict)
    """Reward of each phase that reports one, by iteration."""
    reward_before: float | None = None
    reward_after: float | None = None
    outcome: str = ""
    outcome_reason: str = ""
    overlaps: list[str] = field(default_factory=list)
    """Runs that had two attempts at once, by the events alone."""
    feed: list[str] = field(default_factory=list)
    waiting: dict[str, str] = field(default_factory=dict)
    """Why each queued run waits."""
    first_at: datetime | None = None
    last_at: datetime | None = None

    def apply(self, kind: str, at: datetime, data: Mapping[str, Any]) -> str | None:
        """Take in one event (`run.placed` …) and return a line for people, if it deserves one."""
        if self.workload_id and data.get("workload_id") not in (None, self.workload_id):
            return None
        self.first_at = self.first_at or at
        self.last_at = at
        handler = _HANDLERS.get(kind)
        line = handler(self, at, data) if handler else None
        if line is not None:
            self.feed.append(line)
            del self.feed[:-FEED_LENGTH_MAX]
        return line

    @property
    def ended(self) -> bool:
        """Whether the workload is over."""
        return bool(self.outcome)

    @property
    def phases_run(self) -> int:
        """Runs that ended well: one for each phase and iteration."""
        return len({a.run_id for a in self.attempts.values() if a.outcome == "succeeded"})

    @property
    def reward_line(self) -> tuple[str, list[float]]:
        """Return the phase whose reward is worth watching, and that reward by iteration."""
        for role in REWARD_ROLES:
            for phase, values in self.rewards.items():
                if self.roles.get(phase) == role:
                    return phase, values
        return "", []

    @property
    def lost_steps(self) -> int:
        """Steps done by attempts that were cut short and done again by the next one."""
        lost = 0
        for (run_id, number), attempt in self.attempts.items():
            after = self.attempts.get((run_id, number + 1))
            if after is None or after.started_at is None or attempt.last_step is None:
                continue
            lost += max(0, attempt.last_step - (after.resumed_from_step or 0))
        return lost

    def live(self) -> list[Attempt]:
        """Return the attempts that run now."""
        return [attempt for attempt in self.attempts.values() if attempt.live]

    def _attempt(self, data: Mapping[str, Any]) -> Attempt:
        key = (str(data["run_id"]), int(data.get("attempt") or 1))
        if key not in self.attempts:
            phase, _, iteration = key[0].rpartition("-")
            self.attempts[key] = Attempt(
                run_id=key[0],
                phase=str(data.get("phase") or phase.partition("-")[2]),
                iteration=int(data.get("iteration") or iteration or 0),
                number=key[1],
            )
        return self.attempts[key]


def _on_queued(story: Story, at: datetime, data: Mapping[str, Any]) -> str | None:
    attempt = story._attempt(data)
    story.roles.setdefault(attempt.phase, str(data.get("role") or attempt.phase))
    if attempt.number == 1:
        return None
    return f"{_name(attempt)} waits for attempt {attempt.number}: {data.get('reason', '')}"


def _on_placed(story: Story, at: datetime, data: Mapping[str, Any]) -> str | None:
    attempt = story._attempt(data)
    story.roles.setdefault(attempt.phase, attempt.phase)
    members = data.get("members") or ()
    attempt.gpu_type = data.get("gpu_type")
    attempt.placed_at = at
    attempt.nodes = tuple(str(member["node_id"]) for member in members)
    attempt.gpus = tuple((str(m["node_id"]), int(gpu)) for m in members for gpu in m["gpus"])
    story.waiting.pop(attempt.run_id, None)
    for key in attempt.gpus:
        story.holders[key] = attempt
    for other in story.attempts.values():
        if other.run_id == attempt.run_id and other is not attempt and other.live:
            story.overlaps.append(attempt.run_id)
    return None


def _on_member(story: Story, at: datetime, data: Mapping[str, Any]) -> str | None:
    attempt = story._attempt(data)
    if data.get("resumed_from_step") is not None:
        attempt.resumed_from_step = int(data["resumed_from_step"])
    gap = data.get("handover_gap_ms")
    if gap is not None:
        story.gaps_ms.append(float(gap))
        return f"hand-over to {_name(attempt)} on {data.get('node_id')}: {float(gap):.0f} ms"
    return None


def _on_started(story: Story, at: datetime, data: Mapping[str, Any]) -> str | None:
    attempt = story._attempt(data)
    attempt.started_at = at
    line = f"{_name(attempt)} runs on {_where(attempt)}"
    if attempt.resumed_from_step is None:
        return line
    return f"{line}, resumed from step {attempt.resumed_from_step}"


def _on_reported(story: Story, at: datetime, data: Mapping[str, Any]) -> str | None:
    attempt = story._attempt(data)
    if data.get("step") is not None:
        attempt.last_step = max(attempt.last_step or 0, int(data["step"]))
    return None


def _on_checkpoint(story: Story, at: datetime, data: Mapping[str, Any]) -> str | None:
    if data.get("safe") and data.get("step") is not None:
        attempt = story._attempt(data)
        attempt.safe_step = max(attempt.safe_step or 0, int(data["step"]))
    return None


def _on_released(story: Story, at: datetime, data: Mapping[str, Any]) -> str | None:
    attempt = story._attempt(data)
    if data.get("last_step") is not None:
        attempt.last_step = max(attempt.last_step or 0, int(data["last_step"]))
    _free(story, attempt, str(data.get("node_id", "")))
    return None


def _on_ended(story: Story, at: datetime, data: Mapping[str, Any]) -> str | None:
    attempt = story._attempt(data)
    attempt.ended_at = at
    attempt.outcome = str(data.get("outcome", ""))
    attempt.reason = str(data.get("reason") or "")
    _free(story, attempt, None)
    metrics = data.get("metrics") or {}
    _take_metrics(story, attempt, metrics)
    if attempt.outcome == "succeeded":
        reward = _reward(metrics)
        return f"{_name(attempt)} done" + ("" if reward is None else f", reward {reward:.3f}")
    said = (
        attempt.reason
        if attempt.reason.startswith(attempt.outcome)
        else (f"{attempt.outcome}: {attempt.reason}")
    )
    return f"{_name(attempt)} attempt {attempt.number} {said}"


def _take_metrics(story: Story, attempt: Attempt, metrics: Mapping[str, Any]) -> None:
    if "reward_before" in metrics and "reward_after" in metrics:
        story.reward_before = float(metrics["reward_before"])
        story.reward_after = float(metrics["reward_after"])
        return
    reward = _reward(metrics)
    if reward is not None and attempt.outcome == "succeeded":
        story.rewards.setdefault(attempt.phase, []).append(reward)


def _on_explained(story: Story, at: datetime, data: Mapping[str, Any]) -> str | None:
    attempt = story._attempt(data)
    sentence = str((data.get("explanation") or {}).get("sentence") or data.get("sentence") or "")
    story.waiting[attempt.run_id] = sentence
    return f"{_name(attempt)} waits: {sentence}" if sentence else None


def _on_workload_ended(story: Story, at: datetime, data: Mapping[str, Any]) -> str | None:
    story.outcome = str(data.get("outcome", ""))
    story.outcome_reason = str(data.get("reason") or "")
    story.waiting.clear()
    return f"pipeline {story.outcome}"


def _on_refused(story: Story, at: datetime, data: Mapping[str, Any]) -> str | None:
    story.outcome = "refused"
    story.outcome_reason = str(data.get("reason") or "")
    return f"pipeline refused: {story.outcome_reason}"


def _on_node_lost(story: Story, at: datetime, data: Mapping[str, Any]) -> str | None:
    silent = data.get("silent_s")
    return f"node {data.get('node_id')} is lost" + (
        f": silent for {float(silent):.0f} s" if silent is not None else ""
    )


def _on_node_fenced(story: Story, at: datetime, data: Mapping[str, Any]) -> str | None:
    return (
        f"node {data.get('node_id')} is fenced: nothing with fencing "
        f"{data.get('fencing')} can be alive there"
    )


def _on_node_returned(story: Story, at: datetime, data: Mapping[str, Any]) -> str | None:
    return f"node {data.get('node_id')} is back"


_HANDLERS: Mapping[str, Any] = {
    "run.queued": _on_queued,
    "run.placed": _on_placed,
    "run.started": _on_started,
    "run.reported": _on_reported,
    "run.explained": _on_explained,
    "run.ended": _on_ended,
    "checkpoint.recorded": _on_checkpoint,
    "member.recorded": _on_member,
    "member.released": _on_released,
    "workload.ended": _on_workload_ended,
    "workload.refused": _on_refused,
    "node.lost": _on_node_lost,
    "node.fenced": _on_node_fenced,
    "node.returned": _on_node_returned,
}


def _free(story: Story, attempt: Attempt, node: str | None) -> None:
    for key in attempt.gpus:
        if story.holders.get(key) is attempt and node in (None, key[0]):
            del story.holders[key]


def _reward(metrics: Mapping[str, Any]) -> float | None:
    return next((float(metrics[key]) for key in REWARD_METRICS if key in metrics), None)


def _name(attempt: Attempt) -> str:
    return f"{attempt.phase} #{attempt.iteration}"


def _where(attempt: Attempt) -> str:
    if not attempt.gpus:
        return ", ".join(attempt.nodes) or "no GPU"
    by_node: dict[str, list[int]] = {}
    for node, gpu in attempt.gpus:
        by_node.setdefault(node, []).append(gpu)
    return ", ".join(f"{node}[{_ranges(gpus)}]" for node, gpus in by_node.items())


def _ranges(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def kind_of(type_: str) -> str:
    """Return `run.placed` for a public event of type `….run.placed.v1`."""
    words = type_.split(".")
    if words[-1].startswith("v") and words[-1][1:].isdigit():
        del words[-1]
    return ".".join(words[-2:])


def percentile(values: list[float], share: float) -> float | None:
    """Return the nearest-rank percentile of *values* at *share* (0 to 1); None without any."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
