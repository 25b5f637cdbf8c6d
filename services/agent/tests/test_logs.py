from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whaleflux.agent.shell.folders import MemberKey, NodeFolder
from whaleflux.agent.shell.logs import TAIL_BYTES, keep_tail, read_log, whole_characters
from whaleflux.common.contracts.agent import LogRequest


@pytest.fixture
def node(tmp_path: Path) -> NodeFolder:
    node = NodeFolder(tmp_path)
    node.create()
    return node


def ask(node: NodeFolder, **fields: Any) -> Any:
    return read_log(node, LogRequest(run_id="r", attempt=1, rank=0, **fields))


def test_an_unknown_member_is_not_found(node: NodeFolder) -> None:
    assert not ask(node).found


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_pages_of_any_size_join_to_the_whole_text(node: NodeFolder, limit: int) -> None:
    text = "größer 🐋 水\nend"
    folder = node.member(MemberKey("r", 1, 0))
    folder.path.mkdir(parents=True)
    folder.member.write_text("{}")
    folder.log.write_text(text)
    folder.exit.write_text("{}")
    read, offset, ended, rounds = "", 0, False, 0
    while not ended and rounds < 100:
        reply = ask(node, offset=offset, limit_bytes=max(limit, 4))
        read, offset, ended = read + reply.text, reply.next_offset, reply.ended
        rounds += 1
    assert read == text


def test_a_character_that_is_still_being_written_is_left_for_later(node: NodeFolder) -> None:
    folder = node.member(MemberKey("r", 1, 0))
    folder.path.mkdir(parents=True)
    folder.member.write_text("{}")
    folder.log.write_bytes("ab🐋".encode()[:-1])
    reply = ask(node)
    assert (reply.text, reply.next_offset, reply.ended) == ("ab", 2, False)
    folder.exit.write_text("{}")
    assert ask(node, offset=2).ended


@given(st.text(max_size=20), st.integers(0, 80))
def test_no_cut_leaves_half_a_character(text: str, cut: int) -> None:
    raw = text.encode(errors="ignore")[:cut]
    assert whole_characters(raw).decode() is not None
    assert len(raw) - len(whole_characters(raw)) < 4


def test_only_the_end_of_a_long_log_is_kept_from_a_whole_line_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {i}\n" for i in range(200_000)))
    store = tmp_path / "store"
    keep_tail(log, store / "rank0.log", store / "rank0.offset")
    kept = (store / "rank0.log").read_text()
    assert len(kept) <= TAIL_BYTES
    assert kept.startswith("line ")
    assert int((store / "rank0.offset").read_text()) + len(kept) == log.stat().st_size
    assert kept.endswith("line 199999\n")


def test_a_short_log_is_kept_whole_and_says_no_offset(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\xfftwo\n")
    keep_tail(log, tmp_path / "s" / "rank0.log", tmp_path / "s" / "rank0.offset")
    assert (tmp_path / "s" / "rank0.log").read_bytes() == b"one\xfftwo\n"
    assert not (tmp_path / "s" / "rank0.offset").exists()
