"""Runs a pipeline's programs one after another on this machine, without WhaleFlux.

    python -m rft.local [--folder DIR] [pipeline.yaml]

Every program gets the environment that WhaleFlux would give it, and folders as in a store. Nothing
is scheduled, fenced or tried again here: this is for trying out programs, and for their tests.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rft.files import Torn
from rft.shards import read_shard

PIPELINE = Path(__file__).resolve().parent.parent / "pipeline.yaml"
PREFIX = "local"


@dataclass(frozen=True)
class Phase:
    """What of a phase matters here."""

    name: str
    run: str
    needs: Sequence[str] = ()
    previous: Sequence[str] = ()
    num_nodes: int = 1


@dataclass
class Try:
    """One attempt of one phase, and its running processes by rank."""

    run_id: str
    number: int
    folder: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def output(self) -> Path:
        """What the phase hands on."""
        return self.folder / "output"

    @property
    def checkpoints(self) -> Path:
        """Where it saves."""
        return self.folder / "checkpoints"

    def said(self, rank: int = 0) -> list[dict[str, Any]]:
        """Return the lines that *rank* has reported; a line still being written is left out."""
        path = self.folder / f"report-rank{rank}.jsonl"
        whole = path.read_text(encoding="utf-8").rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]

    def metrics(self, rank: int = 0) -> dict[str, float]:
        """Return the newest value of every metric."""
        return {k: v for line in self.said(rank) for k, v in line.get("metrics", {}).items()}

    def newest_checkpoint(self) -> Path | None:
        """Return the newest announced checkpoint of which every rank's part can be read."""
        for line in reversed(self.said()):
            folder = self.checkpoints / str(line.get("checkpoint", ""))
            if "checkpoint" in line and _is_whole(folder, len(self.processes)):
                return folder
        return None

    def wait(self, timeout_s: float) -> list[int]:
        """Return the exit code of each rank."""
        return [process.wait(timeout_s) for process in self.processes]

    def kill(self) -> None:
        """End every rank at once, as a node's loss would."""
        for process in self.processes:
            process.kill()
        self.wait(10)


@dataclass(frozen=True)
class Bench:
    """A folder like a store, and a pipeline whose phases can be started in it."""

    store: Path
    pipeline: Path = PIPELINE
    envs: Mapping[str, str] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, Any]:
        """The workload file as it is written."""
        found: dict[str, Any] = yaml.safe_load(self.pipeline.read_text(encoding="utf-8"))
        return found

    @property
    def phases(self) -> dict[str, Phase]:
        """The phases by name, in the order of the file."""
        keys = Phase.__dataclass_fields__
        found = [
            Phase(**{k: v for k, v in p.items() if k in keys}) for p in self.document["phases"]
        ]
        return {phase.name: phase for phase in found}

    def start(
        self,
        phase: str,
        *,
        iteration: int = 1,
        number: int = 1,
        inputs: Mapping[str, Path] | None = None,
        resume_from: Path | None = None,
    ) -> Try:
        """Start every rank of a phase and return at once."""
        run_id = f"{PREFIX}-{phase}-{iteration}"
        one = Try(run_id, number, self.store / "runs" / run_id / f"a{number}")
        for folder in (one.output, one.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        told = self.phases[phase]
        for rank in range(told.num_nodes):
            environment = {
                **os.environ,
                **{k: str(v) for k, v in self.document.get("envs", {}).items()},
                **self.envs,
                "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
                "WHALEFLUX_JOB": PREFIX,
                "WHALEFLUX_RUN": run_id,
                "WHALEFLUX_PHASE": phase,
                "WHALEFLUX_ITERATION": str(iteration),
                "WHALEFLUX_ATTEMPT": str(number),
                "WHALEFLUX_CHECKPOINT_DIR": str(one.checkpoints),
                "WHALEFLUX_OUTPUT_DIR": str(one.output),
                "WHALEFLUX_REPORT": str(one.folder / f"report-rank{rank}.jsonl"),
                "WHALEFLUX_RESUME_FROM": str(resume_from or ""),
                **{f"WHALEFLUX_INPUT_{k.upper()}": str(v) for k, v in (inputs or {}).items()},
                "RANK": str(rank),
                "WORLD_SIZE": str(told.num_nodes),
            }
            one.processes.append(
                subprocess.Popen(
                    # `exec` hands the shell's process to the program, so that signals reach it.
                    ["bash", "-c", f"exec {told.run}"],
                    cwd=self.pipeline.parent,
                    env=environment,
                    text=True,
                )
            )
        return one

    def run_all(self) -> Iterator[tuple[str, int, float, Try]]:
        """Run the whole pipeline; give phase, iteration, seconds and attempt as each one ends.

        Raises:
            RuntimeError: A program failed.

        """
        outputs: dict[str, Path] = {}
        for phase, iteration in self.order():
            told = self.phases[phase]
            names = (*told.needs, *(told.previous if iteration > 1 else ()))
            began_s = time.monotonic()
            one = self.start(
                phase, iteration=iteration, inputs={name: outputs[name] for name in names}
            )
            codes = one.wait(600)
            if any(codes):
                raise RuntimeError(f"{one.run_id} ended with {codes}")
            outputs[phase] = one.output
            yield phase, iteration, time.monotonic() - began_s, one

    def order(self) -> Iterator[tuple[str, int]]:
        """Give each phase and iteration; the file's order must be one in which they can run."""
        loops = {loop["phases"][0]: loop for loop in self.document.get("loops", ())}
        looped = {name for loop in loops.values() for name in loop["phases"]}
        for name in self.phases:
            if name in loops:
                for iteration in range(1, loops[name]["max"] + 1):
                    yield from ((each, iteration) for each in loops[name]["phases"])
            elif name not in looped:
                yield name, 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a pipeline and print how long each phase took and what it measured."""
    parser = argparse.ArgumentParser(prog="python -m rft.local", description=__doc__)
    parser.add_argument("pipeline", nargs="?", type=Path, default=PIPELINE)
    parser.add_argument("--folder", type=Path, help="keep everything in here")
    told = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="rft-") as scratch:
        bench = Bench(told.folder or Path(scratch), told.pipeline.resolve())
        began_s = time.monotonic()
        for phase, iteration, seconds, one in bench.run_all():
            metrics = ", ".join(f"{name} {value:.3f}" for name, value in one.metrics().items())
            print(f"==> {phase} #{iteration}: {seconds:.1f} s; {metrics}", flush=True)
        print(f"==> everything: {time.monotonic() - began_s:.1f} s", flush=True)


def _is_whole(folder: Path, world_size: int) -> bool:
    try:
        for rank in range(world_size):
            read_shard(folder, rank=rank, world_size=world_size)
    except Torn:
        return False
    return True


if __name__ == "__main__":
    main()
