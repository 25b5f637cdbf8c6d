"""`whaleflux demo`: a fleet of one's own, a pipeline on it, and what happened, in a minute."""

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live

from whaleflux.client import AsyncClient, from_yaml
from whaleflux.client.models import PublicEvent
from whaleflux.common.contracts.workload import Accelerator, WorkloadSpec
from whaleflux.common.errors import Refused, Unavailable, WhalefluxError
from whaleflux.common.observe import configure_logging
from whaleflux.local.demo_kill import AgentKill
from whaleflux.local.demo_story import Story, kind_of
from whaleflux.local.demo_verdict import Verdict, judge
from whaleflux.local.demo_view import Legend, NodeRow, picture, summary
from whaleflux.local.fleet import DEFAULT_FLEET, Node, count_real_gpus, parse_fleet, real_fleet
from whaleflux.local.lifetime import one_error, until_signalled
from whaleflux.local.paths import StatePaths
from whaleflux.local.processes import of_state
from whaleflux.local.session import Session, running_stack, scratch_folder
from whaleflux.local.witness import read_witness

PIPELINE = Path("examples") / "rft" / "pipeline.yaml"
TIMEOUT_S = 240.0
"""The pipeline takes well under a minute on two idle cores; a busy machine gets the rest."""
REPAINT_S = 0.25
KILLABLE = ("agent",)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the caller wants to see."""

    as_json: bool = False
    kill: str | None = None
    real: bool = False
    keep: bool = False
    pipeline: Path | None = None
    fleet: str | None = None


@dataclass(slots=True)
class Demo:
    """One demo, from its first line to its verdict."""

    options: DemoOptions
    nodes: tuple[Node, ...]
    pipeline: Path
    spec: WorkloadSpec
    out: Console
    story: Story = field(default_factory=Story)
    legend: Legend = field(default_factory=Legend)
    kill: AgentKill | None = None
    live: Live | None = None
    began_s: float = 0.0

    @property
    def simulated(self) -> bool:
        """Whether the GPUs are made up."""
        return all(node.simulated for node in self.nodes)

    def say(self, line: str) -> None:
        """Show a line of progress."""
        if self.live is None:
            self.out.print(
                f"{self.elapsed_s:6.1f} s  {line}", highlight=False, markup=False, soft_wrap=True
            )

    @property
    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return asyncio.get_running_loop().time() - self.began_s

    def paint(self, rows: list[NodeRow]) -> None:
        """Draw the present picture, where somebody looks at a terminal."""
        if self.live is None:
            return
        dead = frozenset({self.kill.node} if self.kill and self.kill.node else ())
        self.live.update(
            picture(
                self.story,
                rows,
                self.legend,
                title="WhaleFlux demo",
                simulated=self.simulated,
                elapsed_s=self.elapsed_s,
                dead=dead,
            ),
            refresh=True,
        )


def run_demo(options: DemoOptions) -> int:
    """Run the demo; return 0 only if everything that it claims holds."""
    try:
        verdict = asyncio.run(_run(_prepare(options)))
    except WhalefluxError as error:
        click.echo(error.message, err=True)
        if options.as_json:
            click.echo(json.dumps({"ok": False, "error": error.message}))
        return 1
    if verdict is None:
        click.echo("Stopped; nothing is left running.", err=True)
        return 130
    if options.as_json:
        click.echo(json.dumps(verdict.as_json()))
    return 0 if verdict.ok else 1


def find_pipeline() -> Path:
    """Return the pipeline that comes with a checkout of WhaleFlux.

    Raises:
        Refused: There is none near here.

    """
    for folder in (Path.cwd(), *Path(__file__).resolve().parents):
        if (folder / PIPELINE).is_file():
            return folder / PIPELINE
    raise Refused(
        f"The demo's pipeline {PIPELINE} is not here: run it from a checkout of WhaleFlux, "
        "or name a workload file with --pipeline.",
        code="no_pipeline",
    )


def fitted(spec: WorkloadSpec, *, gpu_type: str, gpus: int) -> WorkloadSpec:
    """Return *spec* made to fit one machine with *gpus* GPUs of *gpu_type*."""
    phases = []
    for phase in spec.phases:
        wanted = phase.resources.gpus_per_node
        accelerators = (Accelerator(type=gpu_type, count=min(wanted, gpus)),) if wanted else ()
        resources = phase.resources.model_copy(update={"accelerators": accelerators})
        phases.append(phase.model_copy(update={"resources": resources, "num_nodes": 1}))
    return spec.model_copy(update={"phases": tuple(phases)})


def _prepare(options: DemoOptions) -> Demo:
    if options.kill is not None and options.kill not in KILLABLE:
        raise Refused(
            f"--kill {options.kill}: the demo can kill {', '.join(KILLABLE)}.", code="kill"
        )
    nodes = real_fleet() if options.real else parse_fleet(options.fleet or DEFAULT_FLEET)
    if options.kill is not None and len(nodes) < 2:
        raise Refused("--kill needs a second node to go on with; this fleet has one.", code="kill")
    pipeline = options.pipeline or find_pipeline()
    spec = from_yaml(pipeline)
    return Demo(
        options=options,
        nodes=nodes,
        pipeline=pipeline,
        spec=spec,
        # With --json, stdout is for one object alone.
        out=Console(stderr=options.as_json, file=sys.stderr if options.as_json else None),
        kill=AgentKill.in_middle_of(spec) if options.kill == "agent" else None,
    )


async def _run(demo: Demo) -> Verdict | None:
    """Return what the demo found, or None where a signal ended it."""
    demo.began_s = asyncio.get_running_loop().time()
    verdict: Verdict | None = None
    async with until_signalled(), one_error(), scratch_folder(keep=demo.options.keep) as paths:
        ready_s = await _tell(demo, paths)
        left = [process.name for process in of_state(paths.root)]
        verdict = judge(
            demo.story,
            read_witness(paths.store),
            simulated=demo.simulated,
            # Other pipelines than ours need not have an evaluation.
            expects_reward=demo.options.pipeline is None,
            kill=demo.kill,
            left=left,
            ready_s=ready_s,
            total_s=demo.elapsed_s,
        )
        notes = list(verdict.notes)
        if demo.options.keep:
            notes.append(f"Checkpoints and outputs: {paths.store}")
            notes.append(f"Logs of every part: {paths.logs}")
        demo.out.print(summary(demo.story, simulated=demo.simulated, notes=notes))
    return verdict


async def _tell(demo: Demo, paths: StatePaths) -> float:
    paths.prepare()
    real = count_real_gpus()
    if demo.simulated and real:
        demo.say(f"found {real} GPUs on this machine: add --real to use them")
    kind = "simulated GPUs, real processes" if demo.simulated else "this machine's GPUs"
    demo.say(f"bringing up {len(demo.nodes)} nodes with {kind}")
    async with _log_kept(paths), running_stack(paths, demo.nodes) as session:
        demo.say(f"ready after {session.ready_s:.1f} s: {session.addresses.gateway_url}")
        key = paths.api_key.read_text().strip()
        async with AsyncClient(session.addresses.gateway_url, key) as client:
            rows = await _rows(demo, client)
            try:
                async with asyncio.timeout(TIMEOUT_S), _screen(demo, rows):
                    await _follow(demo, client, session, rows)
            except TimeoutError as error:
                raise Unavailable(
                    f"The pipeline has not ended after {TIMEOUT_S:.0f} s; its last word was: "
                    f"{demo.story.feed[-1] if demo.story.feed else 'nothing'}.",
                    code="timeout",
                ) from error
        return session.ready_s


async def _rows(demo: Demo, client: AsyncClient) -> list[NodeRow]:
    found: dict[str, NodeRow] = {}
    async for gpu in client.gpus():
        row = found.get(gpu.node_id)
        found[gpu.node_id] = NodeRow(gpu.node_id, gpu.type, 1 + (row.gpus if row else 0))
    return [found[node.name] for node in demo.nodes if node.name in found]


async def _follow(demo: Demo, client: AsyncClient, session: Session, rows: list[NodeRow]) -> None:
    spec = demo.spec
    if demo.options.real:
        spec = fitted(spec, gpu_type=rows[0].gpu_type, gpus=rows[0].gpus)
    workdir = None if spec.workdir is None else demo.pipeline.parent / spec.workdir
    workload = await client.submit(spec, workdir=workdir)
    demo.story.workload_id = workload.id
    demo.say(f"submitted {demo.pipeline.name} as {workload.id}")
    events: AsyncIterator[PublicEvent] = client.events(since=0)
    async for event in events:
        if event.time is None:
            continue
        line = demo.story.apply(kind_of(event.type), event.time, event.data)
        if line is not None:
            demo.say(line)
        if demo.kill is not None:
            told = demo.kill.consider(demo.story, session.stack.supervisor)
            if told is not None:
                demo.story.feed.append(told)
                demo.say(told)
        if demo.story.ended:
            return


@contextlib.asynccontextmanager
async def _log_kept(paths: StatePaths) -> AsyncIterator[None]:
    """Keep this process's own log beside those of the parts; the terminal stays the demo's."""
    with paths.log("demo").open("a") as log:
        with contextlib.redirect_stdout(log):
            configure_logging("demo", log_format="json")
        try:
            yield
        finally:
            logging.getLogger().handlers.clear()


@contextlib.asynccontextmanager
async def _screen(demo: Demo, rows: list[NodeRow]) -> AsyncIterator[None]:
    """Paint again and again while somebody looks at a terminal; else do nothing."""
    if not demo.out.is_terminal:
        yield
        return

    async def repaint() -> None:
        while True:
            demo.paint(rows)
            await asyncio.sleep(REPAINT_S)

    with Live(console=demo.out, auto_refresh=False, transient=False) as live:
        demo.live = live
        try:
            async with asyncio.TaskGroup() as group:
                painter = group.create_task(repaint())
                yield
                painter.cancel()
        finally:
            demo.paint(rows)
            demo.live = None
