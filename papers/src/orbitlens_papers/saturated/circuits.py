"""Threshold circuits, and a compiler from saturated attention with integer scores to them.

Enters: a layer. Leaves: gates that say whether a weighted sum of bits reaches a whole number, and
compute the same bits as the layer. Three gates deep, whatever the length: which scores occur; is
there a higher one, and is the sum over the places of one score, times the denominator of the
threshold, large enough (a comparison of means without division); pick; any.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from jaxtyping import Bool, Int, Integer
from numpy import ndarray


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One if the weighted sum of its inputs is at least `least`.

    A weight of 3 stands for three wires, a negative one for wires from the opposite bit.
    """

    weights: Mapping[int, int]  # by node
    least: int

    @property
    def wires(self) -> int:
        """How many wires of weight one it takes."""
        return sum(abs(weight) for weight in self.weights.values())


@dataclass(kw_only=True)
class Circuit:
    """Nodes 0 ... n - 1 are inputs; every gate adds one."""

    n_inputs: int
    gates: list[Gate] = field(default_factory=list)
    outputs: tuple[int, ...] = ()

    def add(self, weights: Mapping[int, int], least: int) -> int:
        """Add a gate and return its node."""
        self.gates.append(Gate(weights={n: w for n, w in weights.items() if w}, least=least))
        return self.n_inputs + len(self.gates) - 1

    @property
    def n_wires(self) -> int:
        """Wires of weight one of all gates."""
        return sum(gate.wires for gate in self.gates)

    def depth(self, *, fan_in: int | None = None) -> int:
        """Return the most gates on a way from an input to an output.

        With a bound on the wires into a gate, a gate of more is a tree of at least
        log(wires) / log(fan_in) levels.
        """
        deep = [0] * self.n_inputs
        for gate in self.gates:
            cost = 1
            if fan_in is not None and gate.wires > fan_in:
                cost = math.ceil(math.log(gate.wires, fan_in) - 1e-9)
            deep.append(cost + max((deep[node] for node in gate.weights), default=0))
        return max(deep[node] for node in self.outputs)

    def evaluate(self, bits: Integer[ndarray, "string tokens"]) -> Bool[ndarray, "string output"]:
        """Return the outputs for strings of inputs."""
        nodes = np.zeros((self.n_inputs + len(self.gates), len(bits)), dtype=np.int32)
        nodes[: self.n_inputs] = bits.T
        for number, gate in enumerate(self.gates):
            which, weights = list(gate.weights), list(gate.weights.values())
            total = np.array(weights, dtype=np.int32) @ nodes[which] if which else np.zeros(1)
            nodes[self.n_inputs + number] = total >= gate.least
        return nodes[list(self.outputs)].T.astype(bool)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Saturated self-attention over bits: out_i = [mean of values where the score is largest > t].

    Scores and values are whole numbers, the threshold is a fraction.
    """

    scores: Int[ndarray, "tokens 2 tokens 2"]  # query's place and bit, key's place and bit
    values: Int[ndarray, "tokens 2"]
    threshold: Fraction

    @property
    def length(self) -> int:
        """Bits that go in, and come out."""
        return len(self.scores)


def random_layer(length: int, generator: np.random.Generator, threshold: Fraction) -> Layer:
    """Return a layer of small numbers: of both bits, plus those of places.

    The two bits never have the same value, or the layer might say the same of all strings.
    """
    content = generator.integers(-1, 2, (1, 2, 1, 2))
    place = generator.integers(-1, 2, (length, 1, length, 1))
    bits = generator.permutation([-generator.integers(0, 3), generator.integers(1, 3)])
    values = bits + generator.integers(-1, 2, (length, 1))
    return Layer(scores=content + place, values=values, threshold=threshold)


def compiled(layers: Sequence[Layer]) -> Circuit:
    """Return a circuit that computes layer after layer."""
    circuit = Circuit(n_inputs=layers[0].length)
    nodes: Sequence[int] = range(layers[0].length)
    for layer in layers:
        nodes = [_compile_place(circuit, nodes, layer, place) for place in range(layer.length)]
    circuit.outputs = tuple(nodes)
    return circuit


def _compile_place(circuit: Circuit, nodes: Sequence[int], layer: Layer, place: int) -> int:
    """Add the gates of one output and return its node."""
    picks = {
        _pick(circuit, nodes, layer, place, bit, level): 1
        for bit in (0, 1)
        for level in np.unique(layer.scores[place, bit]).tolist()
    }
    return circuit.add(picks, 1)


def _pick(
    circuit: Circuit, nodes: Sequence[int], layer: Layer, place: int, bit: int, level: int
) -> int:
    """Add gates for: the query has this bit, the score occurs, none above, the mean is enough."""
    scores = layer.scores[place, bit]
    top, bottom = layer.threshold.numerator, layer.threshold.denominator
    occurs = _sum_gate(circuit, nodes, (scores == level).astype(int))
    higher = _sum_gate(circuit, nodes, (scores > level).astype(int))
    excess = np.where(scores == level, bottom * layer.values - top, 0)
    enough = _sum_gate(circuit, nodes, excess)
    own = {nodes[place]: 1 if bit else -1}
    return circuit.add({occurs: 1, higher: -1, enough: 1} | own, 2 + bit)


def _sum_gate(circuit: Circuit, nodes: Sequence[int], table: Int[ndarray, "tokens 2"]) -> int:
    """Add a gate for: the sum over places of the number for its bit is one or more."""
    weights = {node: int(row[1] - row[0]) for node, row in zip(nodes, table, strict=True)}
    return circuit.add(weights, 1 - int(table[:, 0].sum()))
