"""Snapshots on disk: what is kept, and what is rather forgotten than believed."""

from pathlib import Path

from whaleflux.common import ids, snapshots
from whaleflux.common.snapshots import FileSnapshots, schema_of


def test_a_snapshot_comes_back_with_its_sequence(tmp_path: Path) -> None:
    kept = FileSnapshots[dict[str, int]](tmp_path / "s", schema="a")
    kept.save(7, {"x": 1})
    assert kept.load() == (7, {"x": 1})


def test_a_missing_snapshot_is_none(tmp_path: Path) -> None:
    assert FileSnapshots[int](tmp_path / "s", schema="a").load() is None


def test_a_snapshot_of_other_code_is_ignored(tmp_path: Path) -> None:
    FileSnapshots[int](tmp_path / "s", schema="a").save(1, 1)
    assert FileSnapshots[int](tmp_path / "s", schema="b").load() is None


def test_a_torn_snapshot_is_ignored(tmp_path: Path) -> None:
    kept = FileSnapshots[list[int]](tmp_path / "s", schema="a")
    kept.save(1, list(range(1000)))
    (tmp_path / "s").write_bytes((tmp_path / "s").read_bytes()[:50])
    assert kept.load() is None


def test_only_the_owner_may_read_a_snapshot(tmp_path: Path) -> None:
    FileSnapshots[int](tmp_path / "s", schema="a").save(1, 1)
    assert (tmp_path / "s").stat().st_mode & 0o077 == 0


def test_the_schema_depends_on_the_code() -> None:
    assert schema_of([snapshots]) != schema_of([snapshots, ids])
    assert schema_of([snapshots]) == schema_of([snapshots])
