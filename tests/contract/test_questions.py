"""Messages that stand alone: a node's table and samples, questions and their answers.

They have no union and no reader of their own; whoever reads one ignores what it does not know.
"""

import importlib
import inspect
import json
import os
import pkgutil
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from whaleflux.common import contracts
from whaleflux.common.contracts import agent, failover, gateway, scheduler
from whaleflux.common.contracts.agent import LogReply, LogRequest
from whaleflux.common.contracts.assignment import AssignedMember, Assignment, CheckpointRef
from whaleflux.common.contracts.base import Command, Event, Message
from whaleflux.common.contracts.failover import LeaseAnswer, LeaseReply, LeaseRequest
from whaleflux.common.contracts.telemetry import GpuSample, GpusRequest, NodeSample
from whaleflux.common.contracts.workload import Fencing

GOLDEN = Path(__file__).parent / "golden" / "alone"
MEMBER = AssignedMember(
    run_id="wl_abc-main-1",
    attempt=2,
    rank=0,
    world_size=1,
    workload_id="wl_abc",
    tenant="acme",
    project="default",
    phase="main",
    iteration=1,
    role=None,
    desired="run",
    gpus=(0, 1),
    gpu_type="H100",
    handover=False,
    nodes=("h100-0",),
    master_port=29_500,
    store="default",
    setup="",
    run="python train.py",
    envs={"SEED": "1"},
    workdir="0" * 64,
    inputs={"rollout": "runs/wl_abc-rollout-1/a1/output"},
    resume_from=(
        CheckpointRef(
            attempt=1, step=10, path="runs/x/a1/checkpoints/10", manifest_sha256="0" * 64, safe=True
        ),
    ),
    grace_s=30.0,
    fencing=Fencing.PATIENT,
    max_runtime_s=None,
)
SAMPLES: dict[type[BaseModel], BaseModel] = {
    type(sample): sample
    for sample in (
        Assignment(node_id="h100-0", incarnation=1, version=42, members=(MEMBER,)),
        NodeSample.model_validate(
            {
                "node_id": "h100-0",
                "at": "2031-01-01T00:00:00Z",
                "simulated": True,
                "gpus": [GpuSample(index=0, uuid="SIM-0", type="H100", utilisation_pct=12.5)],
            }
        ),
        LeaseRequest(node_id="h100-0", boot_id="boot", agent_id="agent_1", clean=False),
        LeaseReply(answer=LeaseAnswer.FROZEN, incident=3),
        LogRequest(run_id="wl_abc-main-1", attempt=1, rank=0, offset=10, limit_bytes=100),
        LogReply(found=True, text="step 1\n", next_offset=17, ended=False),
        GpusRequest(node_id="h100-0", after="SIM-0"),
    )
}


def by_name(class_: type[BaseModel]) -> str:
    return f"{class_.__module__.rpartition('.')[2]}.{class_.__name__}"


def test_no_message_of_the_contracts_is_left_out() -> None:
    """Those with a union are in `test_messages`; all others are here."""
    unions = (
        scheduler.SchedulerEvent,
        scheduler.SchedulerCommand,
        agent.AgentEvent,
        failover.FailoverRecord,
        gateway.GatewayEvent,
    )
    covered: set[Any] = {class_ for union in unions for class_ in get_args(union)} | set(SAMPLES)
    found = set()
    for module in pkgutil.iter_modules(contracts.__path__, f"{contracts.__name__}."):
        for _, class_ in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            crosses = issubclass(class_, Message) or class_.__name__.endswith(("Request", "Reply"))
            if crosses and class_ not in (Message, Event, Command):
                found.add(class_)
    assert found == covered


@pytest.mark.parametrize("class_", SAMPLES, ids=by_name)
def test_it_has_a_golden_that_today_reads(class_: type[BaseModel]) -> None:
    path = GOLDEN / f"{by_name(class_)}.json"
    if os.environ.get("UPDATE_GOLDEN") and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        body = SAMPLES[class_].model_dump(mode="json")
        path.write_text(json.dumps(body, indent=1, sort_keys=True) + "\n")
    assert class_.model_validate_json(path.read_bytes(), extra="ignore") == SAMPLES[class_]


def test_every_golden_belongs_to_a_message() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == {by_name(class_) for class_ in SAMPLES}


@pytest.mark.parametrize("class_", SAMPLES, ids=by_name)
def test_fields_of_newer_releases_can_be_ignored_at_every_depth(class_: type[BaseModel]) -> None:
    def newer(value: Any) -> Any:
        if isinstance(value, list):
            return [newer(item) for item in value]
        # Free mappings take any key, so only those with fields of ours get one more.
        if isinstance(value, dict) and not {"SEED", "rollout"} & set(value):
            return {key: newer(item) for key, item in value.items()} | {"from_the_future": 1}
        return value

    text = json.dumps(newer(SAMPLES[class_].model_dump(mode="json")))
    assert class_.model_validate_json(text, extra="ignore") == SAMPLES[class_]
    with pytest.raises(ValidationError):
        class_.model_validate_json(text)
