"""Can everyone still read everyone? Golden messages are added, never edited."""

import json
import os
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from whaleflux.common.contracts import agent, failover, gateway, scheduler
from whaleflux.common.contracts.agent import ExitKind, Gpu, read_agent_event
from whaleflux.common.contracts.assignment import Assignment, CheckpointRef
from whaleflux.common.contracts.base import UnknownEvent
from whaleflux.common.contracts.failover import read_failover_event, read_failover_record
from whaleflux.common.contracts.gateway import read_gateway_event
from whaleflux.common.contracts.scheduler import (
    Explanation,
    MemberPlacement,
    Outcome,
    read_scheduler_command,
    read_scheduler_event,
)
from whaleflux.common.contracts.telemetry import NodeSample
from whaleflux.common.contracts.workload import WorkloadSpec

GOLDEN = Path(__file__).parent / "golden"
SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "api" / "contracts"
READERS: dict[Any, Any] = {
    scheduler.SchedulerEvent: read_scheduler_event,
    scheduler.SchedulerCommand: read_scheduler_command,
    agent.AgentEvent: read_agent_event,
    failover.FailoverEvent: read_failover_event,
    failover.LeaderElected: read_failover_record,
    gateway.GatewayEvent: read_gateway_event,
}
CLASSES: dict[type[BaseModel], Any] = {
    class_: reader for union, reader in READERS.items() for class_ in get_args(union) or (union,)
}


def type_of(class_: type[BaseModel]) -> str:
    return str(class_.model_fields["type"].default)


def by_type(class_: type[BaseModel]) -> str:
    return type_of(class_)


@pytest.mark.parametrize("class_", CLASSES, ids=by_type)
def test_a_class_is_named_after_what_it_says(class_: type[BaseModel]) -> None:
    _service, entity, word, version = type_of(class_).split(".")
    suffix = "" if version == "v1" else version.upper()
    name = f"{entity.title()}{word.title()}{suffix}"
    reversed_ = f"{word.title()}{entity.title()}{suffix}"
    assert class_.__name__ in (name, reversed_)


SAMPLES: dict[str, Any] = {
    "at": "2031-01-01T00:00:00Z",
    "node_id": "h100-0",
    "run_id": "wl_abc-main-1",
    "workload_id": "wl_abc",
    "tenant": "acme",
    "user": "ada",
    "body_hash": "0" * 64,
    "spec": WorkloadSpec.model_validate({"name": "hello", "run": "true"}).model_dump(mode="json"),
    "name": "hello",
    "code": "NO_SUCH_TYPE",
    "reason": "because",
    "why": "it fits",
    "phase": "main",
    "loop": "train",
    "iteration": 1,
    "iterations": 2,
    "attempt": 1,
    "rank": 0,
    "pid": 4711,
    "role": None,
    "gpu_type": "H100",
    "final": True,
    "outcome": Outcome.SUCCEEDED.value,
    "kind": ExitKind.DONE.value,
    "members": [
        MemberPlacement(rank=0, node_id="h100-0", gpus=(0, 1), handover=False).model_dump()
    ],
    "explanation": Explanation(
        code=scheduler.WaitCode.NO_CAPACITY, sentence="0 of 8 are free."
    ).model_dump(mode="json"),
    "checkpoint": CheckpointRef(
        attempt=1, step=10, path="runs/x/a1/checkpoints/10", manifest_sha256="0" * 64, safe=True
    ).model_dump(),
    "bytes": 1024,
    "boot_id": "boot",
    "agent_id": "agent_1",
    "simulated": True,
    "gpus": [Gpu(index=0, uuid="SIM-0", type="H100", memory_mib=81_920).model_dump()],
    "cpus": 64,
    "memory_mib": 1_048_576,
    "stores": ["default"],
    "fencing": "fast",
    "incident": 1,
    "silent_s": 10.5,
    "term": "term_1",
    "key_id": "key_1",
    "secret_sha256": "0" * 64,
}
SAMPLES_OF = {"role": {"gateway.key.created.v1": "admin"}}


def sample(class_: type[BaseModel]) -> dict[str, Any]:
    body: dict[str, Any] = {"type": type_of(class_)}
    for field, info in class_.model_fields.items():
        if info.is_required():
            body[field] = SAMPLES_OF.get(field, {}).get(type_of(class_), SAMPLES[field])
    return body


@pytest.mark.parametrize("class_", CLASSES, ids=by_type)
def test_every_message_has_a_golden_that_today_reads(class_: type[BaseModel]) -> None:
    path = GOLDEN / f"{type_of(class_)}.json"
    if os.environ.get("UPDATE_GOLDEN") and not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(sample(class_), indent=1, sort_keys=True) + "\n")
    message = CLASSES[class_](path.read_bytes())
    assert type(message) is class_
    kept = json.loads(path.read_text())
    again = message.model_dump(mode="json")
    assert {key: again[key] for key in kept if key != "at"} == {
        key: value for key, value in kept.items() if key != "at"
    }


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda p: p.stem)
def test_every_golden_is_still_a_message(path: Path) -> None:
    assert path.stem in {type_of(class_) for class_ in CLASSES}


@pytest.mark.parametrize("class_", CLASSES, ids=by_type)
def test_fields_of_newer_releases_are_ignored_and_never_written(class_: type[BaseModel]) -> None:
    newer = json.dumps({**sample(class_), "from_the_future": 1}).encode()
    assert type(CLASSES[class_](newer)) is class_
    with pytest.raises(ValidationError):
        class_.model_validate_json(newer)


@pytest.mark.parametrize(
    "reader",
    READERS.values(),
    ids=["scheduler", "commands", "agent", "failover", "leaders", "gateway"],
)
def test_types_of_newer_releases_are_kept(reader: Any) -> None:
    got = reader(b'{"type":"scheduler.run.teleported.v1","run_id":"r"}')
    assert isinstance(got, UnknownEvent)


@pytest.mark.parametrize("class_", CLASSES, ids=by_type)
def test_a_known_type_with_a_missing_field_is_refused(class_: type[BaseModel]) -> None:
    body = sample(class_)
    body.pop(next(k for k in body if k != "type"))
    with pytest.raises(ValidationError):
        CLASSES[class_](json.dumps(body).encode())


PUBLISHED: dict[str, Any] = {
    "scheduler-events": scheduler.SchedulerEvent,
    "scheduler-commands": scheduler.SchedulerCommand,
    "agent-events": agent.AgentEvent,
    "failover-events": failover.FailoverEvent,
    "gateway-events": gateway.GatewayEvent,
    "assignment": Assignment,
    "node-sample": NodeSample,
    "workload": WorkloadSpec,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_schema_is_todays(name: str) -> None:
    schema = TypeAdapter(PUBLISHED[name]).json_schema()
    text = json.dumps(schema, indent=1, sort_keys=True) + "\n"
    path = SCHEMAS / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


def test_types_are_four_lower_case_words() -> None:
    for class_ in CLASSES:
        assert re.fullmatch(r"[a-z]+\.[a-z]+\.[a-z]+\.v[0-9]+", type_of(class_))
