"""The table of streams: what is kept, for how long, and who may change it."""

import pytest

from whaleflux.common.contracts import subjects
from whaleflux.common.nats_inbox import PULL_MESSAGES
from whaleflux.common.streams import ConsumerSpec, StreamSpec, all_streams

DAY_S = 86_400.0
STREAMS = all_streams()
LOGS = [subjects.stream_scheduler(), subjects.STREAM_FAILOVER, subjects.STREAM_GATEWAY]


@pytest.mark.parametrize("name", LOGS)
def test_a_decision_log_is_for_ever_and_written_in_atomic_batches(name: str) -> None:
    spec = STREAMS[name]
    assert (spec.storage, spec.retention, spec.max_age_s, spec.max_bytes) == (
        "file",
        "limits",
        0,
        -1,
    )
    assert spec.allow_atomic and spec.allow_direct and spec.deny_delete


@pytest.mark.parametrize("service", ["scheduler", "failover"])
def test_commands_are_a_work_queue(service: str) -> None:
    spec = STREAMS[subjects.stream_commands(service)]
    assert (spec.retention, spec.storage) == ("workqueue", "file")


@pytest.mark.parametrize(
    ("name", "max_age_s", "storage"),
    [
        (subjects.STREAM_AGENT, 90 * DAY_S, "file"),
        (subjects.STREAM_PUB, 30 * DAY_S, "file"),
        (subjects.STREAM_DLQ, 30 * DAY_S, "file"),
        (subjects.STREAM_SAMPLES, 300.0, "memory"),
    ],
)
def test_what_is_not_a_decision_is_kept_for_its_time(
    name: str, max_age_s: float, storage: str
) -> None:
    assert (STREAMS[name].max_age_s, STREAMS[name].storage) == (max_age_s, storage)


def test_samples_are_bounded_in_memory() -> None:
    assert 0 < STREAMS[subjects.STREAM_SAMPLES].max_bytes <= 1 << 30


@pytest.mark.parametrize("name", [subjects.STREAM_ASSIGNMENTS, subjects.STREAM_LEASES])
def test_a_table_keeps_one_value_for_each_subject(name: str) -> None:
    """With more than one, the older value would come back when the newest runs out."""
    assert STREAMS[name].max_msgs_per_subject == 1


def test_no_message_belongs_to_two_streams() -> None:
    roots = [s.removesuffix(">").removesuffix("*") for x in STREAMS.values() for s in x.subjects]
    assert not [(a, b) for a in roots for b in roots if a is not b and a.startswith(b)]


def test_repeated_ids_are_known_longer_than_anybody_retries() -> None:
    assert STREAMS[subjects.STREAM_AGENT].duplicate_window_s >= 120
    short = StreamSpec(name="S", subjects=("s",), max_age_s=10.0)
    assert short.config()["duplicate_window"] == short.config()["max_age"]


def test_a_reader_may_hold_more_than_two_pulls_without_stalling() -> None:
    config = ConsumerSpec(stream="S", durable="d").config()
    assert config["max_ack_pending"] > 2 * PULL_MESSAGES
    assert config["max_deliver"] == -1
