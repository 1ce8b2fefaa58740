"""Claim 7: the paper's setting, with separated vectors for tokens; and how deep its networks are.

Enters: a bench. Leaves: outcomes. Every count is that of a transformer which was built and, but for
the control of 7c, asked for every label.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.estimate import Estimate
from orbitlens_papers.memorization.exact import slope
from orbitlens_papers.memorization.network import Form
from orbitlens_papers.memorization.separated import Memory, Setting, lesson, memory

LENGTH = 8
MANY = 1024  # sequences; transformers for so many are built for one seed only
MIDDLE = 0.575  # of slopes from 0.45 to 0.70
NARROW = Form(narrow=True)
Row = dict[str, Any]


def _built(setting: Setting) -> tuple[Row, Memory]:
    generator = torch.Generator().manual_seed(setting.number)
    given = lesson(setting, generator)
    made = memory(given, setting, generator)
    parts = (made.token_map, made.reader)
    row: Row = {
        "n_sequences": setting.n_sequences,
        "length": setting.length,
        "vectors": len(given.vectors),
        "telling": made.n_telling,
        "directions": made.projection.tries,
        "parameters": made.n_parameters,
        "token_map": made.token_map.n_parameters,
        "dense": sum(part.n_dense for part in parts),
        "depth": 1 + sum(part.depth for part in parts),  # one for the projection
        "width": max(part.width for part in parts),
        "bits": max(part.largest_bits for part in parts),
        "size": 0 if setting.plain else setting.form.of(setting.n_sequences),
    }
    return row, made


def count(setting: Setting) -> Row:
    """Build the transformer of a setting and count it."""
    return _built(setting)[0]


def solve(setting: Setting) -> Row:
    """Build the transformer of a setting, and ask it for every label."""
    row, made = _built(setting)
    given = lesson(setting, torch.Generator().manual_seed(setting.number))
    labels = made(given.vectors, given.sequences)
    return row | {"wrong": sum(a != b for a, b in zip(labels, given.labels, strict=True))}


def _settings(bench: Bench, sizes: Sequence[tuple[int, int]], model: Setting) -> list[Setting]:
    """Return settings like the model, of all sizes and seeds; the large ones of one seed."""
    return [
        replace(
            model,
            n_sequences=n,
            length=length,
            number=bench.generator(f"separated {n} of {length}", seed).initial_seed(),
        )
        for place, seed in enumerate(bench.seeds)
        for n, length in sizes
        if place == 0 or n < MANY
    ]


ROOTED = Setting(n_sequences=0, length=0, number=0)


def _numbers(bench: Bench) -> list[tuple[int, int]]:
    return [(n, LENGTH) for n in bench.pick((8, 16, 64), (16, 64, 256, 1024), (16, 64, 256, 1024))]


def _by_number(bench: Bench, name: str) -> list[Row]:
    """Return transformers of that form for every N and seed, made once.

    Narrow ones for fewer sequences: they have the weights of the others, and their time.
    """
    model = {
        "root": ROOTED,
        "narrow": replace(ROOTED, form=NARROW),
        "wide": replace(ROOTED, plain=True),
    }[name]
    sizes = [one for one in _numbers(bench) if name != "narrow" or one[0] < MANY]
    settings = _settings(bench, sizes, model)
    settings.sort(key=lambda one: -one.n_sequences)  # so that no core waits for a last long one
    return bench.once(f"separated, {name}", lambda: bench.map(solve, settings))


def _column(rows: Sequence[Row], field: str) -> list[float]:
    return [float(row[field]) for row in rows]


def _slope(rows: Sequence[Row], field: str) -> float:
    return slope(_column(rows, "n_sequences"), _column(rows, field))


def _off(rows: Sequence[Row], field: str, middle: float) -> Estimate:
    distance = abs(_slope(rows, field) - middle)
    return estimate.largest([distance], of="slopes over all N and seeds")


def recalls(bench: Bench) -> Outcome:
    """7a: wrong labels in any form; control: vectors much nearer than the separation."""
    rows = {name: _by_number(bench, name) for name in ("root", "narrow", "wide")}
    size = bench.pick((16, LENGTH), (64, LENGTH), (64, LENGTH))
    twins = bench.map(solve, _settings(bench, [size], replace(ROOTED, twins=True)))
    every = [row for of_form in rows.values() for row in of_form]
    return Outcome(
        result=estimate.largest(_column(every, "wrong"), of="transformers"),
        control=estimate.smallest(_column(twins, "wrong"), of="transformers"),
        data={"rows": rows, "twins": twins, "sizes": _by_size(bench)},
    )


def _by_size(bench: Bench) -> list[Row]:
    """Return transformers for one N by the size of groups, one seed: from wide to deep."""
    n = bench.pick(16, 256, 256)
    sizes = bench.pick((1, 4, 16), (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32, 64))
    settings = [
        _settings(bench, [(n, LENGTH)], replace(ROOTED, form=Form(size=size)))[0] for size in sizes
    ]
    return bench.map(solve, settings)


def parameter_slope(bench: Bench) -> Outcome:
    """7b: distance of the slope of P from the allowed range's middle; control: one block each."""
    rows, wide = _by_number(bench, "root"), _by_number(bench, "wide")
    ends = sorted({(row["n_sequences"], row["parameters"]) for row in rows})
    counts = ", ".join(f"{p:,} at N = {n:,}" for n, p in dict(ends).items())
    return Outcome(
        result=_off(rows, "parameters", MIDDLE),
        control=_off(wide, "parameters", MIDDLE),
        data={
            "slope": _slope(rows, "parameters"),
            "dense_slope": _slope(rows, "dense"),
            "wide_slope": _slope(wide, "parameters"),
            "note": f"P is {counts}; without residuals, zeros counted as well, its slope is "
            f"{_slope(rows, 'dense'):.2f}",
        },
    )


