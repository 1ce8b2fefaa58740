"""Claims 1 and 2: what a model cannot tell apart, exactly, on random weights in float64.

Enters: a bench. Leaves: outcomes. The group is that of all permutations of tokens 1 ... n - 1; the
last token, from which the prediction is read, stays.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from orbitlens.lab.fitting import seeded
from orbitlens.orbit import OrbitConfig, OrbitForCausalLM
from orbitlens.order.defect import permutation_defect
from orbitlens.order.permutations import all_permutations
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome

VOCABULARY = 24
N_TOKENS = 10
SPREAD = 0.3  # of the weights: large enough that attention is far from uniform
ENCODINGS = ("learned", "sinusoidal", "rotary", "alibi", "t5")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The switches of one random model."""

    position: str = "none"
    mask: str = "full"
    layers: int = 2
    residual: str = "all"
    norm: str = "pre"


def random_model(kind: Kind, seed: int, *, width: int = 16) -> OrbitForCausalLM:
    """Return a model with random weights, in float64."""
    config = OrbitConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=kind.layers,
        num_attention_heads=2,
        max_position_embeddings=64,
        position=kind.position,
        mask=kind.mask,
        residual=kind.residual,
        norm=kind.norm,
        initializer_range=SPREAD,
    )
    with seeded(seed):
        model = OrbitForCausalLM(config).double().eval()
        if model.model.relative_bias is not None:  # tables start at zero or near it
            torch.nn.init.normal_(model.model.relative_bias.weight, std=1.0)
    return model


def defect(kind: Kind, bench: Bench, seed: int, *, n_tokens: int = N_TOKENS) -> float:
    """Return by how much permuting earlier tokens moves the prediction, relative."""
    model = random_model(kind, seed)
    generator = bench.generator("tokens", seed)
    ids = torch.randperm(VOCABULARY, generator=generator)[:n_tokens]

    def predict(order: Tensor) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = model(input_ids=order[None]).logits[0, -1]
        return logits

    group = all_permutations(n_tokens, movable=range(n_tokens - 1))
    n_trials = bench.pick(3, 8, 32)
    return permutation_defect(predict, ids, group, n_trials=n_trials, generator=generator)


def defects(kinds: list[Kind], bench: Bench) -> list[float]:
    """Return the defects of all kinds over all seeds."""
    values = []
    for number, kind in enumerate(kinds):
        values += [defect(kind, bench, seed) for seed in bench.seeds]
        bench.step((number + 1) / len(kinds))
    return values


def _depths(bench: Bench) -> tuple[int, ...]:
    return bench.pick((1, 2), (1, 2, 4), (1, 2, 4, 8))


def full_is_blind(bench: Bench) -> Outcome:
    """1a: full mask and no encoding, any depth and residuals; control: a causal mask, 2 layers."""
    kinds = [
        Kind(layers=n, residual=residual)
        for n in _depths(bench)
        for residual in ("all", "none", "attention", "mlp")
    ]
    values = defects(kinds, bench)
    control = defects([Kind(mask="causal")], bench)
    return Outcome(
        result=estimate.largest(values, of="models"),
        control=estimate.smallest(control, of="models"),
        data={"table": two_by_two(bench)},
    )


def two_by_two(bench: Bench) -> list[dict[str, float | str]]:
    """Return the defect for {no encoding, each encoding} x {full, causal} x {1, 2 layers}."""
    rows: list[dict[str, float | str]] = []
    for position in ("none", *ENCODINGS):
        for mask in ("full", "causal"):
            for layers in (1, 2):
                kind = Kind(position=position, mask=mask, layers=layers)
                values = [defect(kind, bench, seed) for seed in bench.seeds]
                rows.append(
                    {
                        "position": position,
                        "mask": mask,
                        "layers": layers,
                        "smallest": min(values),
                        "largest": max(values),
                    }
                )
    return rows


def encoding_breaks(bench: Bench) -> Outcome:
    """2a: full mask, each encoding: the smallest defect; control: no encoding."""
    values = defects([Kind(position=name, layers=1) for name in ENCODINGS], bench)
    control = defects([Kind(layers=1)], bench)
    return Outcome(
        result=estimate.smallest(values, of="models"),
        control=estimate.largest(control, of="models"),
    )


def mask_breaks(bench: Bench) -> Outcome:
    """2b: causal mask, no encoding, two layers or more; control: one layer."""
    depths = [n for n in _depths(bench) if n > 1]
    values = defects([Kind(mask="causal", layers=n) for n in depths], bench)
    control = defects([Kind(mask="causal", layers=1)], bench)
    return Outcome(
        result=estimate.smallest(values, of="models"),
        control=estimate.largest(control, of="models"),
        data={"counterexample": smallest_counterexample()},
    )


def one_causal_layer_is_blind(bench: Bench) -> Outcome:
    """2c: causal mask, no encoding, one layer: the largest defect; control: two layers."""
    kinds = [
        Kind(mask="causal", layers=1, residual=residual, norm=norm)
        for residual in ("all", "none", "attention", "mlp")
        for norm in ("pre", "post")
    ]
    return Outcome(
        result=estimate.largest(defects(kinds, bench), of="models"),
        control=estimate.smallest(defects([Kind(mask="causal")], bench), of="models"),
    )


def without_residuals(bench: Bench) -> Outcome:
    """2d: two causal layers without any residual connection; control: one layer."""
    values = defects([Kind(mask="causal", residual="none")], bench)
    control = defects([Kind(mask="causal", residual="none", layers=1)], bench)
    return Outcome(
        result=estimate.smallest(values, of="models"),
        control=estimate.largest(control, of="models"),
    )


# --- the smallest counterexample -------------------------------------------------------------


def scalar_attention(tokens: list[float], layers: int, *, causal: bool) -> float:
    """Return the last token after layers x + softmax(x x^T) x on tokens that are mere numbers.

    >>> one, other = (
    ...     scalar_attention([*two, 0.5], 1, causal=True) for two in ([1.0, 2.0], [2.0, 1.0])
    ... )
    >>> abs(one - other) < 1e-15
    True
    """
    x = torch.tensor(tokens, dtype=torch.float64)
    hidden = torch.full((len(x), len(x)), causal).triu(1)
    for _ in range(layers):
        scores = torch.outer(x, x).masked_fill(hidden, float("-inf"))
        x = x + scores.softmax(dim=-1) @ x
    return float(x[-1])


def smallest_counterexample() -> dict[str, object]:
    """Return three numbers, two layers: the least of everything that lets a mask see order.

    Two tokens leave one to move, and so no order; one layer sees a set (S2); a token cannot be
    narrower than one number.
    """
    first, second = [1.0, 2.0, 0.5], [2.0, 1.0, 0.5]
    rows = [
        {
            "layers": layers,
            "mask": "causal" if causal else "full",
            "output": scalar_attention(first, layers, causal=causal),
            "swapped": scalar_attention(second, layers, causal=causal),
        }
        for layers in (1, 2)
        for causal in (False, True)
    ]
    return {"tokens": first, "swapped": second, "rows": rows}
