"""The workload files are valid, and the witness speaks the language of its readers."""

from pathlib import Path

import pytest

from rft.local import Bench
from whaleflux.client.workload_file import from_yaml
from whaleflux.common.contracts.workload import Kind
from whaleflux.local.witness import read_witness

EXAMPLES = Path(__file__).resolve().parents[2]
FILES = sorted([*EXAMPLES.glob("jobs/*.yaml"), *EXAMPLES.glob("rft/*.yaml")])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_workload_file_can_be_submitted(file: Path) -> None:
    spec = from_yaml(file, environ={})
    assert spec.name
    assert "workdir" not in spec.model_fields_set or (file.parent / str(spec.workdir)).is_dir()


def test_there_is_one_file_for_each_kind_of_thing_to_try() -> None:
    assert {file.stem for file in FILES} >= {"hello", "gang", "checkpointing", "pipeline"}


def test_the_pipelines_programs_and_inputs_exist() -> None:
    spec = from_yaml(EXAMPLES / "rft" / "pipeline.yaml")
    assert spec.kind is Kind.PIPELINE
    for phase in spec.phases:
        program = EXAMPLES / "rft" / phase.run.split()[-1]
        text = program.read_text(encoding="utf-8")
        for need in phase.needs:
            assert f'needed("{need}")' in text, f"{phase.name} does not read {need}"
        for name in phase.previous:
            assert f'previous("{name}")' in text, f"{phase.name} does not read previous {name}"


def test_the_demos_reader_understands_the_witness(bench: Bench, trained: Path) -> None:
    one = bench.start("evaluation", inputs=dict.fromkeys(("reward_training", "feedback"), trained))
    assert one.wait(60) == [93]
    again = bench.start("reward_training")
    assert again.wait(60) == [0]
    witness = read_witness(bench.store)
    assert (witness.starts, witness.overlaps, witness.lost_steps) == (2, [], 0)
    steps = {s.run_id: (s.first_step, s.last_step) for s in witness.sightings}
    assert steps[one.run_id] == (None, None)
    assert steps[again.run_id] == (1, 16)
