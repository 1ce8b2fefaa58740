"""Scan -> what a terminal shows: a summary in words, a table of layers, a map of heads.

Enters: results. Leaves: Rich renderables that fit 80 columns, or fewer where the console is
narrower; colour is the console's business.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from orbitlens.scanning.scan_result import HeadScan, LayerScan, Orientation, Scan
from orbitlens.scanning.words import CLEAR, EFFECT_WORDS, effect_kind, scan_sentences
from orbitlens.terminal.colours import ABOVE, BELOW, NEITHER, sign_style
from orbitlens.terminal.cost import cost_line
from orbitlens.terminal.fitted_table import Column, FittedTable, text_column, view_width
from orbitlens.theory.certificates import NORMALISED, THEOREMS, Certificate, rounded_down

STRONG = 0.2  # expansion index beyond which a cell of the map is drawn full
STRONG_CHANGE = 0.05  # of ln(1 - C)
PROVABLE = THEOREMS | NORMALISED
MOST_HEADS = 16  # that a table shows one by one
STYLES = {Orientation.ALIGNED: ABOVE, Orientation.OPPOSED: BELOW, Orientation.NEUTRAL: NEITHER}
SYMBOLS = {Orientation.ALIGNED: "▲△", Orientation.OPPOSED: "▼▽", Orientation.NEUTRAL: "··"}
ASCII_SYMBOLS = {Orientation.ALIGNED: "Oo", Orientation.OPPOSED: "Xx", Orientation.NEUTRAL: ".."}
# What heads did to directions: one dot where they are gathered, a ring where they are spread.
EFFECTS = {"gathers": BELOW, "spreads": ABOVE, "neither": NEITHER}
EFFECT_SYMBOLS = dict(zip(EFFECTS, ("●•", "○◦", "··"), strict=True))
ASCII_EFFECT_SYMBOLS = dict(zip(EFFECTS, ("Gg", "Ss", ".."), strict=True))
NEXT = (
    "next  what heads do to tokens: orbitlens scan MODEL --text FILE; layer by layer: orbitlens "
    "trace MODEL --text FILE"
)


def scan_view(scan: Scan, console: Console) -> Iterator[RenderableType]:
    """Yield the parts of a scan's report, top to bottom."""
    yield _title(scan)
    yield Padding(Text(" ".join(scan_sentences(scan))), (0, 0, 1, 0))
    for stack in scan.model.stacks:
        layers = [layer for layer in scan.layers if layer.stack == stack.name]
        if not layers:  # none of those asked for
            continue
        if len(scan.model.stacks) > 1:
            yield Text(
                f"{stack.name} ({stack.position.value}, {_mask(stack.causal)})", style="bold"
            )
        yield _layer_table(layers)
        if scan.text is not None:
            yield _effect_map(layers, console)
        yield _index_map(layers, console)
    if scan.text is not None:
        yield Padding(_effect_table(scan), (0, 0, 1, 0))
    yield _certificate_table(scan)
    if scan.flags:
        yield Padding(_notes(scan.flags), (1, 0, 0, 0))
    if scan.text is None:
        yield Padding(Text(NEXT), (1, 0, 0, 0))
    yield Text(cost_line(scan.cost), style="dim")


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
    rows = [_layer_cells(layer) for layer in layers]
    shown = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    cells = [[row[name] or Text("") for name in shown] for row in rows]
    return FittedTable([Column(name) for name in shown], cells)


def _layer_cells(layer: LayerScan) -> dict[str, Text | None]:
    """Return the cells of a layer by column; None where there is nothing to show."""
    counts = Counter(head.orientation for head in layer.heads)
    effect, rates, data = layer.on_text, layer.rates, layer.data_aware
    return {
        "layer": Text(str(layer.layer)),
        "ΔS on text": None if effect is None else _signed(effect.log_change),
        "predicted": None if effect is None else _signed(effect.predicted),
        "index": _signed(layer.expansion_index),
        "in context": None if layer.rotary is None else _signed(layer.rotary.expansion_index),
        "with data": None if data is None else _signed(data.expansion_index),
        **{kind.value: Text(str(counts[kind] or "")) for kind in STYLES},
        "rate min": Text(_number(rates.min)),
        "mean": Text(_number(rates.mean)),
        "max": Text(_number(rates.max)),
    }


