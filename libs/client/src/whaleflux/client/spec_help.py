"""What each field of a workload file means; a test holds it against the contract."""

from collections.abc import Mapping
from dataclasses import dataclass

from whaleflux.common.contracts.explain import nearest


@dataclass(frozen=True, slots=True)
class FieldHelp:
    """One field: what it takes, what it means, how it looks."""

    takes: str
    meaning: str
    example: str = ""
    default: str = ""


FIELDS: Mapping[str, FieldHelp] = {
    "version": FieldHelp("1", "The format of this file.", default="1"),
    "kind": FieldHelp(
        "job | pipeline",
        "A job runs one command once; a pipeline is phases that need one another, with loops.",
        "kind: pipeline",
        "job",
    ),
    "name": FieldHelp(
        "text",
        "What people call the workload; 'get', 'logs' and the like take it while it is unique.",
        "name: rft-demo",
        "the file's name without its ending",
    ),
    "project": FieldHelp("word", "The team whose work this is.", "project: alignment", "default"),
    "priority": FieldHelp(
        "-1000 … 1000", "Work with more priority gets free GPUs first.", "priority: 10", "0"
    ),
    "store": FieldHelp(
        "name | local",
        "Where checkpoints and outputs are kept. 'local' keeps them on the node, and loses them "
        "with it.",
        "store: default",
        "the pool's store",
    ),
    "workdir": FieldHelp(
        "folder",
        "Copied to every node; the commands start in it. Relative to this file. What .wfignore "
        "(else .gitignore) names stays at home.",
        "workdir: .",
        "an empty folder",
    ),
    "envs": FieldHelp(
        "name: value",
        "Environment of every phase. Values stay exactly as written; one without a value is "
        "taken from your own environment.",
        "envs: {EPOCHS: 3, HF_HOME: }",
        "none",
    ),
    "fencing": FieldHelp(
        "fast | patient",
        "How long a node that nobody hears may go on before its processes end themselves and the "
        "run starts elsewhere: 20 s or 300 s.",
        "fencing: fast",
        "patient",
    ),
    "retry": FieldHelp(
        "mapping", "What happens when the program fails.", "retry: {max_attempts: 5}"
    ),
    "retry.max_attempts": FieldHelp(
        "1 … 100",
        "Attempts that may end by the program's own failure; lost nodes do not count.",
        "max_attempts: 5",
        "3",
    ),
    "checkpoint": FieldHelp("mapping", "How the program saves.", "checkpoint: {grace_s: 60}"),
    "checkpoint.grace_s": FieldHelp(
        "seconds", "Time to save between SIGTERM and SIGKILL, at most 3600.", "grace_s: 60", "10"
    ),
    "resources": FieldHelp(
        "mapping",
        "What each node must offer.",
        "resources: {accelerators: H100:8, cpus: 16, memory: 128}",
        "no GPU",
    ),
    "resources.accelerators": FieldHelp(
        "TYPE[:COUNT], or a list of them",
        "GPUs on each node. Several entries are alternatives, the first preferred. "
        "'whaleflux gpus' shows which types there are.",
        "accelerators: [H200:4, H100:8]",
        "none",
    ),
    "resources.cpus": FieldHelp("number", "CPU cores on each node, at least.", "cpus: 8", "any"),
    "resources.memory": FieldHelp(
        "GiB", "Main memory of each node, at least.", "memory: 64", "any"
    ),
    "num_nodes": FieldHelp(
        "1 … 512",
        "Nodes that run the command together: all start, or none. Each gets its rank.",
        "num_nodes: 4",
        "1",
    ),
    "setup": FieldHelp(
        "shell", "Runs before 'run', on each node, at each attempt.", default="none"
    ),
    "run": FieldHelp(
        "shell",
        "The command to start on each node. Exit 0 is done, 85 is stopped after saving, 93 is do "
        "not retry, anything else failed.",
        "run: torchrun --nproc-per-node 8 train.py",
    ),
    "role": FieldHelp(
        "reward_training | rollout | scoring | policy_update | feedback | evaluation | data_prep "
        "| training | inference | preprocess | postprocess",
        "What sort of work it is; the scheduler puts it on GPUs that suit it.",
        "role: rollout",
        "none",
    ),
    "max_runtime_s": FieldHelp(
        "seconds", "An attempt that runs longer is ended.", "max_runtime_s: 3600", "no limit"
    ),
    "phases": FieldHelp("list", "The steps of a pipeline; each takes what a job takes, and more."),
    "phases.name": FieldHelp("word", "What the phase is called.", "name: policy_update"),
    "phases.needs": FieldHelp(
        "list of phases",
        "Phases whose outputs this one reads, as $WHALEFLUX_INPUT_<PHASE>; it starts after them.",
        "needs: [rollout]",
        "none",
    ),
    "phases.previous": FieldHelp(
        "list of phases",
        "Phases of the same loop whose outputs of the iteration before this one reads.",
        "previous: [policy_update]",
        "none",
    ),
    "loops": FieldHelp("list", "Phases that repeat."),
    "loops.name": FieldHelp("word", "What the loop is called.", default="loop"),
    "loops.phases": FieldHelp(
        "list of phases", "Which phases repeat.", "phases: [rollout, update]"
    ),
    "loops.max": FieldHelp("1 … 100000", "Iterations at most.", "max: 20"),
    "loops.until": FieldHelp(
        "phase.metric >= number",
        "Stop once this is true of an iteration's reported metrics.",
        "until: evaluation.reward >= 0.9",
        "until 'max'",
    ),
}

_IN_PHASES = (
    "resources",
    "num_nodes",
    "envs",
    "setup",
    "run",
    "role",
    "fencing",
    "retry",
    "checkpoint",
    "max_runtime_s",
)


def find(path: str) -> FieldHelp | None:
    """Return the help of the field at *path* (`resources.accelerators`), or None."""
    parts = [p for p in path.strip("./").replace("/", ".").split(".") if not p.isdigit()]
    named = ".".join(parts)
    found = FIELDS.get(named)
    if found is None and parts[:1] == ["phases"] and parts[1:2] and parts[1] in _IN_PHASES:
        found = FIELDS.get(".".join(parts[1:]))
    return found


def children(path: str) -> list[str]:
    """Return the fields directly below *path*; those at the top for an empty one."""
    prefix = f"{path}." if path else ""
    depth = prefix.count(".")
    found = [f for f in FIELDS if f.startswith(prefix) and f.count(".") == depth]
    if path == "phases":
        found += list(_IN_PHASES)
    return found


def meant(path: str) -> str | None:
    """Return the field that *path* was probably meant to name, or None."""
    last = path.rpartition(".")[2]
    by_last = {f.rpartition(".")[2]: f for f in reversed(list(FIELDS))}
    found = nearest(path, FIELDS) or nearest(last, by_last)
    return None if found is None else by_last.get(found, found)
