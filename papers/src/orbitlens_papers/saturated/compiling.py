"""Claim 4: saturated layers as threshold circuits: the same function, of constant depth.

Enters: a bench. Leaves: outcomes. The layer itself runs in float64 through the attention that all
studies share; thresholds have the denominator 67, which no mean over up to 64 places meets.
"""

from fractions import Fraction

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.saturated.circuits import Layer, compiled, random_layer
from orbitlens_papers.saturated.majority import Select
from orbitlens_papers.saturated.reader import all_strings
from orbitlens_papers.saturated.selection import hard, saturated

LENGTHS = (4, 6, 8, 12, 16, 24, 32, 48, 64)
DENOMINATOR = 67


def run_layer(
    layer: Layer, bits: Int[Tensor, "string tokens"], select: Select
) -> Bool[Tensor, "string tokens"]:
    """Return what a layer makes of strings, in float64."""
    scores, values = torch.from_numpy(layer.scores), torch.from_numpy(layer.values)
    places = torch.arange(layer.length)
    own = scores[places[:, None], bits[:, :, None], places[None, :], bits[:, None, :]]
    read = values[places, bits].double()
    means = torch.einsum("bts,bs->bt", select(own.double()), read)
    return means > float(layer.threshold)


def run_layers(
    layers: list[Layer], bits: Int[Tensor, "string tokens"], select: Select
) -> Bool[ndarray, "string tokens"]:
    """Return what layers make of strings, one after the other."""
    for layer in layers:
        bits = run_layer(layer, bits, select).long()
    return np.asarray(bits.bool().numpy())


def draw_layers(bench: Bench, name: str, length: int, n_layers: int) -> list[Layer]:
    """Return random layers."""
    seed = bench.generator(name, bench.seeds[0]).initial_seed()
    generator = np.random.default_rng(seed)
    places = generator.choice([k for k in range(-25, 26) if k], n_layers)
    return [random_layer(length, generator, Fraction(int(p), DENOMINATOR)) for p in places]


def same_function(bench: Bench) -> Outcome:
    """4a: strings on which circuit and layer differ, all strings of up to twelve bits; largest.

    Control: the layer with hard attention.
    """
    n = bench.pick(12, 50, 200)
    lengths = bench.pick((4, 8), (4, 8, 12), (4, 8, 12, 14))
    errors, control, varying = [], [], 0
    for number in range(n):
        length, depth = lengths[number % len(lengths)], 1 + number % 2
        layers = draw_layers(bench, f"layers {number}", length, depth)
        strings = all_strings(length)
        outputs = compiled(layers).evaluate(strings.numpy())
        errors.append(_differing(outputs, run_layers(layers, strings, saturated)))
        varying += bool((outputs != outputs[0]).any())
        if length == lengths[-1]:
            control.append(_differing(outputs, run_layers(layers, strings, hard)))
        bench.step((number + 1) / n)
    return Outcome(
        result=estimate.largest(errors, of="circuits"),
        control=estimate.largest(control, of="circuits"),
        data={
            "circuits": n,
            "varying": varying,  # those that do not say the same of all strings
            "lengths": list(lengths),
            "control": control,
        },
    )


def _differing(first: Bool[ndarray, "s t"], second: Bool[ndarray, "s t"]) -> float:
    return float((first != second).any(axis=1).sum())


def sizes(bench: Bench) -> dict[str, list[float]]:
    """Return depth, gates and wires of compiled layers by length, and what others would take."""

    def make() -> dict[str, list[float]]:
        rows: dict[str, list[float]] = {
            name: [] for name in ("depth", "narrow", "gates", "wires", "differing")
        }
        for length in LENGTHS:
            counted = [
                _size(layer, bench.generator("sampled strings", length))
                for layer in draw_layers(bench, f"sizes {length}", length, bench.pick(2, 4, 10))
            ]
            for name, column in zip(rows, zip(*counted, strict=True), strict=True):
                worst = name in {"depth", "differing"}
                rows[name].append(max(column) if worst else sum(column) / len(column))
        return rows

    return bench.once("circuit sizes", make)


def _size(layer: Layer, generator: torch.Generator) -> tuple[float, ...]:
    """Return depth, that with two wires a gate, gates, wires, and sampled strings that differ."""
    circuit = compiled([layer])
    strings = torch.randint(2, (100, layer.length), generator=generator)
    differing = _differing(
        circuit.evaluate(strings.numpy()), run_layers([layer], strings, saturated)
    )
    deep, narrow = float(circuit.depth()), float(circuit.depth(fan_in=2))
    return deep, narrow, float(len(circuit.gates)), float(circuit.n_wires), differing


def constant_depth(bench: Bench) -> Outcome:
    """4b: difference of depths between lengths 4 and 64; control: two wires a gate at most."""
    rows = sizes(bench)
    deep, narrow = (max(rows[name]) - min(rows[name]) for name in ("depth", "narrow"))
    return Outcome(
        result=estimate.largest([deep], of="sets of lengths"),
        control=estimate.largest([narrow], of="sets of lengths"),
        data={"lengths": list(LENGTHS), **rows},
    )


def polynomial_size(bench: Bench) -> Outcome:
    """4c: slope of gates and of wires over the length, both logarithms; the larger.

    Control: a gate for each accepted string, as a truth table has it.
    """
    rows = sizes(bench)
    slopes = [slope(LENGTHS, rows[name]) for name in ("gates", "wires")]
    short = (4, 6, 8, 10, 12)
    tables = []
    for length in short:
        layers = draw_layers(bench, f"tables {length}", length, bench.pick(2, 4, 10))
        strings = all_strings(length)
        accepted = [run_layers([layer], strings, saturated).sum() for layer in layers]
        # A gate for each accepted string, and one OR for each output.
        tables.append(float(sum(accepted)) / len(layers) + length)
    return Outcome(
        result=estimate.largest(slopes, of="slopes"),
        control=estimate.smallest([slope(short, tables)], of="slopes"),
        data={"slopes": slopes, "short": list(short), "tables": tables},
    )


def slope(x: tuple[int, ...], y: list[float]) -> float:
    """Return the slope of log y over log x, by least squares.

    >>> round(slope((1, 2, 4), [3.0, 12.0, 48.0]), 6)
    2.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
