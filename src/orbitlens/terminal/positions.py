"""What `orbitlens positions` shows on a terminal."""

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from orbitlens.encodings.evidence import Found, LayerPositions
from orbitlens.encodings.positions_result import Positions
from orbitlens.encodings.trial import HypothesisTrial
from orbitlens.encodings.words import summary_sentences
from orbitlens.terminal.cost import cost_line
from orbitlens.terminal.fitted_table import Column, FittedTable
from orbitlens.terminal.reach import reach_view

COLUMNS = (
    Column("layer"),
    Column("config", right=False),
    Column("weights say", right=False),
    Column("nats"),
    Column("over other"),
    Column("probability"),
    Column("energy"),
    Column("opposite"),
    Column("products"),
    Column("rows"),
    Column("crossed"),
    Column("balance"),
    Column("like others"),
)
LOSSES = (
    Column("hypothesis", right=False, wraps=True),
    Column("nats a token"),
    Column("difference"),
    Column("± s.e."),
)


def positions_view(result: Positions, console: Console) -> Iterator[RenderableType]:
    """Yield the verdict, layers, losses, and how to read them."""
    info = result.model
    yield Text(
        f"{info.name}  {info.n_layers} layers, heads of {info.d_head} coordinates, "
        f"config: {info.position.value} positions\n"
    )
    for sentence in summary_sentences(result):
        yield Text(sentence, style="bold red" if "disagree" in sentence else "")
    if result.layers:
        yield Text("")
        yield FittedTable(columns=COLUMNS, rows=[_row(each) for each in result.layers])
        yield Text(
            "nats: evidence for the likeliest rotation against none (energy to crossed are its "
            "parts; where others are sure, the likeness to them stands in for energy); over other: "
            "beyond the other pairing; probability: of the likeliest answer, other layers heard "
            "(not rotary is said only if balance shows training too); like others: nats for, or "
            "against, the energy over planes that other rotated layers have",
            style="dim",
        )
    if result.trials:
        yield Text("")
        yield FittedTable(columns=LOSSES, rows=[_loss_row(trial) for trial in result.trials])
        yield Text(f"loss on {result.n_tokens} tokens ({result.text})", style="dim")
    elif result.layers and result.reach is None:
        yield Text("Give a text (--text FILE) to test it by running the model.", style="dim")
    if result.reach is not None:
        yield from reach_view(result.reach)
    for flag in result.flags:
        yield Text(f"note: {flag}", style="dim")
    cost = result.cost
    yield Text(cost_line(cost), style="dim")


def _row(each: LayerPositions) -> list[str | Text]:
    says = each.found.value if each.rotated is None else str(each.rotated)
    style = {False: "bold red", True: "green", None: "dim"}[each.agrees]
    marks = each.marks
    name = str(each.layer) if each.stack == "decoder" else f"{each.stack} {each.layer}"
    return [
        name,
        "not rotary" if each.configured is None else str(each.configured),
        Text(says, style=style if each.found is not Found.UNKNOWN else "dim"),
        f"{each.nats:.1f}",
        f"{each.margin:.1f}",
        f"{min(each.probability, 0.9999):.4f}",
        f"{marks.energy:.1f}",
        f"{marks.opposite:.1f}",
        f"{marks.product:.1f}",
        f"{marks.balance:.1f}",
        f"{marks.crossed:.1f}",
        f"{each.balance:.2f}",
        "" if each.likeness is None else f"{each.likeness:.1f}",
    ]


def _loss_row(trial: HypothesisTrial) -> list[str | Text]:

    if trial.loss is None:
        return [f"{trial.name}: not run, {trial.note}", "", "", ""]
    style = "bold green" if trial.is_better else ""
    gap = "" if not trial.difference else f"{trial.difference:+.3f}"
    error = "" if not trial.deviation else f"{trial.deviation:.3f}"
    return [Text(trial.name, style=style), f"{trial.loss:.3f}", gap, error]
