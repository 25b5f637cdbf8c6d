"""WhaleFlux's contract with a program, as a program keeps it. Copy this file into your own project.

    def program(attempt: Attempt) -> None:
        done, state = attempt.resume() or (0, new_state())
        for step in range(done, total):
            …work…
            attempt.step_done(step + 1, of=total, state=lambda: state, save=step % 10 == 9)

    if __name__ == "__main__":
        run(program)

What WhaleFlux says by the environment stands in `Attempt`; what it says by signals is heard in
`step_done`: SIGUSR1 saves now, SIGTERM saves and leaves with exit code 85. Exit code 0 is done, 93
says that another try would fail too, anything else is a failure that may be tried again.
"""

import json
import os
import signal
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rft.files import Arrays, Torn
from rft.shards import Shards, read_shard
from rft.witness import Witness

STOPPED_AFTER_SAVING = 85
DO_NOT_RETRY = 93
GANG_WAIT_S = 2.0
"""Rank 0 waits so long for the others' last shards when it is told to stop; its grace is longer."""


class Stopped(Exception):
    """The program was told to stop and has saved."""


class Hopeless(Exception):
    """Another attempt would fail in the same way; the message says why."""


@dataclass
class Attempt:
    """One try of one run, on one rank of its gang."""

    phase: str
    iteration: int
    """1 for the first time round a loop; always 1 outside."""
    number: int
    rank: int
    world_size: int
    checkpoints: Path
    """Where this attempt saves; all ranks see the same folder."""
    output: Path
    """What is in here when the program is done goes to the phases that need it."""
    report: Path
    resume_from: Path | None
    """A whole checkpoint of an earlier attempt, to be read only."""
    _shards: Shards = field(init=False)
    _witness: Witness = field(init=False)
    _save_now: bool = field(init=False, default=False)
    _stop_now: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Open what this rank writes to."""
        self._shards = Shards(self.checkpoints, rank=self.rank, world_size=self.world_size)
        self._witness = Witness(self.output, attempt=self.number, rank=self.rank)

    @classmethod
    def from_environment(cls) -> "Attempt":
        """Return what WhaleFlux started this process for.

        Raises:
            Hopeless: It was not started by WhaleFlux, or `rft.local`.

        """
        environment = os.environ
        resume_from = environment.get("WHALEFLUX_RESUME_FROM", "")
        try:
            return cls(
                phase=environment["WHALEFLUX_PHASE"],
                iteration=int(environment["WHALEFLUX_ITERATION"]),
                number=int(environment["WHALEFLUX_ATTEMPT"]),
                rank=int(environment.get("RANK", "0")),
                world_size=int(environment.get("WORLD_SIZE", "1")),
                checkpoints=Path(environment["WHALEFLUX_CHECKPOINT_DIR"]),
                output=Path(environment["WHALEFLUX_OUTPUT_DIR"]),
                report=Path(environment["WHALEFLUX_REPORT"]),
                resume_from=Path(resume_from) if resume_from else None,
            )
        except KeyError as error:
            raise Hopeless(
                f"{error.args[0]} is not set: submit pipeline.yaml to WhaleFlux, or run "
                "'python -m rft.local' to try the programs without it"
            ) from error

    def needed(self, phase: str) -> Path:
        """Return the output folder of a phase that this one `needs`.

        Raises:
            Hopeless: The workload file does not say so.

        """
        folder = self.previous(phase)
        if folder is None:
            raise Hopeless(
                f"WHALEFLUX_INPUT_{phase.upper()} is not set: write 'needs: [{phase}]' at phase "
                f"{self.phase} of the workload file"
            )
        return folder

    def previous(self, phase: str) -> Path | None:
        """Return the output folder of an input that may be absent, as in a loop's first round."""
        text = os.environ.get(f"WHALEFLUX_INPUT_{phase.upper()}", "")
        return Path(text) if text else None

    def rng(self, seed: int) -> np.random.Generator:
        """Return this rank's random generator: the same in every attempt, so that tries agree."""
        phase = zlib.crc32(self.phase.encode())
        return np.random.default_rng([seed, phase, self.iteration, self.rank])

    def resume(self) -> tuple[int, Arrays] | None:
        """Return the step and state to go on from, or None to begin at the beginning."""
        if self.resume_from is None:
            return None
        try:
            found = read_shard(self.resume_from, rank=self.rank, world_size=self.world_size)
        except Torn as torn:
            self.say(f"beginning from step 0: {torn}")
            return None
        self.say(f"going on after step {found[0]}, from {self.resume_from}")
        return found

    def step_done(
        self,
        step: int,
        *,
        of: int,
        state: Callable[[], Arrays],
        save: bool,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Say that *step* (1 is the first) of *of* is done; save if *save*, or if told to.

        Raises:
            Stopped: WhaleFlux wants the GPUs back, and *state* is saved.

        """
        self._witness.write("step", step=step)
        stopping = self._stop_now
        if save or stopping or self._save_now or step == of:
            self._save_now = False
            self._shards.write(step, state(), last=stopping or step == of)
        self._announce(wait_s=GANG_WAIT_S if stopping else 0.0)
        # After the checkpoint, whose step may be an older one: the last line read is what counts.
        self._tell({"step": step, "progress": step / of, "metrics": dict(metrics or {})})
        if stopping:
            raise Stopped(f"stopped after step {step}")

    def say(self, text: str) -> None:
        """Write a line into the log."""
        print(f"{self.phase} #{self.iteration} rank {self.rank}: {text}", flush=True)

    def begin(self) -> None:
        """Listen to signals, and write down that this attempt lives."""
        signal.signal(signal.SIGUSR1, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)
        self._witness.write("start")

    def end(self) -> None:
        """Write down that this attempt does nothing any more."""
        self._witness.write("end")

    def _on_signal(self, number: int, _frame: object) -> None:
        # Only flags: the state may be half changed at this moment, `step_done` knows when not.
        if number == signal.SIGTERM:
            self._stop_now = True
        else:
            self._save_now = True

    def _announce(self, *, wait_s: float) -> None:
        """Tell WhaleFlux of a new checkpoint, once every rank's part of it is on disk."""
        if self.rank != 0:
            return
        whole = self._shards.assemble(wait_s=wait_s)
        if whole is not None:
            self._tell({"checkpoint": whole.name, "step": whole.step})

    def _tell(self, said: Mapping[str, object]) -> None:
        with self.report.open("ab", buffering=0) as file:
            file.write(json.dumps(said).encode() + b"\n")


def run(program: Callable[[Attempt], None]) -> None:
    """Run *program* and leave with the exit code that says how it went."""
    try:
        attempt = Attempt.from_environment()
        attempt.begin()
        try:
            program(attempt)
        finally:
            attempt.end()
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(STOPPED_AFTER_SAVING)
    except Hopeless as hopeless:
        print(hopeless, file=sys.stderr)
        sys.exit(DO_NOT_RETRY)
