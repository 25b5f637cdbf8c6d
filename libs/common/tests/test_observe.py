"""What a service lets one see: log lines and trace headers."""

import json
import logging
from collections.abc import Iterator

import pytest

from whaleflux.common import observe
from whaleflux.common.contracts.subjects import HEADER_TRACE

PARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


Out = pytest.CaptureFixture[str]


@pytest.fixture
def out(capsys: Out) -> Iterator[Out]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield capsys
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(out: Out) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.readouterr().out.splitlines()]


def test_a_log_line_is_one_json_object_with_its_fields_as_keys(out: Out) -> None:
    observe.configure_logging("scheduler", log_format="json")
    logging.getLogger("whaleflux.x").info("run placed", extra={"run_id": "r1", "gpus": 8})
    (line,) = lines(out)
    assert line["message"] == "run placed"
    assert (line["service"], line["level"]) == ("scheduler", "info")
    assert (line["run_id"], line["gpus"]) == ("r1", 8)
    assert str(line["at"]).endswith("+00:00")


def test_an_error_brings_its_traceback_on_the_same_line(out: Out) -> None:
    observe.configure_logging("scheduler", log_format="json")
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("whaleflux.x").exception("failed")
    (line,) = lines(out)
    assert "ValueError: boom" in str(line["error"])


def test_a_field_that_is_not_json_is_written_as_text(out: Out) -> None:
    observe.configure_logging("scheduler", log_format="json")
    logging.getLogger("whaleflux.x").info("odd", extra={"what": {1}})
    assert lines(out)[0]["what"] == "{1}"


def test_text_is_for_people(out: Out) -> None:
    observe.configure_logging("scheduler", log_format="text")
    logging.getLogger("whaleflux.x").warning("run waits", extra={"run_id": "r1"})
    assert "scheduler WARNING run waits run_id=r1" in out.readouterr().out


@pytest.mark.parametrize("name", ["nats", "httpx", "asyncio", "uvicorn.access"])
def test_libraries_speak_only_of_trouble(out: Out, name: str) -> None:
    observe.configure_logging("scheduler", log_format="json")
    logging.getLogger(name).info("chatter")
    logging.getLogger(name).warning("trouble")
    assert [line["message"] for line in lines(out)] == ["trouble"]


def test_without_a_trace_no_header_travels() -> None:
    assert observe.trace_headers() == {}


def test_a_trace_goes_on_under_a_new_span_and_ends_with_its_block(out: Out) -> None:
    observe.configure_logging("scheduler", log_format="json")
    with observe.span("serve", {"Traceparent": PARENT}):
        header = observe.trace_headers()[HEADER_TRACE]
        logging.getLogger("whaleflux.x").info("inside")
    assert header.split("-")[1] == "a" * 32
    assert header != PARENT
    assert lines(out)[0]["trace_id"] == "a" * 32
    assert observe.trace_headers() == {}


def test_a_broken_trace_header_begins_a_trace_of_its_own() -> None:
    with observe.span("serve", {HEADER_TRACE: "nonsense"}):
        version, trace_id, span_id, flags = observe.trace_headers()[HEADER_TRACE].split("-")
    assert (version, len(trace_id), len(span_id), flags) == ("00", 32, 16, "01")
