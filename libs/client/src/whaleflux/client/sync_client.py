"""The sync client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import httpx
from pydantic import PrivateAttr

from whaleflux.client import event_flow, flows, log_flow
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
from whaleflux.client.sync_transport import SyncTransport
from whaleflux.common.clock import Clock
from whaleflux.common.ids import Ids, RandomIds

if TYPE_CHECKING:
    from whaleflux.common.contracts.workload import WorkloadSpec


class Workload(WorkloadView):
    """A workload that can be waited for, read and cancelled."""

    _client: Client = PrivateAttr()

    @classmethod
    def bound(cls, view: WorkloadView, client: Client) -> Workload:
        """Return *view* with the client that it came by."""
        found = cls.model_validate(view.model_dump())
        found._client = client
        return found

    def refresh(self) -> Workload:
        """Return how it stands now."""
        return self._client.workload(self.id)

    def wait(self, *, timeout_s: float | None = None) -> Workload:
        """Return it once it has ended, in whatever way.

        Raises:
            WaitTimedOut: It has not ended within *timeout_s*.

        """
        return self._client.wait(self.id, timeout_s=timeout_s)

    def cancel(self) -> Workload:
        """Ask for its end."""
        return self._client.cancel(self.id)

    def explain(self) -> ExplanationView:
        """Return why it stands where it stands."""
        return self._client.explain(self.id)

    def runs(self) -> Iterator[RunView]:
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
    ) -> Iterator[LogPiece]:
        """Iterate over its logs; see `Client.logs`."""
        wanted = log_flow.LogFilter(phase, iteration, attempt, rank)
        return self._client.logs(self.id, wanted, offset=offset, follow=follow)


class Client:
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
        transport: httpx.BaseTransport | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        """Prepare the client; nothing is sent yet. *pause* waits so many seconds."""
        target = resolve(url=url, api_key=api_key, context=context)
        self.url = target.url
        self._ids = ids or RandomIds()
        self._transport = SyncTransport(
            target, retries=retries, clock=clock, pause=pause, transport=transport
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._transport.close()

    def submit(
        self,
        workload: WorkloadSpec | str | Path,
        *,
        idempotency_key: str | None = None,
        workdir: Path | None = None,
    ) -> Workload:
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
        spec = self.with_uploaded_workdir(spec, base=base, workdir=workdir)
        key = idempotency_key or self._ids.new("key")
        return Workload.bound(
            self._transport.run(flows.submit(flows.wire_body(spec), idempotency_key=key)), self
        )

    def with_uploaded_workdir(
        self, spec: WorkloadSpec, *, base: Path, workdir: Path | None = None
    ) -> WorkloadSpec:
        """Return *spec* with its folder uploaded and replaced by `sha256:<hex>`."""
        from whaleflux.client.packing import packed

        folder = workdir or flows.workdir_folder(spec, base)
        if folder is None:
            return spec
        with packed(folder) as archive:
            self._transport.run(flows.upload(archive.path, archive.sha256))
            return spec.model_copy(update={"workdir": archive.reference})

    def upload(self, archive: Path, sha256: str) -> bool:
        """Put a packed folder into the store; return False when it was there already."""
        return self._transport.run(flows.upload(archive, sha256))

    def validate(self, spec: WorkloadSpec) -> ValidationReport:
        """Ask the gateway what it thinks of *spec* without submitting it."""
        return self._transport.run(flows.validate(spec))

    def workload(self, id_or_name: str) -> Workload:
        """Return one workload by its id or its unique name."""
        return Workload.bound(self._transport.run(flows.workload(id_or_name)), self)

    def workloads(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        name: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Workload]:
        """Iterate over workloads, the newest first; pages are fetched as they are needed."""
        found = self._transport.iterate(
            flows.workloads(state=state, kind=kind, name=name, limit=limit)
        )
        return (Workload.bound(view, self) for view in found)

    def runs(self, workload: str, *, limit: int | None = None) -> Iterator[RunView]:
        """Iterate over the runs of a workload."""
        return self._transport.iterate(flows.runs(workload, limit=limit))

    def run(self, run_id: str) -> RunView:
        """Return one run."""
        return self._transport.run(flows.run(run_id))

    def wait(self, id_or_name: str, *, timeout_s: float | None = None) -> Workload:
        """Return the workload once it has ended, in whatever way.

        Raises:
            WaitTimedOut: It has not ended within *timeout_s*.

        """
        return Workload.bound(
            self._transport.run(flows.wait(id_or_name, timeout_s=timeout_s)), self
        )

    def cancel(self, id_or_name: str) -> Workload:
        """Ask for a workload to end."""
        return Workload.bound(self._transport.run(flows.cancel(id_or_name)), self)

    def explain(self, id_or_name: str) -> ExplanationView:
        """Return why a workload or a run stands where it stands."""
        return self._transport.run(flows.explain(id_or_name))

    def logs(
        self,
        id_or_name: str,
        wanted: log_flow.LogFilter | None = None,
        *,
        offset: int = 0,
        follow: bool = False,
    ) -> Iterator[LogPiece]:
        """Iterate over the logs of a workload or a run.

        With *follow* it waits for the start, goes on over lost connections and further attempts,
        and ends when the workload has.
        """
        return self._transport.iterate(
            log_flow.logs(
                id_or_name, wanted=wanted or log_flow.LogFilter(), offset=offset, follow=follow
            )
        )

    def events(self, *, since: int | None = None, follow: bool = True) -> Iterator[PublicEvent]:
        """Iterate over events after the cursor *since*, each once; reconnects by itself."""
        return self._transport.iterate(event_flow.events(since=since, follow=follow))

    def nodes(self, *, limit: int | None = None) -> Iterator[NodeView]:
        """Iterate over the nodes of the fleet."""
        return self._transport.iterate(flows.nodes(limit=limit))

    def gpus(self, *, limit: int | None = None) -> Iterator[GpuView]:
        """Iterate over the GPUs of the fleet."""
        return self._transport.iterate(flows.gpus(limit=limit))

    def whoami(self) -> Identity:
        """Return whose key this is and what it may do."""
        return self._transport.run(flows.whoami())

    def healthy(self) -> bool:
        """Whether the gateway says it is well."""
        return self._transport.run(flows.healthy())
