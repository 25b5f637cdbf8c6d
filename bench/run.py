"""Find and run benchmarks: `./wf bench NAME [--quick] [--json]`, `./wf bench --list`.

A benchmark is a module of this folder, named as it is but for hyphens, with `NAME`, `PEERS` (the
figures that others publish, by the same keys), `NOTES` and `run(quick) -> {key: number}`.
"""

import argparse
import ast
import importlib.util
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parent
USAGE = 2
"""Exit code for a name that is not there."""


def available() -> dict[str, str]:
    """Return each benchmark's name and what it measures, without importing any."""
    return {
        path.stem.replace("_", "-"): (ast.get_docstring(ast.parse(path.read_text())) or "")
        for path in sorted(FOLDER.glob("*.py"))
        if path != Path(__file__).resolve()
    }


def load(name: str) -> ModuleType:
    """Import one benchmark, and no other: a broken one does not stop its neighbours."""
    stem = name.replace("-", "_")
    spec = importlib.util.spec_from_file_location(f"bench_{stem}", FOLDER / f"{stem}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def as_json(module: ModuleType, results: Mapping[str, float]) -> str:
    """Return the one line that other programs read; what could not be measured is null."""
    known = {key: value if math.isfinite(value) else None for key, value in results.items()}
    document = {
        "bench": module.NAME,
        "results": known,
        "peers": dict(module.PEERS),
        "notes": list(module.NOTES),
    }
    return json.dumps(document, allow_nan=False)


def as_table(module: ModuleType, results: Mapping[str, float]) -> str:
    """Return ours, what peers publish and the ratio, for people."""
    width = max(34, *(len(key) + 2 for key in results))
    lines = [f"{module.NAME:{width}}{'ours':>12}{'peer':>12}{'ours/peer':>11}"]
    for key, value in results.items():
        peer = module.PEERS.get(key)
        beside = f"{peer:>12,.4g}{value / peer:>11,.2f}" if peer else f"{'-':>12}{'-':>11}"
        lines.append(f"{key:{width}}{value:>12,.4g}{beside}")
    return "\n".join([*lines, *(f"- {note}" for note in module.NOTES)])


def main(arguments: Sequence[str]) -> int:
    """Run what *arguments* name and return the exit code."""
    parser = argparse.ArgumentParser(prog="./wf bench", description="Measure one thing.")
    parser.add_argument("name", nargs="?", help="which; without it they are listed")
    parser.add_argument("--list", action="store_true", help="name what can be measured")
    parser.add_argument("--quick", action="store_true", help="smaller, same keys, under 30 s")
    parser.add_argument("--json", action="store_true", help="one object as the last line")
    asked = parser.parse_args(arguments)
    names = available()
    if asked.list or asked.name is None:
        print("\n".join(f"{name:18} {says.splitlines()[0]}" for name, says in names.items()))
        return 0
    if asked.name not in names:
        there = ", ".join(names)
        print(f"There is no benchmark {asked.name!r}; there are: {there}.", file=sys.stderr)
        return USAGE
    # Threads of a numerical library would be measured beside the thing itself.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    module = load(asked.name)
    results: dict[str, float] = module.run(asked.quick)
    print(as_json(module, results) if asked.json else as_table(module, results), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
