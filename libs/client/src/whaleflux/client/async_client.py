"""The async client: the sync one, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import httpx
from pydantic import PrivateAttr

from whaleflux.client import event_flow, flows, log_flow
from whaleflux.client.async_transport import AsyncTransport
from whaleflux.client.contexts import resolve
from whaleflux.client.models import (
    ExplanationView,
    GpuView,
    Identity,
    LogPiece,
    NodeView,
    PublicEvent,
    RunView,
    ValidationReport,
    WorkloadView,
)
from whaleflux.common.clock import Clock
from whaleflux.common.ids import Ids, RandomIds

if TYPE_CHECKING:
    from whaleflux.common.contracts.workload import WorkloadSpec


class AsyncWorkload(WorkloadView):
    """A workload that can be waited for, read and cancelled."""

    _client: AsyncClient = PrivateAttr()

    @classmethod
    def bound(cls, view: WorkloadView, client: AsyncClient) -> AsyncWorkload:
        """Return *view* with the client that it came by."""
        found = cls.model_validate(view.model_dump())
        found._client = client
        return found

    async def refresh(self) -> AsyncWorkload:
        """Return how it stands now."""
        return await self._client.workload(self.id)

    async def wait(self, *, timeout_s: float | None = None) -> AsyncWorkload:
        """Return it once it has ended, in whatever way.

        Raises:
            WaitTimedOut: It has not ended within *timeout_s*.

        """
        return await self._client.wait(self.id, timeout_s=timeout_s)

    async def cancel(self) -> AsyncWorkload:
        """Ask for its end."""
        return await self._client.cancel(self.id)

    async def explain(self) -> ExplanationView:
        """Return why it stands where it stands."""
        return await self._client.explain(self.id)

    def runs(self) -> AsyncIterator[RunView]:
        """Iterate over its runs."""
        return self._client.runs(self.id)

    def logs(
        self,
        *,
        phase: str | None = None,
        iteration: int | None = None,
        attempt: int | None = None,
        rank: int = 0,
        offset: int = 0,
        follow: bool = False,
    ) -> AsyncIterator[LogPiece]:
        """Iterate over its logs; see `Client.logs`."""
        wanted = log_flow.LogFilter(phase, iteration, attempt, rank)
        return self._client.logs(self.id, wanted, offset=offset, follow=follow)


class AsyncClient:
    """Talks to a gateway. Use it as a context manager, or `close` it.

    Without *url* the address and key come from the environment (`WHALEFLUX_URL` and
    `WHALEFLUX_API_KEY`) or from the current context of the command line.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        context: str | None = None,
        retries: bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        pause: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        """Prepare the client; nothing is sent yet. *pause* waits so many seconds."""
        target = resolve(url=url, api_key=api_key, context=context)
        self.url = target.url
        self._ids = ids or RandomIds()
        self._transport = AsyncTransport(
            target, retries=retries, clock=clock, pause=pause, transport=transport
        )

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the connections back."""
        await self._transport.close()

    async def submit(
        self,
        workload: WorkloadSpec | str | Path,
        *,
        idempotency_key: str | None = None,
        workdir: Path | None = None,
    ) -> AsyncWorkload:
        """Submit *workload*: a spec, YAML text, or the path of a file.

        Its `workdir` folder (relative to the file; *workdir* overrides it) is uploaded first.
        The same *idempotency_key* never submits twice; a fresh one is drawn when None.

        Raises:
            SpecProblem: The file is wrong; every error names line and column.
            ApiProblem: The gateway or the scheduler refused it.

        """
        # Only here: the contract of workloads takes longer to import than a list takes to fetch.
        from whaleflux.client.workload_file import from_yaml

        spec = from_yaml(workload) if isinstance(workload, str | Path) else workload
        base = workload.parent if isinstance(workload, Path) else Path()
        spec = await self.with_uploaded_workdir(spec, base=base, workdir=workdir)
        key = idempotency_key or self._ids.new("key")
        return AsyncWorkload.bound(
            await self._transport.run(flows.submit(flows.wire_body(spec), idempotency_key=key)),
            self,
        )

    async def with_uploaded_workdir(
        self, spec: WorkloadSpec, *, base: Path, workdir: Path | None = None
    ) -> WorkloadSpec:
        """Return *spec* with its folder uploaded and replaced by `sha256:<hex>`."""
        from whaleflux.client.packing import packed

        folder = workdir or flows.workdir_folder(spec, base)
        if folder is None:
            return spec
        with ExitStack() as stack:
            archive = await asyncio.to_thread(stack.enter_context, packed(folder))
            await self._transport.run(flows.upload(archive.path, archive.sha256))
            return spec.model_copy(update={"workdir": archive.reference})

    async def upload(self, archive: Path, sha256: str) -> bool:
        """Put a packed folder into the store; return False when it was there already."""
        return await self._transport.run(flows.upload(archive, sha256))

    async def validate(self, spec: WorkloadSpec) -> ValidationReport:
        """Ask the gateway what it thinks of *spec* without submitting it."""
        return await self._transport.run(flows.validate(spec))

    async def workload(self, id_or_name: str) -> AsyncWorkload:
        """Return one workload by its id or its unique name."""
        return AsyncWorkload.bound(await self._transport.run(flows.workload(id_or_name)), self)

    def workloads(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        name: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[AsyncWorkload]:
        """Iterate over workloads, the newest first; pages are fetched as they are needed."""
        found = self._transport.iterate(
            flows.workloads(state=state, kind=kind, name=name, limit=limit)
        )
        return (AsyncWorkload.bound(view, self) async for view in found)

    def runs(self, workload: str, *, limit: int | None = None) -> AsyncIterator[RunView]:
        """Iterate over the runs of a workload."""
        return self._transport.iterate(flows.runs(workload, limit=limit))

    async def run(self, run_id: str) -> RunView:
        """Return one run."""
        return await self._transport.run(flows.run(run_id))

    async def wait(self, id_or_name: str, *, timeout_s: float | None = None) -> AsyncWorkload:
        """Return the workload once it has ended, in whatever way.

        Raises:
            WaitTimedOut: It has not ended within *timeout_s*.

        """
        return AsyncWorkload.bound(
            await self._transport.run(flows.wait(id_or_name, timeout_s=timeout_s)), self
        )

    async def cancel(self, id_or_name: str) -> AsyncWorkload:
        """Ask for a workload to end."""
        return AsyncWorkload.bound(await self._transport.run(flows.cancel(id_or_name)), self)

    async def explain(self, id_or_name: str) -> ExplanationView:
        """Return why a workload or a run stands where it stands."""
        return await self._transport.run(flows.explain(id_or_name))

    def logs(
        self,
        id_or_name: str,
        wanted: log_flow.LogFilter | None = None,
        *,
        offset: int = 0,
        follow: bool = False,
    ) -> AsyncIterator[LogPiece]:
        """Iterate over the logs of a workload or a run.

        With *follow* it waits for the start, goes on over lost connections and further attempts,
        and ends when the workload has.
        """
        return self._transport.iterate(
            log_flow.logs(
                id_or_name, wanted=wanted or log_flow.LogFilter(), offset=offset, follow=follow
            )
        )

    def events(
        self, *, since: int | None = None, follow: bool = True
    ) -> AsyncIterator[PublicEvent]:
        """Iterate over events after the cursor *since*, each once; reconnects by itself."""
        return self._transport.iterate(event_flow.events(since=since, follow=follow))

    def nodes(self, *, limit: int | None = None) -> AsyncIterator[NodeView]:
        """Iterate over the nodes of the fleet."""
        return self._transport.iterate(flows.nodes(limit=limit))

    def gpus(self, *, limit: int | None = None) -> AsyncIterator[GpuView]:
        """Iterate over the GPUs of the fleet."""
        return self._transport.iterate(flows.gpus(limit=limit))

    async def whoami(self) -> Identity:
        """Return whose key this is and what it may do."""
        return await self._transport.run(flows.whoami())

    async def healthy(self) -> bool:
        """Whether the gateway says it is well."""
        return await self._transport.run(flows.healthy())
