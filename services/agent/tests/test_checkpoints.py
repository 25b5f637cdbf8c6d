import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from whaleflux.agent.shell.checkpoints import (
    MANIFEST,
    HuggingFaceScan,
    Torn,
    locate,
    seal,
    verify,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "step-3"
    (folder / "shards").mkdir(parents=True)
    (folder / "shards" / "w0").write_bytes(b"0" * 5000)
    (folder / "w1").write_bytes(b"1")
    return folder


def test_what_was_sealed_verifies(folder: Path) -> None:
    sealed = seal(folder, step=3, attempt=2)
    assert sealed.bytes == 5001
    verify(folder, sealed.manifest_sha256)
    manifest = json.loads((folder / MANIFEST).read_text())
    assert (manifest["step"], manifest["attempt"], len(manifest["files"])) == (3, 2, 2)


def test_sealing_again_without_a_change_gives_the_same_manifest(folder: Path) -> None:
    assert seal(folder, step=3, attempt=1) == seal(folder, step=3, attempt=1)


@pytest.mark.parametrize("damage", ["flip", "cut", "drop", "manifest", "no manifest"])
def test_any_damage_is_seen(folder: Path, damage: str) -> None:
    sealed = seal(folder, step=3, attempt=1)
    shard = folder / "shards" / "w0"
    match damage:
        case "flip":
            shard.write_bytes(b"0" * 4999 + b"1")
        case "cut":
            shard.write_bytes(b"0" * 4999)
        case "drop":
            shard.unlink()
        case "manifest":
            (folder / MANIFEST).write_text("{}")
        case _:
            (folder / MANIFEST).unlink()
    with pytest.raises(Torn):
        verify(folder, sealed.manifest_sha256)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/etc", "a/../../b", "missing", "link"])
def test_a_name_that_leads_elsewhere_is_refused(folder: Path, name: str) -> None:
    (folder.parent / "link").symlink_to(folder)
    with pytest.raises(Torn):
        locate(folder.parent, name)


def test_an_empty_folder_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(Torn, match="holds no file"):
        seal(tmp_path, step=1, attempt=1)


def hugging_face(root: Path, step: int) -> Path:
    folder = root / f"checkpoint-{step}"
    folder.mkdir()
    (folder / "model.safetensors").write_text("w")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return folder


def test_a_hugging_face_folder_is_whole_once_it_stays_as_it_is(tmp_path: Path) -> None:
    scan = HuggingFaceScan(tmp_path)
    folder = hugging_face(tmp_path, 20)
    assert scan.look(known=set(), program_gone=False) == []
    (folder / "model.safetensors").write_text("more")
    assert scan.look(known=set(), program_gone=False) == []
    assert scan.look(known=set(), program_gone=False) == [("checkpoint-20", 20)]
    assert scan.look(known={"checkpoint-20"}, program_gone=False) == []


def test_a_hugging_face_folder_cut_short_by_a_kill_is_not_taken(tmp_path: Path) -> None:
    scan = HuggingFaceScan(tmp_path)
    (hugging_face(tmp_path, 20) / "trainer_state.json").write_text('{"global_st')
    hugging_face(tmp_path, 10)
    (tmp_path / "checkpoint-30").mkdir()
    assert scan.look(known=set(), program_gone=True) == [("checkpoint-10", 10)]


def test_two_threads_that_seal_the_same_checkpoint_do_not_disturb_each_other(
    tmp_path: Path,
) -> None:
    """A task that is cancelled at the member's end leaves its thread sealing."""
    for number in range(40):
        folder = tmp_path / f"step-{number}"
        folder.mkdir()
        (folder / "w").write_bytes(b"weights" * 1000)
        with ThreadPoolExecutor(4) as pool:
            sealing = [pool.submit(seal, folder, step=number, attempt=1) for _ in range(4)]
            digests = {one.result().manifest_sha256 for one in sealing}
        assert len(digests) == 1
        assert sorted(path.name for path in folder.iterdir()) == ["w", MANIFEST]
