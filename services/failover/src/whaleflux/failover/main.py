"""Put failover together and run it."""

from pathlib import Path

from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.failover import FailoverRecord, LeaderElected, read_failover_record
from whaleflux.common.lease import LeaderLease
from whaleflux.common.nats_log import NatsLog
from whaleflux.common.runtime import Runtime, run
from whaleflux.common.snapshots import FileSnapshots, schema_of
from whaleflux.common.streams import ensure_streams
from whaleflux.failover.core import evolve, state
from whaleflux.failover.core.state import State
from whaleflux.failover.shell.holder import Holder
from whaleflux.failover.shell.service import Service
from whaleflux.failover.shell.settings import FailoverSettings

SERVICE = "failover"


def subject_of(event: FailoverRecord) -> str:
    """Return where *event* goes: a fact is about a node, or about who leads."""
    of = event.term if isinstance(event, LeaderElected) else event.node_id
    return subjects.event(event.type, of)


async def serve(runtime: Runtime) -> None:
    """Wire failover to its streams and lead whenever the lease allows."""
    await ensure_streams(runtime.js, [subjects.STREAM_FAILOVER, subjects.STREAM_LEASES])
    folder = Path(runtime.settings.state_dir)
    holder = Holder(folder, runtime.ids)
    lease = LeaderLease(runtime.js, runtime.clock, key=SERVICE, holder=holder.name)
    snapshots: FileSnapshots[State] = FileSnapshots(
        folder / "failover.snapshot", schema=schema_of([state, evolve])
    )
    service = Service(
        log=NatsLog(
            runtime.js,
            stream=subjects.STREAM_FAILOVER,
            reader=read_failover_record,
            subject_of=subject_of,
        ),
        lease=lease,
        bus=runtime.bus,
        clock=runtime.clock,
        ids=runtime.ids,
        snapshots=snapshots,
        on_change=lambda ok, detail: runtime.health.set("log", ok, detail),
    )
    runtime.group.create_task(lease.keep())
    await service.run()


def main() -> None:
    """Run until told to stop."""
    run(SERVICE, serve, FailoverSettings())
