"""The command line's context `local`: where the embedded stack listens and which key opens it."""

import json
import os
from pathlib import Path
from typing import Any

from whaleflux.local.paths import write_private

CONTEXT = "local"


def contexts_file() -> Path:
    """Return the file in which the command line keeps its contexts."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "whaleflux" / "contexts.json"


def write_context(url: str, api_key_file: Path) -> None:
    """Point the context `local` at a stack; make it current unless another one already is."""
    path = contexts_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    body = _read(path)
    contexts = body.get("contexts")
    if not isinstance(contexts, dict):
        contexts = {}
    contexts[CONTEXT] = {"url": url, "api_key_file": str(api_key_file)}
    write_private(
        path,
        json.dumps({**body, "current": body.get("current") or CONTEXT, "contexts": contexts}),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}
