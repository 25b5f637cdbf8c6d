"""Programs' own account of their attempts."""

import json
from pathlib import Path

from whaleflux.local.witness import read_witness


def write(
    store: Path, run: str, attempt: int, pid: int, *moments: tuple[float, int | None]
) -> None:
    path = store / "runs" / run / f"a{attempt}" / "output" / "witness.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for at_s, step in moments:
            line = {"pid": pid, "attempt": attempt, "rank": 0, "boottime_s": at_s, "step": step}
            file.write(json.dumps(line) + "\n")


def test_attempts_one_after_the_other_do_not_overlap(tmp_path: Path) -> None:
    write(tmp_path, "r", 1, 10, (1.0, None), (2.0, 1), (3.0, 2))
    write(tmp_path, "r", 2, 11, (4.0, None), (5.0, 2), (6.0, 3))
    witness = read_witness(tmp_path)
    assert witness.starts == 2
    assert witness.overlaps == []
    assert witness.lost_steps == 1


def test_an_attempt_that_starts_before_the_last_sign_of_the_other_overlaps(tmp_path: Path) -> None:
    write(tmp_path, "r", 1, 10, (1.0, None), (5.0, 4))
    write(tmp_path, "r", 2, 11, (4.0, None))
    assert read_witness(tmp_path).overlaps == ["r"]


def test_one_attempt_started_twice_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, "r", 1, 10, (1.0, None), (3.0, None))
    write(tmp_path, "r", 1, 11, (2.0, None), (4.0, None))
    assert read_witness(tmp_path).overlaps == ["r"]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "r", 1, 10, (1.0, None))
    path = next(tmp_path.rglob("witness.jsonl"))
    path.write_text(path.read_text() + '{"pid": 10, "boot')
    assert read_witness(tmp_path).starts == 1
