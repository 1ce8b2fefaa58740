"""What `orbitlens cut` shows on a terminal."""

from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from orbitlens.cutting.cut_result import Cut
from orbitlens.cutting.measuring import PartLoss
from orbitlens.cutting.words import is_free, summary_sentences
from orbitlens.running.removal import PartKind
from orbitlens.terminal.fitted_table import Column, FittedTable

BLOCKS = (PartKind.LAYER, PartKind.ATTENTION, PartKind.MLP)


def cut_view(result: Cut, console: Console) -> Iterator[RenderableType]:
    """Yield the summary, a table of layers with what would have foretold it, and of heads."""
    info = result.model
    yield Text(f"{info.name}  {info.n_layers} layers, {info.n_heads} heads a layer\n")
    for sentence in summary_sentences(result):
        yield Text(sentence)
    yield Text("")
    yield _layers(result)
    yield Text(
        f"loss more than the whole model's ({result.loss_kind.value}); dim: nothing that shows. "
        "±: standard error of that without the layer. Right: scores that know no loss, low for "
        "layers to cut",
        style="dim",
    )
    if result.of_kind(PartKind.HEAD):
        yield Text("")
        yield _heads(result)
    if result.chosen is not None:
        yield Text(
            f"\nllama.cpp: llama-quantize --prune-layers {result.llama_cpp()}   "
            "mergekit: --mergekit FILE   checkpoint: --write DIR",
            style="dim",
        )
    for flag in result.flags:
        yield Text(f"note: {flag}", style="dim")
    yield Text(
        f"{result.n_tokens} tokens in {result.n_contexts} contexts ({result.text}), "
        f"{result.cost.seconds:.1f} s",
        style="dim",
    )


def _layers(result: Cut) -> FittedTable:
    kinds = [kind for kind in BLOCKS if result.of_kind(kind)]
    samples = {row.n_contexts for row in result.of_kind(PartKind.LAYER)}
    measured: list[tuple[str, Callable[[PartLoss], str]]] = [
        ("±", lambda row: "" if row.deviation is None else f"{row.deviation:.3f}")
    ]
    if len(samples) > 1:
        measured.append(("contexts", lambda row: str(row.n_contexts)))
    columns = [Column("layer")]
    for kind in kinds:
        columns.append(Column(f"no {kind}"))
        columns += [Column(name) for name, _ in measured if kind is PartKind.LAYER]
    columns += [Column(ranking.method) for ranking in result.rankings]
    by_kind = {kind: {row.part.layer: row for row in result.of_kind(kind)} for kind in kinds}
    gone = () if result.chosen is None else result.chosen.layers
    rows: list[list[str | Text]] = []
    for layer in range(result.model.n_layers):
        name = Text(f"{layer} ✂" if layer in gone else str(layer), style="bold" * (layer in gone))
        cells: list[str | Text] = [name]
        for kind in kinds:
            row = by_kind[kind][layer]
            cells.append(Text(f"{row.difference:+.3f}", style="dim" if is_free(row) else ""))
            cells += [text(row) for _, text in measured if kind is PartKind.LAYER]
        cells += [f"{ranking.scores[layer]:.3g}" for ranking in result.rankings]
        rows.append(cells)
    return FittedTable(columns=columns, rows=rows)


def _heads(result: Cut) -> FittedTable:
    rows = result.of_kind(PartKind.HEAD)
    n_heads = max(row.part.head or 0 for row in rows) + 1
    columns = [Column("layer"), *(Column(f"head {head}") for head in range(n_heads))]
    cells: dict[int, list[str | Text]] = {}
    for row in rows:
        line = cells.setdefault(row.part.layer, [str(row.part.layer)])
        line.append(Text(f"{row.difference:+.3f}", style="dim" if is_free(row) else ""))
    return FittedTable(columns=columns, rows=list(cells.values()))