def any_length(bench: Bench) -> Outcome:
    """7c: largest P over smallest, over lengths; control: a map that knows every vector."""
    n = bench.pick(16, 64, 256)
    sizes = [(n, length) for length in bench.pick((4, 16), (4, 16, 64), (4, 16, 64))]
    own = bench.map(solve, _settings(bench, sizes, ROOTED))
    every = bench.map(count, _settings(bench, sizes, replace(ROOTED, every_token=True)))
    ratios = [
        max(_column(rows, "parameters")) / min(_column(rows, "parameters")) for rows in (own, every)
    ]
    return Outcome(
        result=estimate.largest(ratios[:1], of="ratios over all lengths and seeds"),
        control=estimate.smallest(ratios[1:], of="ratios over all lengths and seeds"),
        data={"rows": own, "every": every},
    )


def depth_slope(bench: Bench) -> Outcome:
    """7d: distance of the slope of depth from the middle; control: one block each."""
    rows, wide = _by_number(bench, "root"), _by_number(bench, "wide")
    return Outcome(
        result=_off(rows, "depth", MIDDLE),
        control=_off(wide, "depth", MIDDLE),
        data={
            "slope": _slope(rows, "depth"),
            "narrow_slope": _slope(_by_number(bench, "narrow"), "depth"),
        },
    )


def narrow_is_enough(bench: Bench) -> Outcome:
    """7e: units of the widest layer, deep and narrow; control: the staircase in one layer."""
    rows = _by_number(bench, "narrow")
    largest = max(_column(rows, "n_sequences"))
    root = [row for row in _by_number(bench, "root") if row["n_sequences"] == largest]
    return Outcome(
        result=estimate.largest(_column(rows, "width"), of="transformers"),
        control=estimate.smallest(_column(root, "width"), of="transformers"),
    )


def wide_slope(bench: Bench) -> Outcome:
    """7f: distance of the slope of P from one, one block each; control: groups of √N."""
    return Outcome(
        result=_off(_by_number(bench, "wide"), "parameters", 1.0),
        control=_off(_by_number(bench, "root"), "parameters", 1.0),
    )
