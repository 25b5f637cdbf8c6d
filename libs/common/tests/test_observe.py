"""What a service lets one see: log lines and trace headers."""

import gzip
import json
import logging
import queue
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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


@pytest.mark.integration
def test_spans_are_exported_where_an_endpoint_is_set_and_continue_the_callers_trace() -> None:
    """In a process of its own: a tracer provider is set once and for ever."""
    bodies: queue.Queue[bytes] = queue.Queue()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        code = (
            "import sys\n"
            "from whaleflux.common import observe\n"
            "observe.configure_tracing('test', sys.argv[1])\n"
            "with observe.span('serve batch', {'traceparent': sys.argv[2]}):\n"
            "    print(observe.trace_headers()['traceparent'])\n"
        )
        endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
        command = [sys.executable, "-c", code, endpoint, PARENT]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        server.shutdown()
        serving.join()
    exported = gzip_free(bodies.get(timeout=10))
    assert b"serve batch" in exported and b"whaleflux-test" in exported
    assert bytes.fromhex("a" * 32) in exported
    assert said.stdout.split("-")[1] == "a" * 32
    assert bytes.fromhex(said.stdout.split("-")[2]) in exported


def gzip_free(body: bytes) -> bytes:
    return gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body


@pytest.mark.integration
def test_metrics_are_served_on_loopback_only_where_a_port_is_set() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    observe.serve_metrics(port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert b"process_resident_memory_bytes" in answer.read()
