"""Answers in JSON, by the faster of the two encoders we have: lists are most of what is read."""

from fastapi.responses import JSONResponse
from pydantic_core import to_json


class Json(JSONResponse):
    """What the standard encoder would say, in half the time."""

    def render(self, content: object) -> bytes:
        """Return *content* as JSON; what is no number is null, because JSON knows no other."""
        return to_json(content, inf_nan_mode="null")
