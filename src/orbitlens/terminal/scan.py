"""Scan -> what a terminal shows: a summary in words, a table of layers, a map of heads.

Enters: results. Leaves: Rich renderables that fit 80 columns, or fewer where the console is
narrower; colour is the console's business.
"""

from collections import Counter
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from orbitlens.scanning.scan_result import HeadScan, LayerScan, Scan, Tendency
from orbitlens.terminal.fitted_table import Column, FittedTable, text_column, view_width
from orbitlens.theory.certificates import THEOREMS, Certificate

STRONG = 0.2  # expansion index beyond which a cell of the map is drawn full
# Orange spreads, blue gathers: told apart by every kind of colour vision, on dark and light.
STYLES = {Tendency.SPREADS: "orange3", Tendency.GATHERS: "dodger_blue1", Tendency.NEUTRAL: "dim"}
SYMBOLS = {Tendency.SPREADS: "▲△", Tendency.GATHERS: "▼▽", Tendency.NEUTRAL: "··"}
ASCII_SYMBOLS = {Tendency.SPREADS: "Oo", Tendency.GATHERS: "Xx", Tendency.NEUTRAL: ".."}


def scan_view(scan: Scan, console: Console) -> Iterator[RenderableType]:
    """Yield the parts of a scan's report, top to bottom."""
    yield _title(scan)
    yield Padding(Text(scan.summary()), (0, 0, 1, 0))
    for stack in scan.model.stacks:
        layers = [layer for layer in scan.layers if layer.stack == stack.name]
        if not layers:  # none of those asked for
            continue
        if len(scan.model.stacks) > 1:
            yield Text(
                f"{stack.name} ({stack.position.value}, {_mask(stack.causal)})", style="bold"
            )
        yield _layer_table(layers)
        yield _head_map(layers, console)
    yield _legend(console)
    yield _certificate_table(scan)
    if scan.flags:
        yield Padding(_notes(scan.flags), (1, 0, 0, 0))
    yield Text(_cost_line(scan), style="dim")


def _mask(causal: bool) -> str:
    return "causal" if causal else "full attention"


def _title(scan: Scan) -> Text:
    model = scan.model
    heads = f"{model.n_heads} heads"
    if model.n_kv_heads != model.n_heads:
        heads += f" over {model.n_kv_heads} key/value heads"
    line = Text()
    line.append(f"{model.family}", style="bold")
    line.append(
        f"  {model.n_layers} layers × {heads}, width {model.d_model}, "
        f"{_count(model.parameters)} parameters, {model.position.value} positions, "
        f"{_mask(model.causal)}\n"
    )
    return line


def _count(number: int) -> str:
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


# --- tables ----------------------------------------------------------------------------------


def _layer_table(layers: list[LayerScan]) -> FittedTable:
    in_context = any(layer.rotary is not None for layer in layers)
    data_aware = any(layer.data_aware is not None for layer in layers)
    names = ["layer", "index", "rates: min", "mean", "max"]
    names += ["in context"] if in_context else []
    names += ["with data"] if data_aware else []
    rows = []
    for layer in layers:
        counts = Counter(head.tendency for head in layer.heads)
        row = [Text(str(layer.layer)), _index_text(layer.expansion_index)]
        row += [Text(_number(v)) for v in (layer.rates.min, layer.rates.mean, layer.rates.max)]
        if in_context:
            row.append(_index_text(layer.rotary.expansion_index if layer.rotary else None))
        if data_aware:
            row.append(_index_text(layer.data_aware.expansion_index if layer.data_aware else None))
        row += [Text(str(counts[t]) if counts[t] else "") for t in STYLES]
        rows.append(row)
    return FittedTable([Column(name) for name in (*names, "spread", "gather", "neutral")], rows)


def _index_text(index: float | None) -> Text:
    if index is None:
        return Text("")
    style = STYLES[Tendency.SPREADS if index > 0 else Tendency.GATHERS]
    return Text(f"{index:+.3f}", style=style)


def _number(value: float) -> str:
    return f"{value:+.3f}" if 1e-3 <= abs(value) < 1e3 or value == 0 else f"{value:+.0e}"


