"""What can be wrong before a demo has begun, and how a pipeline is made to fit one machine."""

from pathlib import Path

import pytest

from whaleflux.client import from_yaml
from whaleflux.local.demo import DemoOptions, find_pipeline, fitted, run_demo


def test_the_demo_of_a_checkout_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_pipeline().parts[-3:] == ("examples", "rft", "pipeline.yaml")


def test_a_pipeline_is_cut_to_the_machine() -> None:
    spec = fitted(from_yaml(find_pipeline()), gpu_type="H200", gpus=1)
    assert {a.type for p in spec.phases for a in p.resources.accelerators} == {"H200"}
    assert {p.resources.gpus_per_node for p in spec.phases} == {1}
    assert {p.num_nodes for p in spec.phases} == {1}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (DemoOptions(kill="gateway"), "the demo can kill agent"),
        (DemoOptions(kill="agent", fleet="1xH100x8"), "needs a second node"),
        (DemoOptions(fleet="8xH100"), "does not read as"),
    ],
)
def test_bad_options_are_answered_in_a_sentence(
    options: DemoOptions, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_demo(options) == 1
    assert says in capsys.readouterr().err
