"""The verbs of this package: where each lives and what it says about itself in one line."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb."""

    module: str
    attribute: str
    help: str


VERBS: dict[str, Verb] = {
    "submit": Verb("submit", "submit", "Hand a workload file in."),
    "validate": Verb("submit", "validate", "Check a workload file without running it."),
    "jobs": Verb("lists", "jobs", "List workloads (also 'ps')."),
    "get": Verb("details", "get", "Show one workload or run."),
    "runs": Verb("lists", "runs", "List the runs of a workload."),
    "logs": Verb("follow", "logs", "Read what a workload wrote; -f follows it to its end."),
    "explain": Verb("explain", "explain", "Say why work waits, and what would start it now."),
    "wait": Verb("follow", "wait", "Wait until a workload has ended, in whatever way."),
    "cancel": Verb("details", "cancel", "Ask for a workload to end."),
    "nodes": Verb("lists", "nodes", "List the nodes of the fleet."),
    "gpus": Verb("lists", "gpus", "List the GPUs and who holds them; -w is live."),
    "events": Verb("follow", "events", "Show what happened; -f goes on."),
    "config": Verb("config", "config", "Name gateways and choose between them."),
    "completion": Verb("config", "completion", "Print a script that completes words with Tab."),
}

ALIASES = {
    "ps": "jobs",
    "run": "submit",
    "describe": "get",
    "contexts": "config",
    "top": "gpus",
}

SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Work", ("submit", "validate", "jobs", "get", "runs", "logs", "explain", "wait", "cancel")),
    ("Fleet", ("nodes", "gpus", "events")),
    ("Setup", ("config", "completion")),
)
