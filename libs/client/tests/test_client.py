"""The SDK against a real HTTP server: pages, retries, idempotency, waiting, events, logs."""

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any, cast

import pytest
from fastapi import Response

from whaleflux.client import (
    ApiProblem,
    AsyncClient,
    Client,
    Conflict,
    NotAllowed,
    NotFound,
    PublicEvent,
    ServerProblem,
    Unreachable,
    WaitTimedOut,
    from_yaml,
)

JOB = "name: hello\nrun: echo hello\n"


def _client(**more: Any) -> Client:
    return Client(pause=lambda _seconds: None, **more)


def test_submitting_returns_the_workload_and_draws_an_idempotency_key(stub: Any) -> None:
    with _client() as client:
        first = client.submit(JOB)
        second = client.submit(JOB)
    assert first.name == "hello"
    assert first.id != second.id
    keys = {h["idempotency-key"] for h in stub.headers if "idempotency-key" in h}
    assert len(keys) == 2


def test_the_same_idempotency_key_never_submits_twice(stub: Any) -> None:
    with _client() as client:
        first = client.submit(JOB, idempotency_key="mine")
        second = client.submit(JOB, idempotency_key="mine")
        with pytest.raises(Conflict):
            client.submit(JOB + "priority: 3\n", idempotency_key="mine")
    assert first.id == second.id


def test_a_retried_submission_carries_the_same_key(stub: Any) -> None:
    stub.failures = [Response(status_code=503), Response(status_code=502)]
    with _client() as client:
        client.submit(JOB)
    keys = [h["idempotency-key"] for h in stub.headers]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert len(stub.workloads) == 1


def test_an_undecided_submission_is_looked_up_until_it_is_decided(stub: Any) -> None:
    stub.undecided = 3
    with _client() as client:
        found = client.submit(JOB)
    assert found.state == "queued"
    assert stub.paths("POST") == ["/v1/workloads"]


def test_retries_end_and_honour_the_wish_of_the_server(stub: Any) -> None:
    stub.failures = [Response(status_code=503, headers={"retry-after": "7"}) for _ in range(20)]
    pauses: list[float] = []
    with Client(pause=pauses.append) as client, pytest.raises(ServerProblem):
        client.whoami()
    assert 1 <= len(pauses) <= 5
    assert all(pause >= 7 for pause in pauses)


def test_what_the_server_refuses_is_not_asked_again(stub: Any) -> None:
    with _client() as client:
        with pytest.raises(NotFound, match="There is no workload 'nothing'") as missing:
            client.workload("nothing")
        with pytest.raises(ApiProblem) as refused:
            client.submit("name: refused\nrun: x\n")
    assert missing.value.request_id == "req-7"
    assert [(e.pointer, e.detail) for e in refused.value.errors] == [("/phases/0/run", "No good.")]
    assert len(stub.asked) == 2


def test_a_wrong_key_is_said_as_such(stub: Any) -> None:
    with _client(url=stub.url, api_key="wrong") as client, pytest.raises(NotAllowed):
        client.whoami()


def test_a_key_of_the_environment_is_not_sent_to_another_address(stub: Any) -> None:
    other = stub.url.replace("127.0.0.1", "localhost")
    with _client(url=other) as client, pytest.raises(NotAllowed):
        client.whoami()
    assert "authorization" not in stub.headers[-1]


def test_nobody_there_is_said_with_the_address() -> None:
    with _client(url="http://127.0.0.1:9", api_key="x") as client, pytest.raises(Unreachable) as e:
        client.whoami()
    assert "http://127.0.0.1:9" in str(e.value)


def test_lists_fetch_their_pages_as_they_are_needed(stub: Any) -> None:
    for i in range(230):
        stub.workload(f"wl_{i}", name=f"job-{i}")
    with _client() as client:
        found = client.workloads()
        first = next(found)
        assert len(stub.asked) == 1
        rest = list(found)
        few = list(client.workloads(limit=7))
    assert [first.id, *[w.id for w in rest]] == [f"wl_{i}" for i in range(230)]
    assert len(few) == 7
    assert stub.asked[-1][2]["limit"] == "7"


def test_fields_of_a_newer_gateway_are_kept_and_never_refused(stub: Any) -> None:
    stub.workload("wl_1")
    with _client() as client:
        found = client.workload("wl_1")
    assert found.to_dict()["surprise"] == {"from": "a newer gateway"}


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "preempted", "lost"])
def test_waiting_ends_on_any_terminal_state(stub: Any, state: str) -> None:
    stub.workload("wl_1")
    stub.on_request = _after(4, lambda: stub.workload("wl_1", state=state))
    with _client() as client:
        assert client.workload("wl_1").wait().state == state


def test_waiting_gives_up_after_its_time(stub: Any) -> None:
    stub.workload("wl_1")
    with _client() as client, pytest.raises(WaitTimedOut) as late:
        client.wait("wl_1", timeout_s=0.05)
    assert late.value.state == "running"


def test_events_go_on_by_cursor_after_every_lost_connection(stub: Any) -> None:
    stub.events = [_event(n) for n in range(1, 8)]
    stub.events_a_connection = 3
    with _client() as client:
        stream = cast(Generator[PublicEvent, None, None], client.events(since=0))
        found = [next(stream).sequence for _ in range(7)]
        stream.close()
    assert found == [1, 2, 3, 4, 5, 6, 7]
    assert [h.get("last-event-id") for h in stub.headers][:3] == ["0", "3", "6"]


def test_events_without_following_end_when_all_is_said(stub: Any) -> None:
    stub.events = [_event(n) for n in range(1, 4)]
    with _client() as client:
        found = list(client.events(since=1, follow=False))
    assert [e.sequence for e in found] == [2, 3]
    assert found[0].data == {"n": 2}