def _head_map(layers: list[LayerScan], console: Console) -> Padding:
    symbols = SYMBOLS if (console.encoding or "").lower().startswith("utf") else ASCII_SYMBOLS
    n_heads = max(len(layer.heads) for layer in layers)
    width = view_width(console)
    gap = " " if 2 * n_heads + 8 <= width else ""
    per_line = max(1, (width - 8) // (1 + len(gap)))
    text = Text("map of heads, one column a head\n", style="bold")
    for layer in layers:
        for start in range(0, len(layer.heads), per_line):
            text.append(f"{layer.layer:>5}  " if start == 0 else " " * 7, style="not bold")
            for head in layer.heads[start : start + per_line]:
                strong = abs(head.expansion_index) >= STRONG
                symbol = symbols[head.tendency][0 if strong else 1]
                text.append(symbol + gap, style="not bold " + STYLES[head.tendency])
            text.append("\n")
    text.rstrip()
    return Padding(text, (1, 0, 1, 0))


def _legend(console: Console) -> Text:
    symbols = SYMBOLS if (console.encoding or "").lower().startswith("utf") else ASCII_SYMBOLS
    text = Text()
    for tendency, word in ((Tendency.SPREADS, "spreads"), (Tendency.GATHERS, "gathers")):
        text.append(" ".join(symbols[tendency]), style=STYLES[tendency])
        text.append(f" {word}   ")
    text.append(symbols[Tendency.NEUTRAL][0], style=STYLES[Tendency.NEUTRAL])
    text.append(f" neither beyond chance   (full: |index| ≥ {STRONG})\n")
    return text


def _certificate_table(scan: Scan) -> FittedTable:
    heads = [head for _, head in scan.heads()]
    rows = []
    for position, (name, theorem) in enumerate(THEOREMS.items()):
        certificates = [head.certificates[position] for head in heads]
        held = sum(certificate.holds for certificate in certificates)
        text = theorem.statement if held else _commonest_failure(certificates)
        mask = theorem.survives_mask.split(";")[0]
        survives = "survives" if theorem.survives_rotary else "voids it"
        rows.append([name, f"{held}/{len(heads)}", text, mask, survives])
    columns = [
        text_column("proved", wraps=False),
        Column("heads"),
        text_column("what it says, or what is missing first"),
        text_column("mask", wraps=False),
        text_column("rotary", wraps=False),
    ]
    return FittedTable(columns, rows, full=True)


def _commonest_failure(certificates: list[Certificate]) -> str:
    failures = Counter(
        hypothesis.name
        for certificate in certificates
        for hypothesis in certificate.hypotheses
        if not hypothesis.holds
    )
    return "not shown: " + failures.most_common(1)[0][0]


def _notes(flags: tuple[str, ...]) -> FittedTable:
    columns = [text_column(), text_column()]
    return FittedTable(columns, [["note", flag] for flag in flags], header=False, full=True)


def _cost_line(scan: Scan) -> str:
    cost = scan.cost
    peak = "" if cost.peak_rss_bytes is None else f", peak memory {_bytes(cost.peak_rss_bytes)}"
    return f"read {_bytes(cost.bytes_read)} in {cost.seconds:.2f} s{peak}"


def _bytes(number: int) -> str:
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} bytes"


# --- one head --------------------------------------------------------------------------------


def head_view(layer: LayerScan, head: HeadScan) -> Iterator[RenderableType]:
    """Yield everything that is known of one head, with the reasons of its certificates."""
    yield Text(f"{layer.stack} layer {layer.layer}, head {head.head}", style="bold")
    rows = list(_head_rows(head))
    for certificate in head.certificates:
        holds = "holds" if certificate.holds else "no"
        rows.append((f"{certificate.name} {holds}", certificate.why))
    yield FittedTable([text_column(wraps=False), text_column()], rows, header=False, full=True)


def _head_rows(head: HeadScan) -> Iterator[tuple[str, str]]:
    signs = f"{head.alignment_signs[0]} positive, {head.alignment_signs[1]} negative directions"
    yield "tendency", f"{head.tendency.value} ({head.alignment_sigmas:+.1f} sigma from chance)"
    yield "expansion index", f"{head.expansion_index:+.4f}"
    yield "rates", f"{head.rates.min:+.4g} to {head.rates.max:+.4g}, mean {head.rates.mean:+.4g}"
    yield "regime", f"{head.regime.value} (signs of all rates)"
    yield "alignment <V,W>", f"{head.alignment:+.4f}; on the range of V {signs}"
    yield (
        "value map V",
        f"abscissa {head.ov_abscissa:.4g}, radius {head.ov_radius:.4g}, copying "
        f"{head.ov_copying:+.3f}, largest singular value {head.ov_speed_limit:.4g}",
    )
    yield "score map W", f"symmetry {head.qk_symmetry:+.3f}, norm {head.qk_norm:.4g}"
    if head.rotary is not None:
        energy = " ".join(f"{share:.2f}" for share in head.rotary.energy[:8])
        yield (
            f"in {head.rotary.context} tokens",
            f"index {head.rotary.expansion_index:+.4f}, {head.rotary.survival:.0%} of the rates "
            f"survive; energy by frequency, fast to slow: {energy}"
            + (" ..." if len(head.rotary.energy) > 8 else ""),
        )
    if head.data_aware is not None:
        yield "with data", f"index {head.data_aware.expansion_index:+.4f}"
