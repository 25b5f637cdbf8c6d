"""The demo's picture in a terminal: a map of the fleet, hand-overs, reward, the latest events."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from whaleflux.local.demo_story import Attempt, Story, percentile

COLOURS = (
    "bright_black",
    "cyan",
    "magenta",
    "yellow",
    "green",
    "bright_blue",
    "red",
    "bright_magenta",
    "white",
)
FREE = "·"
SPARKS = "▁▂▃▄▅▆▇█"
FEED_SHOWN = 8
REWARDS_SHOWN = 40


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node as the map shows it."""

    name: str
    gpu_type: str
    gpus: int


@dataclass(slots=True)
class Legend:
    """A letter and a colour for each phase; the letters tell them apart without colours."""

    letters: dict[str, str] = field(default_factory=dict)

    def letter(self, phase: str) -> str:
        """Return the letter of *phase*, chosen at first sight and never used twice."""
        if phase not in self.letters:
            taken = set(self.letters.values())
            spare = (*phase.upper().replace("_", ""), *"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
            self.letters[phase] = next((c for c in spare if c not in taken), "?")
        return self.letters[phase]

    def colour(self, phase: str) -> str:
        """Return the colour of *phase*."""
        self.letter(phase)
        return COLOURS[list(self.letters).index(phase) % len(COLOURS)]


def picture(
    story: Story,
    nodes: Sequence[NodeRow],
    legend: Legend,
    *,
    title: str,
    simulated: bool,
    elapsed_s: float,
    dead: frozenset[str] = frozenset(),
) -> RenderableType:
    """Return the whole picture; *dead* names the nodes whose agent was killed on purpose."""
    heading = Text(title, style="bold")
    if simulated:
        heading.append("   SIMULATED GPUs, real processes", style="bold black on yellow")
    heading.append(f"   {elapsed_s:4.0f} s", style="dim")
    return Group(
        heading,
        _fleet(story, nodes, legend, dead),
        _legend_line(story, legend),
        _numbers(story),
        Rule(style="dim"),
        *(Text(line, style="dim", no_wrap=True) for line in _last(story.feed)),
    )


def summary(story: Story, *, simulated: bool, notes: Sequence[str]) -> RenderableType:
    """Return what the demo says at its end."""
    table = Table(title="Phases", title_justify="left", header_style="bold")
    for column in ("phase", "runs", "attempts", "GPUs", "seconds"):
        table.add_column(column, justify="left" if column in ("phase", "GPUs") else "right")
    for phase in story.roles:
        tries = [a for a in story.attempts.values() if a.phase == phase and a.placed_at]
        seconds = [a.seconds for a in tries if a.seconds is not None]
        table.add_row(
            phase,
            str(len({a.run_id for a in tries})),
            str(len(tries)),
            ", ".join(sorted({_kind(a) for a in tries})),
            f"{sum(seconds):.1f}",
        )
    lines = [Text(note) for note in notes]
    if simulated:
        lines.append(Text("GPUs were simulated; the processes were real.", style="yellow"))
    return Group(table, Panel(Group(*lines), title="What happened", title_align="left"))


def sparkline(values: Sequence[float]) -> str:
    """Return *values* as a row of blocks, the lowest to the highest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    width = (high - low) or 1.0
    return "".join(SPARKS[int((value - low) / width * (len(SPARKS) - 1))] for value in values)


def _fleet(
    story: Story, nodes: Sequence[NodeRow], legend: Legend, dead: frozenset[str]
) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    for node in nodes:
        cells = Text()
        for index in range(node.gpus):
            holder = story.holders.get((node.name, index))
            if holder is None:
                cells.append(f" {FREE} ", style="dim")
            else:
                cells.append(
                    f" {legend.letter(holder.phase)} ",
                    style=f"bold black on {legend.colour(holder.phase)}",
                )
            cells.append(" ")
        state = Text("agent killed", style="bold red") if node.name in dead else Text("")
        table.add_row(Text(node.name), Text(node.gpu_type, style="dim"), cells, state)
    return table


def _legend_line(story: Story, legend: Legend) -> Text:
    line = Text()
    running = {attempt.phase: attempt for attempt in story.live()}
    for phase in story.roles:
        live = phase in running
        style = f"black on {legend.colour(phase)}" if live else legend.colour(phase)
        line.append(f" {legend.letter(phase)} ", style=f"bold {style}")
        number = f" #{running[phase].iteration}" if live else ""
        line.append(f" {phase}{number}  ", style="" if live else "dim")
    return line


def _numbers(story: Story) -> Text:
    line = Text(f"phases run {story.phases_run}")
    p50, p95 = percentile(story.gaps_ms, 0.5), percentile(story.gaps_ms, 0.95)
    if p50 is not None and p95 is not None:
        line.append(f"   hand-over gap p50 {p50:.0f} ms, p95 {p95:.0f} ms")
    phase, rewards = story.reward_line
    if rewards:
        shown = sparkline(rewards[-REWARDS_SHOWN:])
        line.append(f"   reward of {phase} {shown} {rewards[-1]:.3f}", style="green")
    return line


def _last(feed: Sequence[str]) -> list[str]:
    shown = list(feed[-FEED_SHOWN:])
    return shown + [""] * (FEED_SHOWN - len(shown))


def _kind(attempt: Attempt) -> str:
    return f"{len(attempt.gpus)} × {attempt.gpu_type}" if attempt.gpus else "none"
