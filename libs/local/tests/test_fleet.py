"""The fleet's short description, and the sentences for those who mistype it."""

from pathlib import Path

import pytest

from whaleflux.common.errors import Refused
from whaleflux.local.fleet import DEFAULT_FLEET, count_real_gpus, parse_fleet


def test_the_default_fleet_has_two_nodes_of_each_type() -> None:
    assert [node.name for node in parse_fleet(DEFAULT_FLEET)] == [
        "h200-0",
        "h200-1",
        "h100-0",
        "h100-1",
        "a100-0",
        "a100-1",
        "rtx4090-0",
        "rtx4090-1",
    ]


def test_an_agent_is_told_what_to_simulate() -> None:
    (node,) = parse_fleet("1xRTX4090x4")
    assert node.devices == "simulated:RTX4090x4"
    assert node.simulated


def test_types_are_read_whatever_their_case() -> None:
    assert parse_fleet("1xh100x2")[0].devices == "simulated:H100x2"


def test_the_same_type_twice_goes_on_counting() -> None:
    assert [n.name for n in parse_fleet("1xH100x8, 1xH100x4")] == ["h100-0", "h100-1"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("H100x8", "'H100x8' does not read as"),
        ("2xH100", "for example 2xH100x8"),
        ("0xH100x8", "1 to 32 nodes"),
        ("1xH100x0", "1 to 64 GPUs"),
        ("1xH10x8", "Did you mean H100?"),
        ("20xH100x8,20xA100x8", "40 nodes"),
    ],
)
def test_a_bad_fleet_is_refused_with_its_reason(text: str, says: str) -> None:
    with pytest.raises(Refused, match=says.replace("?", r"\?")):
        parse_fleet(text)


def test_only_gpu_device_files_are_counted(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert count_real_gpus(tmp_path) == 2