def test_a_followed_log_waits_for_the_start_and_ends_with_the_workload(stub: Any) -> None:
    stub.workload("wl_1", state="queued")
    run = stub.run("wl_1", state="queued")
    key = (run, 1, 0)

    def start() -> None:
        stub.runs[run]["state"] = "running"
        stub.logs[key] = "one\ntwo\n"

    def end() -> None:
        stub.logs[key] += "three\n"
        stub.log_ended.add(key)
        stub.runs[run]["state"] = "succeeded"
        stub.workload("wl_1", state="succeeded")

    stub.on_request = _both(_after(5, start), _after(12, end))
    stub.log_limit = 3
    with _client() as client:
        pieces = list(client.logs("wl_1", follow=True))
    assert "".join(p.text for p in pieces) == "one\ntwo\nthree\n"
    assert pieces[-1].ended


def test_a_followed_log_goes_on_with_the_next_attempt(stub: Any) -> None:
    stub.workload("wl_1")
    run = stub.run("wl_1")
    stub.logs[(run, 1, 0)] = "first\n"

    def retry() -> None:
        stub.log_ended.add((run, 1, 0))
        stub.runs[run] |= {"attempt": 2}
        stub.logs[(run, 2, 0)] = "second\n"
        stub.log_ended.add((run, 2, 0))
        stub.runs[run]["state"] = "succeeded"
        stub.workload("wl_1", state="succeeded")

    stub.on_request = _after(6, retry)
    with _client() as client:
        pieces = list(client.logs("wl_1", follow=True))
    assert [(p.attempt, p.text) for p in pieces if p.text] == [(1, "first\n"), (2, "second\n")]


def test_a_log_whose_beginning_is_gone_says_how_much_is_missing(stub: Any) -> None:
    stub.workload("wl_1", state="failed")
    run = stub.run("wl_1", state="failed")
    stub.logs[(run, 1, 0)] = "0123456789"
    stub.log_begin[(run, 1, 0)] = 4
    stub.log_ended.add((run, 1, 0))
    with _client() as client:
        pieces = list(client.logs("wl_1"))
    assert [(p.gap_bytes, p.text) for p in pieces] == [(4, "456789")]


def test_a_log_that_went_with_its_node_ends_with_a_sentence(stub: Any) -> None:
    stub.workload("wl_1", state="lost")
    stub.run("wl_1", state="lost")
    with _client() as client:
        pieces = list(client.logs("wl_1", follow=True))
    assert [p.ended for p in pieces] == [True]
    assert "cannot be read" in (pieces[0].note or "")


def test_a_log_out_of_reach_does_not_hold_up_the_next_attempt(stub: Any) -> None:
    stub.workload("wl_1", state="succeeded")
    run = stub.run("wl_1")
    stub.logs[(run, 1, 0)] = "first\n"
    stub.broken_logs = {(run, 1, 0)}
    waited: list[float] = []

    def move(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 1:
            stub.runs[run] |= {"attempt": 2, "state": "succeeded"}
            stub.logs[(run, 2, 0)] = "second\n"
            stub.log_ended.add((run, 2, 0))

    with Client(pause=move) as client:
        pieces = list(client.logs("wl_1", follow=True))
    assert [(p.attempt, p.text) for p in pieces if p.text] == [(2, "second\n")]
    assert "cannot be read" in (pieces[-1].note or "")
    assert sum(waited) < 10


async def test_the_async_client_does_the_same(stub: Any, tmp_path: Any) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)")
    stub.events = [_event(1), _event(2)]
    stub.events_a_connection = 1

    async def pause(_seconds: float) -> None:
        await asyncio.sleep(0)

    async with AsyncClient(pause=pause) as client:
        workload = await client.submit(from_yaml(JOB), workdir=folder)
        stub.workload(workload.id, state="succeeded")
        ended = await workload.wait()
        listed = [w.id async for w in client.workloads()]
        events = client.events(since=0)
        seen = [(await anext(events)).sequence, (await anext(events)).sequence]
        run = stub.run(workload.id, state="succeeded")
        stub.logs[(run, 1, 0)] = "hello\n"
        stub.log_ended.add((run, 1, 0))
        text = "".join([p.text async for p in workload.logs(follow=True)])
        with pytest.raises(NotFound):
            await client.workload("nothing")
    assert ended.state == "succeeded"
    assert listed == [workload.id]
    assert seen == [1, 2]
    assert text == "hello\n"
    assert len(stub.blobs) == 1


def test_an_uploaded_workdir_is_sent_once(stub: Any, tmp_path: Any) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("a")
    file = tmp_path / "job.yaml"
    file.write_text(JOB + "workdir: code\n")
    with _client() as client:
        client.submit(file)
        client.submit(file)
    assert len(stub.paths("PUT")) == 1
    sent = next(iter(stub.workloads.values()))["spec"]["workdir"]
    assert sent == f"sha256:{next(iter(stub.blobs))}"


def _event(n: int) -> dict[str, Any]:
    return {
        "seq": n,
        "specversion": "1.0",
        "type": "io.whaleflux.run.placed.v1",
        "subject": "wl_1-main-1",
        "time": "2026-01-31T08:00:00Z",
        "data": {"n": n},
    }


def _after(requests: int, action: Callable[[], object]) -> Callable[[str, str], None]:
    left = requests
    lock = threading.Lock()

    def note(_method: str, _path: str) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left == 0:
                action()

    return note


def _both(*notes: Callable[[str, str], None]) -> Callable[[str, str], None]:
    def note(method: str, path: str) -> None:
        for each in notes:
            each(method, path)

    return note
