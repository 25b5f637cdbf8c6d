"""Where an agent keeps what it must find again: one folder per node, one in it per member."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whaleflux.agent.shell.shim_parts.kernel import write_atomically
from whaleflux.common.contracts.assignment import STORE_LOCAL, AssignedMember
from whaleflux.common.errors import Refused

ENDED_KEPT = 64
"""Folders of reported members kept for their logs; older ones are deleted."""


@dataclass(frozen=True, slots=True)
class MemberKey:
    """Names one member of one attempt."""

    run_id: str
    attempt: int
    rank: int

    def __str__(self) -> str:
        """Return the name its folder has."""
        return f"{self.run_id}.{self.attempt}.{self.rank}"


def key_of(member: AssignedMember) -> MemberKey:
    """Return the key of an assigned member."""
    return MemberKey(member.run_id, member.attempt, member.rank)


class MemberFolder:
    """The files of one member; their presence is its state."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.member = path / "member.json"
        self.spec = path / "spec"
        self.env = path / "env"
        self.claim = path / "shim.json"
        self.started = path / "started.json"
        self.exit = path / "exit.json"
        self.told_start = path / "told-start"
        self.told_exit = path / "told-exit"
        self.registered = path / "registered.json"
        self.log = path / "log"
        self.report = path / "report.jsonl"
        self.script = path / "run.sh"
        self.setup = path / "setup.sh"
        self.work = path / "work"
        self.home = path / "home"
        self.tmp = path / "tmp"

    def create(self, member: AssignedMember) -> None:
        """Make the folder; the member counts as known from here on."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(str(self.member), member.model_dump_json(), durable=False)

    def assigned(self) -> AssignedMember | None:
        """Return the member that the folder was made for, or None where it was cut short."""
        try:
            return AssignedMember.model_validate_json(self.member.read_bytes(), extra="ignore")
        except (OSError, ValueError):
            return None

    def tidy(self) -> None:
        """Delete what only a running member needs; the log and the state stay."""
        for folder in (self.work, self.home, self.tmp):
            shutil.rmtree(folder, ignore_errors=True)


class NodeFolder:
    """The node's own root; nothing in it is shared with another node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = root / "agent.lock"
        self.fence = root / "fence.json"
        self.assignment = root / "assignment.json"
        self.outbox = root / "outbox"
        self.workdirs = root / "workdirs"
        self.local_store = root / STORE_LOCAL
        self._members = root / "members"

    def create(self) -> None:
        """Make the folders that must be there."""
        for folder in (self.outbox, self.workdirs, self.local_store, self._members):
            folder.mkdir(parents=True, exist_ok=True)

    def member(self, key: MemberKey) -> MemberFolder:
        """Return the folder of *key*, which may not exist.

        Raises:
            Refused: The run's id is not fit for a file name.

        """
        name = str(key)
        if "/" in name or name.startswith(".") or len(name) > 200:
            raise Refused(f"run_id {key.run_id!r} cannot be a folder's name", code="bad_run_id")
        return MemberFolder(self._members / name)

    def members(self) -> Iterator[MemberFolder]:
        """Return the folders of all members that this node has known and not yet forgotten."""
        for path in sorted(self._members.iterdir()):
            if path.is_dir():
                yield MemberFolder(path)

    def forget_ended(self, keep: set[str]) -> None:
        """Delete the oldest folders of reported members, those named in *keep* excepted."""
        ended = [
            (folder.told_exit.stat().st_mtime, folder.path)
            for folder in self.members()
            if folder.told_exit.exists() and folder.path.name not in keep
        ]
        for _, path in sorted(ended)[:-ENDED_KEPT]:
            shutil.rmtree(path, ignore_errors=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in *path*, or None where it is missing or torn."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
