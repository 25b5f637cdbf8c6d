from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whaleflux.agent.shell.reports import METRICS_MAX, ReportTail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.jsonl"


def read(path: Path, text: bytes) -> ReportTail:
    path.write_bytes(text)
    tail = ReportTail(path)
    tail.finish()
    return tail


def test_the_newest_of_everything_is_kept(path: Path) -> None:
    tail = read(
        path,
        b'{"step": 1, "metrics": {"loss": 2}}\n{"progress": 0.5}\n'
        b'{"step": 2, "metrics": {"f1": 1}}',
    )
    assert (tail.reported.step, tail.reported.progress) == (2, 0.5)
    assert tail.reported.metrics == {"loss": 2.0, "f1": 1.0}
    assert tail.changes == 3


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[1]",
        b'"step"',
        b"{}",
        b'{"step": -1}',
        b'{"step": true}',
        b'{"step": 1.5}',
        b'{"progress": 2}',
        b'{"metrics": {"loss": NaN}}',
        b'{"metrics": {"loss": "low"}}',
        b'{"checkpoint": 7}',
        b"\xff\xfe",
        b"[" * 60_000,
        b'{"step": ' + b"9" * 70_000 + b"}",
        b'{"step": ' + b"9" * 4_000 + b"}",
    ],
)
def test_a_bad_line_is_counted_and_harms_nothing(path: Path, line: bytes) -> None:
    tail = read(path, b'{"step": 4}\n' + line + b'\n{"metrics": {"loss": 1}}\n')
    assert (tail.reported.step, tail.reported.metrics, tail.bad_lines) == (4, {"loss": 1.0}, 1)


def test_a_line_is_read_when_it_is_whole(path: Path) -> None:
    tail = ReportTail(path)
    assert tail.look() is False
    path.write_bytes(b'{"step": 1')
    tail.look()
    assert tail.changes == 0
    path.write_bytes(b'{"step": 12}\n')
    tail.look()
    assert tail.reported.step == 12


def test_a_checkpoint_without_a_step_has_that_of_the_last_report(path: Path) -> None:
    tail = read(path, b'{"step": 5}\n{"checkpoint": "a"}\n{"checkpoint": "b", "step": 6}\n')
    assert tail.announced == [("a", 5), ("b", 6)]


def test_the_number_of_metrics_is_bounded(path: Path) -> None:
    tail = read(path, b"".join(b'{"metrics": {"m%d": 1}}\n' % i for i in range(METRICS_MAX + 50)))
    assert len(tail.reported.metrics) == METRICS_MAX


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    read(tmp_path_factory.mktemp("r") / "report", raw)
