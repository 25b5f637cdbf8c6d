"""The shape all messages have, and how they are read leniently."""

from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

E = TypeVar("E")

Token = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=100)]
"""One part of a subject: lower-case letters, digits, `_` and `-`."""


class Message(BaseModel):
    """A fact or a request that crosses a service boundary."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Part(BaseModel):
    """A value inside a message."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Event(Message):
    """Something that happened; named in the past tense."""

    at: datetime


class Command(Message):
    """Something asked for; named in the imperative."""


class UnknownEvent(BaseModel):
    """An event of a type this release has not heard of; kept and counted, never a crash."""

    model_config = ConfigDict(frozen=True, extra="allow")
    type: str


class Reader(Generic[E]):
    """Reads one owner's messages: unknown fields ignored, unknown types kept."""

    def __init__(self, union: Any) -> None:  # noqa: ANN401 - a union type has no common class
        """Take the discriminated union of all messages the owner may send."""
        self._adapter: TypeAdapter[E] = TypeAdapter(union)

    def __call__(self, raw: bytes) -> E | UnknownEvent:
        """Return the message in *raw*.

        Raises:
            ValidationError: The type is known and the body does not fit it.

        """
        try:
            return self._adapter.validate_json(raw, extra="ignore")
        except ValidationError as error:
            if any(e["type"] == "union_tag_invalid" for e in error.errors()):
                return UnknownEvent.model_validate_json(raw)
            raise
