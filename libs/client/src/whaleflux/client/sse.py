"""Server-sent events, read line by line."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a stream. *id* is empty where the server gave none."""

    id: str
    event: str
    data: str


@dataclass(slots=True)
class SseReader:
    """Puts lines together to events, by the rules of the HTML standard."""

    _id: str = ""
    _event: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, line: str) -> Frame | None:
        """Take the next *line*; return an event when the line ends one."""
        if line == "":
            return self._end()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "id" if "\0" not in value:
                self._id = value
            case "event":
                self._event = value
            case "data":
                self._data.append(value)
            case _:
                pass
        return None

    def _end(self) -> Frame | None:
        if not self._data and not self._event:
            return None
        frame = Frame(self._id, self._event or "message", "\n".join(self._data))
        self._event = ""
        self._data = []
        return frame
