"""The agent as a whole: everything it owns, and the order in which it comes to life."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from whaleflux.agent.shell import machine
from whaleflux.agent.shell.assignments import Assignments
from whaleflux.agent.shell.environment import Node
from whaleflux.agent.shell.folders import NodeFolder
from whaleflux.agent.shell.gpu_gate import GpuGate
from whaleflux.agent.shell.lease_client import ANSWER_TIMEOUT_S, LeaseClient
from whaleflux.agent.shell.logs import read_log
from whaleflux.agent.shell.member import Surroundings
from whaleflux.agent.shell.members import Members
from whaleflux.agent.shell.outbox import Outbox, OutboxMessage
from whaleflux.agent.shell.probe import Probe
from whaleflux.agent.shell.settings import AgentSettings
from whaleflux.agent.shell.shim_parts.kernel import boot_id
from whaleflux.common.bus import BusMessage
from whaleflux.common.clock import Clock
from whaleflux.common.contracts import subjects
from whaleflux.common.contracts.agent import Gpu, LogRequest, NodeStarted
from whaleflux.common.contracts.assignment import STORE_LOCAL
from whaleflux.common.errors import Refused
from whaleflux.common.ids import Ids
from whaleflux.common.jetstream import JetStream
from whaleflux.common.observe import trace_headers

PUBLISH_TIMEOUT_S = 5.0
INVENTORY_EVERY_S = 30.0
"""Between two looks for GPUs that came (a driver was loaded) or went."""
STOP_SLACK_S = 10.0
"""Beyond the longest grace, for the last reports to be acknowledged at a clean stop."""

_log = logging.getLogger(__name__)


class AgentService:
    """One node's agent."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        js: JetStream,
        clock: Clock,
        ids: Ids,
        probe: Probe,
        group: asyncio.TaskGroup,
        say_health: Callable[[str, bool, str], None],
    ) -> None:
        self._settings = settings
        self._js = js
        self._clock = clock
        self._probe = probe
        self._group = group
        self._say_health = say_health
        self._starts_told = 0
        self._gpus: tuple[Gpu, ...] | None = None
        self._folder = NodeFolder(Path(settings.node_root).absolute())
        # Members of other Unix users pass through on the way to what is theirs.
        mode = 0o711 if settings.member_users else 0o700
        self._folder.root.mkdir(parents=True, exist_ok=True, mode=mode)
        self._lock = machine.hold_alone(self._folder.lock)
        self._folder.create()
        self.node = self._describe(settings, ids)
        self.outbox = Outbox(
            self._folder.outbox,
            node_id=settings.node_id,
            publish=self._publish,
            group=group,
        )
        gate = GpuGate(probe)
        self.members = Members(
            self._folder,
            Surroundings(
                node=self.node,
                outbox=self.outbox,
                clock=clock,
                group=group,
                gpus_free=gate.wait_free,
            ),
        )
        self.assignments = Assignments(
            js, node_id=settings.node_id, folder=self._folder, accept=self.members.accept
        )
        self.lease = LeaseClient(
            node=self.node,
            clock=clock,
            ask=self._ask_lease,
            leased=self.members,
            before_clean=self._before_clean,
            on_granted_again=self._tell_started,
            say_health=say_health,
        )

    async def run(self) -> None:
        """Go on from the disk, then follow the bus until cancelled."""
        self.outbox.restore()
        self.members.restore()
        self.assignments.restore()
        self._group.create_task(self.members.run())
        await self._js.bus.answer(self._question("logs"), self._answer_logs)
        self._group.create_task(self._tell_inventory())
        self._group.create_task(self.lease.keep())
        self._group.create_task(self.assignments.follow())
        try:
            await asyncio.Event().wait()
        finally:
            if self._settings.members_on_stop == "stop":
                await self._stop_members()
            os.close(self._lock)

    def holders(self) -> Mapping[int, str]:
        """Return the run that holds each GPU that is not free."""
        return self.members.holders()

    def _describe(self, settings: AgentSettings, ids: Ids) -> Node:
        simulated = self._probe.simulated
        allow_root = settings.allow_root_members
        return Node(
            node_id=settings.node_id,
            agent_id=ids.new("ag"),
            boot_id=boot_id(),
            simulated=simulated,
            folder=self._folder,
            stores={
                **machine.reachable(settings.stores),
                STORE_LOCAL: self._folder.local_store,
            },
            addresses=settings.node_addresses,
            users=settings.member_users,
            allow_root=simulated if allow_root is None else allow_root,
            member_nice=settings.member_nice,
        )

    def _question(self, name: str) -> str:
        return subjects.agent_question(self.node.node_id, name)

    async def _publish(self, message: OutboxMessage) -> None:
        await self._js.publish(
            message.subject,
            message.body,
            msg_id=message.msg_id,
            headers={subjects.HEADER_TYPE: message.type, **trace_headers()},
            timeout_s=PUBLISH_TIMEOUT_S,
        )

    async def _ask_lease(self, body: bytes) -> bytes:
        subject = subjects.question("failover", "lease", of=self.node.node_id)
        answer = await self._js.bus.request(subject, body, timeout_s=ANSWER_TIMEOUT_S)
        return answer.body

    async def _before_clean(self) -> None:
        """Renounce all that was assigned before the node was given up, read at the last moment."""
        await self.assignments.refresh()
        self.members.renounce_unstarted()

    async def _answer_logs(self, message: BusMessage) -> bytes:
        try:
            request = LogRequest.model_validate_json(message.body, extra="ignore")
        except ValueError as error:
            raise Refused(f"not a log request: {error}", code="bad_request") from error
        reply = await asyncio.to_thread(read_log, self._folder, request)
        return reply.model_dump_json().encode()

    async def _tell_inventory(self) -> None:
        while True:
            found = await self._probe.inventory()
            if found != self._gpus:
                self._gpus = found
                self._say_health("devices", True, f"{len(found)} GPUs")
                self._tell_started()
            await asyncio.sleep(INVENTORY_EVERY_S)

    def _tell_started(self) -> None:
        if self._gpus is None:
            return
        self._starts_told += 1
        node = self.node
        event = NodeStarted(
            at=self._clock.now(),
            node_id=node.node_id,
            boot_id=node.boot_id,
            agent_id=node.agent_id,
            simulated=node.simulated,
            gpus=self._gpus,
            cpus=machine.cpus(),
            memory_mib=machine.memory_mib(),
            stores=tuple(sorted(name for name in node.stores if name != STORE_LOCAL)),
        )
        self.outbox.post(
            event,
            about=node.node_id,
            lane="node",
            msg_id=f"{node.agent_id}.started.{self._starts_told}",
        )

    async def _stop_members(self) -> None:
        """End every member; bounded, since the one who asked us to stop will not wait for ever."""
        try:
            async with asyncio.timeout(self.members.longest_grace_s + STOP_SLACK_S):
                await self.members.stop_all()
        except TimeoutError:
            _log.warning("members outlive the agent", extra={"alive": self.members.alive})
