"""Put the scheduler together and run it."""

import asyncio
from pathlib import Path

from whaleflux.common.contracts import scheduler as contract
from whaleflux.common.contracts import subjects, workload
from whaleflux.common.contracts.agent import read_agent_event
from whaleflux.common.contracts.failover import read_failover_event
from whaleflux.common.contracts.scheduler import (
    SchedulerEvent,
    identity,
    read_scheduler_command,
    read_scheduler_event,
)
from whaleflux.common.lease import LeaderLease
from whaleflux.common.nats_inbox import NatsInbox
from whaleflux.common.nats_log import NatsLog
from whaleflux.common.nats_table import NatsTable
from whaleflux.common.runtime import Runtime, run
from whaleflux.common.snapshots import FileSnapshots, schema_of
from whaleflux.common.streams import ConsumerSpec, ensure_streams
from whaleflux.scheduler.core import evolve, state
from whaleflux.scheduler.core.state import State
from whaleflux.scheduler.shell import metrics
from whaleflux.scheduler.shell.assignments import Assignments
from whaleflux.scheduler.shell.service import SERVICE, Service, Source, fact_reader
from whaleflux.scheduler.shell.settings import SchedulerSettings

AGENT_FACTS = (
    "wf.evt.agent.node.started.>",
    "wf.evt.agent.member.>",
    "wf.evt.agent.checkpoint.>",
)
"""Progress reports are the gateway's business and would only cost cycles here."""


def subject_of(event: SchedulerEvent) -> str:
    """Return where *event* goes."""
    return subjects.event(event.type, identity(event))


async def serve(runtime: Runtime) -> None:
    """Lead whenever the lease allows; follow otherwise."""
    cell = runtime.settings.cell
    await ensure_streams(
        runtime.js,
        [
            subjects.stream_commands(SERVICE),
            subjects.stream_scheduler(cell),
            subjects.STREAM_AGENT,
            subjects.STREAM_FAILOVER,
            subjects.STREAM_ASSIGNMENTS,
            subjects.STREAM_DLQ,
            subjects.STREAM_LEASES,
        ],
        cell=cell,
    )
    lease = LeaderLease(
        runtime.js, runtime.clock, key=f"{SERVICE}-{cell}", holder=runtime.ids.new(SERVICE)
    )
    runtime.group.create_task(lease.keep())
    while True:
        runtime.health.set("lease", True, "waiting for another scheduler's lease to end")
        await lease.wait_held()
        runtime.health.set("lease", True, "leading")
        metrics.LEADING.set(1)
        await _lead(runtime, lease)
        metrics.LEADING.set(0)


async def _lead(runtime: Runtime, lease: LeaderLease) -> None:
    service = build(runtime)
    await service.take_over()
    inboxes = await open_inboxes(runtime)
    sources = [
        Source(inboxes[0], read_scheduler_command),
        Source(inboxes[1], fact_reader(read_agent_event)),
        Source(inboxes[2], fact_reader(read_failover_event)),
    ]
    try:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(service.run(sources))
            await lease.wait_lost()
            serving.cancel()
    finally:
        for inbox in inboxes:
            await inbox.close()


def build(runtime: Runtime) -> Service:
    """Return a scheduler on the runtime's streams."""
    log: NatsLog[SchedulerEvent] = NatsLog(
        runtime.js,
        stream=subjects.stream_scheduler(runtime.settings.cell),
        reader=read_scheduler_event,
        subject_of=subject_of,
    )

    async def open_mailbox(node_id: str) -> None:
        await runtime.js.ensure_consumer(
            ConsumerSpec(
                stream=subjects.STREAM_ASSIGNMENTS,
                durable=node_id,
                filters=(subjects.assignment(node_id),),
                ack="none",
                deliver="last_per_subject",
            )
        )

    snapshots: FileSnapshots[State] = FileSnapshots(
        Path(runtime.settings.state_dir) / "scheduler.snapshot",
        schema=schema_of([state, evolve, contract, workload]),
    )
    table = NatsTable(runtime.js, stream=subjects.STREAM_ASSIGNMENTS)
    return Service(
        log=log,
        assignments=Assignments(table, open_mailbox=open_mailbox),
        clock=runtime.clock,
        snapshots=snapshots,
    )


async def open_inboxes(runtime: Runtime) -> list[NatsInbox]:
    """Return the inboxes of commands, agents' facts and failover's verdicts, in that order."""
    specs = (
        ConsumerSpec(stream=subjects.stream_commands(SERVICE), durable=SERVICE),
        ConsumerSpec(stream=subjects.STREAM_AGENT, durable="scheduler-facts", filters=AGENT_FACTS),
        ConsumerSpec(stream=subjects.STREAM_FAILOVER, durable="scheduler-verdicts"),
    )
    return [await open_inbox(runtime, spec) for spec in specs]


async def open_inbox(runtime: Runtime, spec: ConsumerSpec) -> NatsInbox:
    """Return the inbox of one durable consumer."""
    return await NatsInbox.open(
        runtime.js, stream=spec.stream, durable=spec.durable, filters=spec.filters
    )


def main() -> None:
    """Run until told to stop."""
    run(SERVICE, serve, SchedulerSettings())
