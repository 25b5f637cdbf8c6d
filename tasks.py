"""What `./wf test`, `./wf check` and `./wf bench` do."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
NO_TESTS = 5
"""pytest's exit code when a tier holds none."""
CHECKS: dict[str, list[str]] = {
    "format": ["ruff", "format", "--check"],
    "lint": ["ruff", "check"],
    "imports": ["lint-imports"],
    "types": ["mypy"],
    "strict types of the cores": ["basedpyright", "--level", "error"],
}


def check() -> int:
    """Run every check and name those that failed."""
    failed = [name for name, command in CHECKS.items() if not _passes(name, command)]
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _passes(name: str, command: Sequence[str]) -> bool:
    began = time.monotonic()
    path, *arguments = command
    result = subprocess.run(
        [str(BIN / path), *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    # A checker whose patterns match nothing is content with everything.
    passed = result.returncode == 0 and "No source files found" not in result.stdout
    print(f"{'ok' if passed else 'FAILED':7} {name} ({time.monotonic() - began:.0f} s)", flush=True)
    if not passed:
        print(result.stdout + result.stderr)
    return passed


def test(arguments: Sequence[str]) -> int:
    """Run the fast tier, or with `--all` everything; other arguments go to pytest."""
    everything = "--all" in arguments
    rest = [argument for argument in arguments if argument != "--all"]
    tier = "" if everything else "not slow and "
    if rest:
        return _pytest([*([] if everything else ["-m", "not slow"]), *rest])
    # Tests that measure or kill whole stacks get the machine for themselves, before the others.
    codes = [_pytest(["-m", f"{tier}alone"]), _pytest(["-m", f"{tier}not alone", "-n", "2"])]
    return max(codes)


def _pytest(arguments: Sequence[str]) -> int:
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    return 0 if code == NO_TESTS else code


def bench(arguments: Sequence[str]) -> int:
    """Run one benchmark and print its table, or its JSON object as the last line."""
    names = _benches()
    wanted = [a for a in arguments if not a.startswith("-")]
    if "--list" in arguments or not wanted:
        print(
            "\n".join(
                f"{name:18} {(module.__doc__ or '').splitlines()[0]}"
                for name, module in names.items()
            )
        )
        return 0
    if wanted[0] not in names:
        print(
            f"There is no benchmark {wanted[0]!r}; there are: {', '.join(names)}.", file=sys.stderr
        )
        return 2
    module = names[wanted[0]]
    results: dict[str, float] = module.run("--quick" in arguments)
    peers: dict[str, float] = module.PEERS
    if "--json" in arguments:
        print(
            json.dumps(
                {"bench": module.NAME, "results": results, "peers": peers, "notes": module.NOTES}
            )
        )
        return 0
    print(f"{'':34}{'ours':>12}{'peer':>12}{'ratio':>9}")
    for key, value in results.items():
        peer = peers.get(key)
        beside = f"{peer:>12.4g}{value / peer:>9.2f}" if peer else f"{'-':>12}{'-':>9}"
        print(f"{key:34}{value:>12.4g}{beside}")
    for note in module.NOTES:
        print(f"- {note}")
    return 0


def _benches() -> dict[str, ModuleType]:
    found: dict[str, ModuleType] = {}
    for path in sorted((ROOT / "bench").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"bench_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        found[module.NAME] = module
    return found


def main() -> int:
    """Run the verb in `sys.argv`."""
    verb, *arguments = sys.argv[1:]
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    match verb:
        case "check":
            return check()
        case "test":
            return test(arguments)
        case _:
            return bench(arguments)


if __name__ == "__main__":
    sys.exit(main())
