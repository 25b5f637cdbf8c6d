"""Lays out everything a member needs before its shim is started."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from whaleflux.agent.shell import checkpoints, workdirs
from whaleflux.agent.shell.environment import Node, member_environment
from whaleflux.agent.shell.folders import MemberFolder
from whaleflux.agent.shell.logs import LOG_BYTES_MAX
from whaleflux.agent.shell.shim_parts.kernel import write_atomically
from whaleflux.common.contracts.assignment import (
    AssignedMember,
    CheckpointRef,
    checkpoint_folder,
    output_folder,
)
from whaleflux.common.contracts.workload import FENCING_S, SELF_FENCE_MARGIN_S
from whaleflux.common.errors import Refused

# Bash waits for the program in front of it before it runs a trap, and leaves with its exit code:
# without the trap it would die of SIGTERM at once and hide how the program's saving went.
HEAD = "trap 'exit $?' TERM\n"
SETUP = """bash {script} || {{ code=$?; echo "[whaleflux: setup ended with $code]"; exit $code; }}
"""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a member may live without news from failover, in seconds."""

    fencing_s: float
    margin_s: float


def timing_of(member: AssignedMember) -> Timing:
    """Return the fence times that *member*'s workload asked for."""
    return Timing(FENCING_S[member.fencing], SELF_FENCE_MARGIN_S)


def prepare(
    member: AssignedMember, folder: MemberFolder, *, node: Node, timing: Timing, renewed_s: float
) -> CheckpointRef | None:
    """Make the files of *member*, `spec` last, and return the checkpoint it resumes from.

    Raises:
        Refused: Something it needs is not there or not allowed.

    """
    store = node.store(member.store)
    user = node.user_of(member.project)
    shared = [
        store / checkpoint_folder(member.run_id, member.attempt),
        store / output_folder(member.run_id, member.attempt),
    ]
    try:
        for path in (*shared, folder.home, folder.tmp):
            path.mkdir(parents=True, exist_ok=True)
        folder.report.touch()
        resume_from = _choose(member, store, folder)
        workdirs.provide(
            member.workdir, store=store, cache=node.folder.workdirs, target=folder.work
        )
        _write_scripts(member, folder)
        environment = member_environment(member, node=node, folder=folder, resume_from=resume_from)
        if user:
            _hand_to(user, folder, shared)
        _write_pairs(folder.env, environment)
        _write_pairs(folder.spec, _spec(member, folder, node, timing, renewed_s, user))
    except OSError as error:
        raise Refused(f"the node cannot prepare it: {error}") from error
    return resume_from


def _spec(
    member: AssignedMember,
    folder: MemberFolder,
    node: Node,
    timing: Timing,
    renewed_s: float,
    user: str,
) -> dict[str, str]:
    runtime = "" if member.max_runtime_s is None else str(member.max_runtime_s)
    return {
        "grace_s": str(member.grace_s),
        "fencing_s": str(timing.fencing_s),
        "margin_s": str(timing.margin_s),
        "renewed_boottime_s": str(renewed_s),
        "max_runtime_s": runtime,
        "fence": str(node.folder.fence),
        "log": str(folder.log),
        "log_bytes_max": str(LOG_BYTES_MAX),
        "cwd": str(folder.work),
        "script": str(folder.script),
        "user": user,
        "nice": str(node.member_nice),
    }


def _choose(member: AssignedMember, store: Path, folder: MemberFolder) -> CheckpointRef | None:
    """Return the newest checkpoint that verifies, and tell the log of those that do not."""
    notes: list[str] = []
    chosen: CheckpointRef | None = None
    for reference in member.resume_from:
        try:
            checkpoints.verify(store / reference.path, reference.manifest_sha256)
        except checkpoints.Torn as torn:
            notes.append(f"checkpoint of step {reference.step} is skipped: {torn}")
            continue
        chosen = reference
        break
    if notes:
        end = "from the beginning" if chosen is None else f"at step {chosen.step}"
        notes.append(f"starting {end}")
        with open(folder.log, "a", encoding="utf-8") as log:
            log.writelines(f"[whaleflux: {note}]\n" for note in notes)
    return chosen


def _write_scripts(member: AssignedMember, folder: MemberFolder) -> None:
    text = HEAD
    if member.setup.strip():
        write_atomically(str(folder.setup), f"{member.setup}\n", durable=False)
        text += SETUP.format(script=folder.setup)
    write_atomically(str(folder.script), f"{text}{member.run}\n", durable=False)


def _write_pairs(path: Path, pairs: dict[str, str]) -> None:
    for key, value in pairs.items():
        if "\0" in key + value or "=" in key or not key:
            raise Refused(f"environment variable {key!r} cannot be passed to a program")
    text = "\0".join(f"{key}={value}" for key, value in pairs.items())
    write_atomically(str(path), text, durable=False)


def _hand_to(user: str, folder: MemberFolder, shared: list[Path]) -> None:
    """Give *user* what its program reads and writes; the folder itself only lets it through."""
    try:
        account = pwd.getpwnam(user)
    except KeyError as error:
        raise Refused(f"Unix user {user!r} does not exist on this node") from error
    folder.path.chmod(0o711)
    own = [folder.home, folder.tmp, folder.report, folder.script, *shared]
    for parent, folders, files in os.walk(folder.work):
        own += [Path(parent), *(Path(parent, name) for name in (*folders, *files))]
    if folder.setup.exists():
        own.append(folder.setup)
    for path in own:
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