def _signed(value: float) -> Text:
    return Text(f"{value:+.3f}", style=sign_style(value))


def _number(value: float) -> str:
    return f"{value:+.3f}" if 1e-3 <= abs(value) < 1e3 or value == 0 else f"{value:+.0e}"


# --- maps ------------------------------------------------------------------------------------


def _index_map(layers: list[LayerScan], console: Console) -> Padding:
    """Draw how the two maps of each head lie to each other."""
    symbols = SYMBOLS if _has_symbols(console) else ASCII_SYMBOLS

    def cell(head: HeadScan) -> tuple[str, str]:
        weak = abs(head.expansion_index) < STRONG
        return symbols[head.orientation][weak], STYLES[head.orientation]

    named = {kind.value: (symbols[kind], STYLES[kind]) for kind in STYLES}
    text = _map("weights: the two maps of each head, one column a head", layers, cell, console)
    _add_legend(text, named, f"(full: |index| ≥ {STRONG})")
    return Padding(text, (1, 0, 1, 0))


def _effect_map(layers: list[LayerScan], console: Console) -> Padding:
    """Draw what each head did to the directions of the text's tokens."""
    symbols = EFFECT_SYMBOLS if _has_symbols(console) else ASCII_EFFECT_SYMBOLS

    def cell(head: HeadScan) -> tuple[str, str]:
        assert head.on_text is not None  # drawn only of a scan with a text
        kind = effect_kind(head.on_text)
        return symbols[kind][abs(head.on_text.log_change) < STRONG_CHANGE], EFFECTS[kind]

    named = {EFFECT_WORDS[kind]: (symbols[kind], EFFECTS[kind]) for kind in EFFECTS}
    text = _map("text: what each head does to directions, one column a head", layers, cell, console)
    _add_legend(text, named, f"(full: |ΔS| ≥ {STRONG_CHANGE}; neither: ≤ {CLEAR})")
    return Padding(text, (1, 0, 0, 0))


def _has_symbols(console: Console) -> bool:
    return (console.encoding or "").lower().startswith("utf")


