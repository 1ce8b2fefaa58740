"""Models compared: curves on the same axes, and a table with what differs."""

from collections.abc import Callable, Sequence

from orbitlens.draw.figure import PALETTE, Curve, Panel
from orbitlens.reporting.chart import PageChart
from orbitlens.reporting.data import ModelReport
from orbitlens.reporting.effects import direction_word, own_effects
from orbitlens.reporting.markup import Row, Table, Value, table
from orbitlens.reporting.motion import Motion, motions
from orbitlens.tracing.trace_result import DEFAULT_CLOSURE, DirectionAgreement

STYLES = ("", "dashed", "dotted")  # beside colours, so that curves differ in print too


def comparison(models: Sequence[ModelReport]) -> Table:
    """Return a row a quantity, a column a model, and what each differs by from the first."""
    rows: list[Row] = []
    for name, value in QUANTITIES.items():
        values = [value(model) for model in models]
        rows.append([name, *values, *(_difference(values[0], v) for v in values[1:])])
    first, *rest = [model.name for model in models]
    columns = ("quantity", first, *rest, *(f"{name} − {first}" for name in rest))
    return Table(name="models", caption="Models side by side", columns=columns, rows=rows)


def _difference(first: Value, other: Value) -> Value:
    if isinstance(first, str) or isinstance(other, str) or first is None or other is None:
        return None
    return other - first


def comparison_table(models: Sequence[ModelReport]) -> str:
    """Return that table as HTML."""
    return table(comparison(models))


def comparison_charts(models: Sequence[ModelReport]) -> list[PageChart]:
    """Return the mean cosine and attention's running total of all models, over relative depth."""
    traced = [(model, motions(model.trace)[-1]) for model in models if model.trace is not None]
    if len(traced) < 2:
        return []
    return [
        _overlaid("cosine", "Mean cosine of directions through depth", traced, cosines),
        _overlaid("attention", "Attention: sum of changes of ln(1 − C)", traced, attention_sums),
    ]


def cosines(motion: Motion, model: ModelReport) -> list[float]:
    """Return C in front of each layer, and behind the last."""
    assert model.trace is not None
    here = [x.directions for x in model.trace.layers if x.stack == motion.stack]
    return [*(x.cosine_before for x in here), motion.cosine_last]


def attention_sums(motion: Motion, model: ModelReport) -> list[float]:
    """Return the sum of attention's changes of ln(1 - C) up to each layer, from 0."""
    sums = [0.0]
    for change in motion.by_layer("attention").values():
        sums.append(sums[-1] + change)
    return sums


def _overlaid(
    name: str,
    title: str,
    traced: Sequence[tuple[ModelReport, Motion]],
    values: Callable[[Motion, ModelReport], list[float]],
) -> PageChart:
    curves, rows = [], list[Row]()
    for k, (model, motion) in enumerate(traced):
        y = values(motion, model)
        x = [n / (len(y) - 1) for n in range(len(y))]
        style = STYLES[k % len(STYLES)]
        curves.append(
            Curve(x=x, y=y, label=model.name, colour=PALETTE[k % len(PALETTE)], markers=True,
                  dashed=style == "dashed", dotted=style == "dotted", width=2.2)
        )  # fmt: skip
        rows += [[model.name, n, share, v] for n, (share, v) in enumerate(zip(x, y, strict=True))]
    ends = [(0.0, "input"), (0.5, "half of the layers"), (1.0, "output")]
    panel = Panel(layers=curves, title=title, x_label="depth", x_ticks=ends)
    columns = ("model", "layers passed", "depth", name)
    numbers = Table(name=f"compared-{name}", caption=title, columns=columns, rows=rows)
    return PageChart(kind="compared", name=name, title=title, panel=panel, table=numbers,
                     shared=False)  # fmt: skip


# --- quantities --------------------------------------------------------------------------------


def _info(name: str) -> Callable[[ModelReport], Value]:
    def get(model: ModelReport) -> Value:
        value: Value = None if model.scan is None else getattr(model.scan.model, name)
        return value

    return get


def _motion(get: Callable[[Motion], float | None]) -> Callable[[ModelReport], Value]:
    return lambda model: None if model.trace is None else get(motions(model.trace)[-1])


def _heads(words: Callable[[ModelReport], list[str]], word: str) -> Callable[[ModelReport], Value]:
    return lambda model: None if model.scan is None else words(model).count(word)


def _effects(model: ModelReport) -> list[str]:
    return [direction_word(one.measured) for one in own_effects(model)]


def _maps(model: ModelReport) -> list[str]:
    return [one.head.orientation.value for one in own_effects(model)]


def _scores(
    get: Callable[[DirectionAgreement], float | None], closure: str
) -> Callable[[ModelReport], Value]:
    return lambda model: (
        None if model.trace is None else get(model.trace.direction_agreement.per_closure[closure])
    )


def _sensitivity(model: ModelReport) -> Value:
    return None if model.audit is None else model.audit.sensitivity


def _position(model: ModelReport) -> Value:
    return None if model.scan is None else model.scan.model.position.value


QUANTITIES: dict[str, Callable[[ModelReport], Value]] = {
    "layers": _info("n_layers"),
    "heads a layer": _info("n_heads"),
    "width": _info("d_model"),
    "parameters": _info("parameters"),
    "position": _position,
    "mean cosine, input": _motion(lambda motion: motion.cosine_first),
    "mean cosine, output": _motion(lambda motion: motion.cosine_last),
    "ΔS by attention": _motion(lambda motion: motion.totals["attention"]),
    "ΔS by MLPs": _motion(lambda motion: motion.totals["mlp"]),
    "ΔS by norms": _motion(lambda motion: motion.totals.get("norm", 0.0)),
    "ΔS, net": _motion(lambda motion: motion.net),
    "heads that gather directions": _heads(_effects, "gathers"),
    "heads that spread directions": _heads(_effects, "spreads"),
    "heads with opposed maps": _heads(_maps, "opposed"),
    "heads with aligned maps": _heads(_maps, "aligned"),
    "predicted, r over heads": _scores(lambda one: one.heads.pearson, DEFAULT_CLOSURE),
    "ceiling, r over heads": _scores(lambda one: one.heads.pearson, "itself"),
    "order sensitivity": _sensitivity,
}
