"""What `./wf test` and `./wf check` do."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
NO_TESTS = 5
"""pytest's exit code when a tier holds none."""
INTERRUPTED = 2
"""pytest's exit code after Ctrl-C."""
COUNTED = re.compile(r"(\d+) (failed|passed|skipped|xfailed|xpassed|warnings?|errors?)\b")
COUNTABLE = ("warning", "error")
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
    if rest:
        return _pytest([*([] if everything else ["-m", "not slow"]), *rest])
    began = time.monotonic()
    tier = "" if everything else "not slow and "
    counts: Counter[str] = Counter()
    # Tests that measure or kill whole stacks get the machine for themselves, before the others.
    worst = 0
    for run in (["-m", f"{tier}alone"], ["-m", f"{tier}not alone", "-n", "2"]):
        code = _pytest(run, counts)
        worst = max(worst, code)
        if code == INTERRUPTED:
            break
    # Two runs are one to whoever reads the last line.
    words = (
        f"{count} {word}{'s' * (word in COUNTABLE and count > 1)}" for word, count in counts.items()
    )
    print(f"{', '.join(words) or 'no tests ran'} in {time.monotonic() - began:.2f}s", flush=True)
    return worst


def _pytest(arguments: Sequence[str], counts: "Counter[str] | None" = None) -> int:
    """Run pytest, add what its last line says to *counts*, and return its exit code."""
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    if counts is None:
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        return 0 if code == NO_TESTS else code
    command += [f"--color={'yes' if sys.stdout.isatty() else 'no'}"]
    last = ""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        # Dots arrive one by one and are shown so; only whole lines are remembered.
        while piece := os.read(process.stdout.fileno(), 65_536):
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            last = (last + piece.decode(errors="replace"))[-4_096:]
    line = last.strip().rpartition("\n")[2]
    for count, word in COUNTED.findall(re.sub(r"\x1b\[[0-9;]*m", "", line)):
        counts[word.removesuffix("s")] += int(count)
    return 0 if process.returncode == NO_TESTS else process.returncode


def main() -> int:
    """Run the verb in `sys.argv`."""
    verb, *arguments = sys.argv[1:]
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if verb == "check":
        return check()
    # Ctrl-C reaches pytest too, which ends the servers it has started; we wait for that.
    signal.signal(signal.SIGINT, lambda *_: None)
    return test(arguments)


if __name__ == "__main__":
    sys.exit(main())
