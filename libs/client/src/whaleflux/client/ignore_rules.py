"""Which files of a working folder stay at home: the basic patterns of `.gitignore`.

Understood: comments, `!`, a trailing `/` for folders, a leading or inner `/` that anchors, `*`,
`?`, `[abc]`, `**`. As in git, the last rule that matches wins and nothing below an ignored folder
can be brought back.
"""

import re
from dataclasses import dataclass

OWN_FILE = ".wfignore"
GIT_FILE = ".gitignore"
ALWAYS_IGNORED = frozenset({".git", ".hg", ".svn", "__pycache__", ".DS_Store"})


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of an ignore file that stands in the folder *base* ('' for the top)."""

    base: str
    pattern: re.Pattern[str]
    keeps: bool
    folders_only: bool


def read_rules(text: str, *, base: str = "") -> tuple[Rule, ...]:
    """Return the rules of an ignore file's *text*; lines that are no pattern match nothing."""
    found: list[Rule] = []
    for raw in text.splitlines():
        line = raw.rstrip()
        if not line or line.startswith("#"):
            continue
        keeps = line.startswith("!")
        line = line[1:] if keeps else line.removeprefix("\\")
        folders_only = line.endswith("/")
        line = line.rstrip("/")
        if line:
            found.append(Rule(base, re.compile(_expression(line)), keeps, folders_only))
    return tuple(found)


def is_ignored(rules: tuple[Rule, ...], path: str, *, folder: bool) -> bool:
    """Whether the file or folder at *path* (relative to the top, with `/`) stays at home."""
    if path.rpartition("/")[2] in ALWAYS_IGNORED:
        return True
    ignored = False
    for rule in rules:
        if rule.folders_only and not folder:
            continue
        inside = path.removeprefix(f"{rule.base}/") if rule.base else path
        if rule.base and inside == path:
            continue
        if rule.pattern.fullmatch(inside):
            ignored = not rule.keeps
    return ignored


def _expression(pattern: str) -> str:
    anchored = "/" in pattern
    body = pattern.lstrip("/")
    pieces: list[str] = [] if anchored else ["(?:.*/)?"]
    i = 0
    while i < len(body):
        piece, i = _piece(body, i)
        pieces.append(piece)
    return "".join(pieces)


def _piece(body: str, i: int) -> tuple[str, int]:
    if body.startswith("**/", i) and (i == 0 or body[i - 1] == "/"):
        return "(?:.*/)?", i + 3
    if body.startswith("**", i):
        return ".*", i + 2
    match body[i]:
        case "*":
            return "[^/]*", i + 1
        case "?":
            return "[^/]", i + 1
        case "[":
            end = body.find("]", i + 2)
            if end > 0:
                inner = body[i + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
                if inner.startswith(("!", "^")):
                    inner = "^" + inner[1:]
                if _is_class(inner):
                    return f"[{inner}]", end + 1
            return re.escape("["), i + 1
        case "\\" if i + 1 < len(body):
            return re.escape(body[i + 1]), i + 2
        case other:
            return re.escape(other), i + 1


def _is_class(inner: str) -> bool:
    try:
        re.compile(f"[{inner}]")
    except re.error:
        return False
    return True
