"""Members' logs: read by byte cursor while they grow, and their tails kept in the store."""

import os
from pathlib import Path

from whaleflux.agent.shell.folders import MemberKey, NodeFolder
from whaleflux.agent.shell.shim_parts.kernel import write_atomically
from whaleflux.common.contracts.agent import LogReply, LogRequest

LOG_BYTES_MAX = 256 * 2**20
"""What one member may write before its output is dropped."""
TAIL_BYTES = 2**20
"""What goes to the store when a member ends."""


def read_log(folder: NodeFolder, request: LogRequest) -> LogReply:
    """Answer *request*; characters are never split, bytes that are no UTF-8 become `�`."""
    member = folder.member(MemberKey(request.run_id, request.attempt, request.rank))
    if not member.member.exists():
        return LogReply(found=False)
    gone = member.exit.exists() or member.told_exit.exists()
    try:
        with open(member.log, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            offset = min(request.offset, size)
            file.seek(offset)
            piece = file.read(request.limit_bytes)
    except FileNotFoundError:
        return LogReply(found=True, ended=gone)
    end = offset + len(piece)
    if not (gone and end == size):
        piece = whole_characters(piece) or piece
    end = offset + len(piece)
    return LogReply(
        found=True,
        text=piece.decode(errors="replace"),
        next_offset=end,
        ended=gone and end == size,
    )


def whole_characters(piece: bytes) -> bytes:
    """Return *piece* without an unfinished UTF-8 character at its end."""
    for back in range(1, min(4, len(piece)) + 1):
        byte = piece[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue
        need = 1 if byte < 0x80 else 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4
        return piece[:-back] if need > back else piece
    return piece


def keep_tail(log: Path, target: Path, offset_target: Path) -> None:
    """Copy the end of *log* to *target*, beginning at a whole line where it is cut.

    How many bytes came before goes to *offset_target*, so that byte cursors stay true.
    """
    try:
        with open(log, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL_BYTES))
            tail = file.read()
    except FileNotFoundError:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if size > TAIL_BYTES:
        tail = tail.partition(b"\n")[2] or tail
        write_atomically(str(offset_target), str(size - len(tail)), durable=False)
    write_bytes_atomically(target, tail)


def write_bytes_atomically(target: Path, content: bytes) -> None:
    """Replace *target*; a reader sees the old or the new content, whole."""
    temporary = target.with_name(f".{target.name}.new")
    temporary.write_bytes(content)
    temporary.replace(target)
