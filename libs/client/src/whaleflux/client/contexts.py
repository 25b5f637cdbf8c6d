"""Where the gateway is and which key opens it: flags, environment, or the contexts file.

The file `~/.config/whaleflux/contexts.json` (`XDG_CONFIG_HOME` is honoured) has mode 0600:

    {"current": "local", "contexts": {"local": {"url": "…", "api_key_file": "…"}}}

A context holds its key itself (`api_key`) or names a file that does (`api_key_file`).
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from whaleflux.common.errors import Refused

URL = "WHALEFLUX_URL"
API_KEY = "WHALEFLUX_API_KEY"
CONTEXT = "WHALEFLUX_CONTEXT"


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway's address, the key for it, and where both were found."""

    url: str
    api_key: str = field(repr=False)
    origin: str


@dataclass(frozen=True, slots=True)
class Context:
    """A named gateway."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    api_key_file: str | None = None

    def key(self) -> str:
        """Return the secret.

        Raises:
            Refused: The file that should hold it cannot be read.

        """
        if self.api_key_file is None:
            return self.api_key or ""
        try:
            return Path(self.api_key_file).expanduser().read_text(encoding="utf-8").strip()
        except OSError as error:
            raise Refused(
                f"The API key file {self.api_key_file!r} cannot be read: {error.strerror}.",
                code="no_api_key",
            ) from error


@dataclass(frozen=True, slots=True)
class Contexts:
    """All named gateways."""

    current: str | None = None
    entries: Mapping[str, Context] = field(default_factory=dict)

    def with_context(self, name: str, context: Context) -> "Contexts":
        """Return the contexts with *name* added or replaced; the first one becomes current."""
        return Contexts(self.current or name, {**self.entries, name: context})

    def without(self, name: str) -> "Contexts":
        """Return the contexts without *name*."""
        left = {n: c for n, c in self.entries.items() if n != name}
        return Contexts(None if self.current == name else self.current, left)

    def using(self, name: str) -> "Contexts":
        """Return the contexts with *name* as the current one."""
        return replace(self, current=name)


def contexts_file(environ: Mapping[str, str] | None = None) -> Path:
    """Return where the contexts are kept."""
    env = os.environ if environ is None else environ
    base = env.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "whaleflux" / "contexts.json"


def read_contexts(path: Path) -> Contexts:
    """Return the contexts in *path*; none when there is no such file.

    Raises:
        Refused: The file is there and not readable as contexts.

    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        raw = body.get("contexts") or {}
        entries = {
            name: Context(
                url=str(entry["url"]),
                api_key=entry.get("api_key"),
                api_key_file=entry.get("api_key_file"),
            )
            for name, entry in raw.items()
        }
        return Contexts(body.get("current"), entries)
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise Refused(
            f"The contexts file {path} cannot be read: {error}. Mend it or move it away.",
            code="bad_contexts",
        ) from error


def write_contexts(path: Path, contexts: Contexts) -> None:
    """Replace the contexts file, mode 0600, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    body = {
        "current": contexts.current,
        "contexts": {
            name: {
                key: value
                for key, value in (
                    ("url", context.url),
                    ("api_key", context.api_key),
                    ("api_key_file", context.api_key_file),
                )
                if value is not None
            }
            for name, context in contexts.entries.items()
        },
    }
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".contexts-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(body, file, indent=2)
            file.write("\n")
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise


def resolve(
    *,
    url: str | None = None,
    api_key: str | None = None,
    context: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Target:
    """Return the gateway to talk to: arguments, then the environment, then the current context.

    A key is only ever sent to the address that it was given with.

    Raises:
        Refused: No gateway is known, or the named context does not exist.

    """
    env = os.environ if environ is None else environ
    if url is not None:
        own = env.get(API_KEY, "") if env.get(URL) in (None, url) else ""
        return Target(_clean(url), api_key or own, "arguments")
    if context is None and env.get(URL):
        return Target(_clean(env[URL]), api_key or env.get(API_KEY, ""), f"environment ({URL})")
    path = contexts_file(env)
    known = read_contexts(path)
    name = context or env.get(CONTEXT) or known.current
    if name is None:
        raise Refused(
            f"No gateway is known. Start one with 'whaleflux up', set {URL} and {API_KEY}, or add "
            "one with 'whaleflux config set NAME --url URL'.",
            code="no_gateway",
        )
    found = known.entries.get(name)
    if found is None:
        there = ", ".join(sorted(known.entries)) or "none"
        raise Refused(f"There is no context {name!r}; known: {there}.", code="no_context")
    return Target(_clean(found.url), api_key or found.key(), f"context {name!r}")


def _clean(url: str) -> str:
    cleaned = url.strip().rstrip("/")
    if not cleaned.startswith(("http://", "https://")):
        raise Refused(f"{url!r} is not an address; write it as https://…", code="bad_url")
    return cleaned