def _map(
    title: str,
    layers: list[LayerScan],
    cell: Callable[[HeadScan], tuple[str, str]],  # symbol and style
    console: Console,
) -> Text:
    n_heads = max(len(layer.heads) for layer in layers)
    width = view_width(console)
    gap = " " if 2 * n_heads + 8 <= width else ""
    per_line = max(1, (width - 8) // (1 + len(gap)))
    text = Text(f"{title}\n", style="bold")
    for layer in layers:
        for start in range(0, len(layer.heads), per_line):
            text.append(f"{layer.layer:>5}  " if start == 0 else " " * 7, style="not bold")
            for head in layer.heads[start : start + per_line]:
                symbol, style = cell(head)
                text.append(symbol + gap, style="not bold " + style)
            text.append("\n")
    return text


def _add_legend(text: Text, named: Mapping[str, tuple[str, str]], note: str) -> None:
    for kind, (symbols, style) in named.items():
        text.append(" ".join(dict.fromkeys(symbols)), style="not bold " + style)
        text.append(f" {kind}   ", style="not bold")
    text.append(note, style="not bold")


def _effect_table(scan: Scan) -> FittedTable:
    """Return what heads did to tokens beside their index, the strongest first."""
    heads = [(layer, head, head.on_text) for layer, head in scan.heads() if head.on_text]
    heads.sort(key=lambda one: -abs(one[2].log_change))
    prefix = len(scan.model.stacks) > 1
    rows = [
        [
            f"{f'{layer.stack} ' if prefix else ''}{layer.layer}.{head.head}",
            _signed(effect.log_change),
            _signed(effect.predicted),
            effect_kind(effect),
            _signed(effect.raw_log_change),
            _signed(head.expansion_index),
            head.orientation.value,
        ]
        for layer, head, effect in heads[:MOST_HEADS]
    ]
    columns = [
        text_column("head", wraps=False),
        Column("ΔS on text"),
        Column("predicted"),
        text_column("directions", wraps=False),
        Column("raw distances"),
        Column("index"),
        text_column("maps", wraps=False),
    ]
    which = f"the {len(rows)} strongest of {len(heads)}" if len(rows) < len(heads) else "all"
    title = f"{which} heads on text; ΔS: change of ln(1 − C), C the mean cosine"
    return FittedTable(columns, rows, title)


def _certificate_table(scan: Scan) -> FittedTable:
    """Return the theorems that hold of some head or layer; then what the others lack first."""
    heads = [c for _, head in scan.heads() for c in head.certificates]
    layers = [c for layer in scan.layers for c in layer.certificates]
    rows, lacking = [], []
    for name in dict.fromkeys(certificate.name for certificate in heads):
        own, summed = ([c for c in group if c.name == name] for group in (heads, layers))
        margins = [c.margin for c in (*own, *summed) if c.holds]
        if margins:
            said = PROVABLE[name].statement
            rows.append([name, _held(own), _held(summed), said, _range(margins)])
        else:
            lacking.append(f"{name} ({_commonest_failure(own)})")
    if lacking:
        rows.append(["not", "", "", f"what is missing first: {', '.join(lacking)}", ""])
    columns = [
        text_column("proved", wraps=False),
        Column("heads"),
        Column("layers"),
        text_column("what it says"),
        text_column("margin", wraps=False),
    ]
    return FittedTable(columns, rows, _certificate_title(heads), full=True)


def _certificate_title(certificates: Sequence[Certificate]) -> str:
    seen = "normalised tokens" if any(c.name in NORMALISED for c in certificates) else "tokens"
    return f"{seen} in the flow of one head alone, or of all heads of a layer; no MLPs"


def _held(certificates: Sequence[Certificate]) -> str:
    return f"{sum(c.holds for c in certificates)}/{len(certificates)}" if certificates else ""


def _range(margins: Sequence[float]) -> str:
    ends = dict.fromkeys(rounded_down(end) for end in (min(margins), max(margins)))
    return " to ".join(ends)


def _commonest_failure(certificates: Sequence[Certificate]) -> str:
    failures = Counter(
        next(hypothesis.name for hypothesis in certificate.hypotheses if not hypothesis.holds)
        for certificate in certificates
    )
    return failures.most_common(1)[0][0]


def _notes(flags: tuple[str, ...]) -> FittedTable:
    columns = [text_column(), text_column()]
    return FittedTable(columns, [["note", flag] for flag in flags], header=False, full=True)


# --- one head --------------------------------------------------------------------------------


def head_view(layer: LayerScan, head: HeadScan) -> Iterator[RenderableType]:
    """Yield everything that is known of one head, with the reasons of its certificates."""
    yield Text(f"{layer.stack} layer {layer.layer}, head {head.head}", style="bold")
    rows = list(_head_rows(head))
    for certificate in head.certificates:
        holds = "holds" if certificate.holds else "no"
        margin = f"; margin {rounded_down(certificate.margin)}" if certificate.holds else ""
        rows.append((f"{certificate.name} {holds}", certificate.why + margin))
    yield FittedTable([text_column(wraps=False), text_column()], rows, header=False, full=True)


def _head_rows(head: HeadScan) -> Iterator[tuple[str, str]]:
    signs = f"{head.alignment_signs[0]} positive, {head.alignment_signs[1]} negative directions"
    if head.on_text is not None:
        effect, said = head.on_text, EFFECT_WORDS[effect_kind(head.on_text)]
        yield (
            "on text",
            f"{said}: ln(1 − C) changes by {effect.log_change:+.4f}, predicted "
            f"{effect.predicted:+.4f}; ln of raw squared distances by {effect.raw_log_change:+.4f}",
        )
    yield "maps", f"{head.orientation.value} ({head.alignment_sigmas:+.1f} sigma from chance)"
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
