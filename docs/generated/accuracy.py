"""Tables of docs/accuracy.md: what is computed here beside transformers and dense algebra."""

import contextlib
import importlib.metadata
import io
import logging
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from generated.tables import table

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.heads.attention import attention_output, attention_pattern
from orbitlens.heads.head import make_head
from orbitlens.heads.layers import load_layer
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.rates import head_rates, rate_spectrum
from tiny_models import CASES, Case, build, observe


def _worst_error(case: Case, folder: Path) -> tuple[str, float]:
    """Return the family, and the largest deviation of patterns and outputs over all layers."""
    model = build(case)
    model.save_pretrained(folder)
    checkpoint = load_checkpoint(folder)
    worst = 0.0
    for stack in checkpoint.architecture.stacks:
        for index, seen in enumerate(observe(case, model, stack)):
            layer = load_layer(checkpoint, index, stack=stack.name)
            has_norm = "norm" in stack.tensors[index]
            tokens = layer.normalise(seen.tokens) if has_norm else seen.tokens
            error = (attention_output(layer, tokens) - seen.output).abs().max()
            worst = max(worst, (error / seen.output.abs().max()).item())
            if seen.pattern is not None:
                error = (attention_pattern(layer, tokens) - seen.pattern).abs().max()
                worst = max(worst, error.item())
    return checkpoint.architecture.family, worst


def attention() -> str:
    """Return the largest deviation of recomputed attention in each family."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    families: dict[str, list[float]] = {}
    for case in CASES:
        quiet = contextlib.redirect_stderr(io.StringIO())
        with tempfile.TemporaryDirectory() as folder, quiet:
            family, error = _worst_error(case, Path(folder))
        families.setdefault(family, []).append(error)
    largest = max(max(errors) for errors in families.values())
    assert largest < 1e-8, largest
    version = importlib.metadata.version("transformers")
    rows = [
        (f"`{family}`", len(errors), f"{max(errors):.0e}")
        for family, errors in sorted(families.items())
    ]
    return "\n\n".join(
        [
            f"{len(CASES)} models of {len(families)} families, transformers {version}:",
            table(["Family", "Models", "Largest deviation"], rows),
            f"The largest of all is {largest:.0e}; the tests demand less than 10⁻⁸.",
        ]
    )


def _falcon_errors(case: Case) -> list[float]:
    """Return the deviation of Falcon's first layer for ALiBi once and twice."""
    quiet = contextlib.redirect_stderr(io.StringIO())
    with tempfile.TemporaryDirectory() as folder, quiet:
        model = build(case)
        model.save_pretrained(folder)
        checkpoint = load_checkpoint(folder)
        seen = observe(case, model, checkpoint.stack())[0]
        layer = load_layer(checkpoint, 0)
    errors = []
    for times in (1, 2):
        stack = replace(layer.stack, alibi_scale=times * layer.stack.alibi_scale)
        output = attention_output(replace(layer, stack=stack), layer.normalise(seen.tokens))
        errors.append(((output - seen.output).abs().max() / seen.output.abs().max()).item())
    return errors


def falcon() -> str:
    """Return how far ALiBi once and twice are from each of Falcon's two paths."""
    case = next(case for case in CASES if case.name == "falcon-multi-head-alibi")
    rows = []
    for path in ("sdpa", "eager"):
        errors = _falcon_errors(replace(case, implementation=path))
        rows.append((path, *(f"{error:.0e}" for error in errors)))
    return table(["Path in transformers", "ALiBi once", "ALiBi twice"], rows)


def _both_ways(generator: torch.Generator, d: int, r: int) -> dict[str, tuple[object, object]]:
    """Return each quantity of a random head by Gram blocks and by dense algebra."""
    w_q, w_k, w_v, w_o = torch.randn(4, d, r, generator=generator, dtype=torch.float64)
    head = make_head(w_q, w_k, w_v, w_o.T)
    maps = HeadMaps.of(head)
    w, v = w_q @ w_k.T * head.scale, w_o @ w_v.T
    drift = v @ w.T
    rates = torch.linalg.eigvalsh((drift + drift.T) / 2)
    spectrum = torch.linalg.eigvals(v)
    moving = rates[rates.abs().argsort()[d - 2 * r :].sort().values]
    index = head_rates(head).expansion_index
    return {
        "rates": (rate_spectrum(maps), moving),
        "expansion index": (index, rates.sum() / rates.abs().sum()),
        "alignment": (maps.alignment, (v * w).sum() / (v.norm() * w.norm())),
        "largest singular value of V": (maps.speed_limit, torch.linalg.matrix_norm(v, 2)),
        "spectral radius of V": (maps.value_radius, spectrum.abs().max()),
        "spectral abscissa of V": (maps.value_abscissa, spectrum.real.max()),
        "symmetry of W": (maps.score_symmetry, (w * w.T).sum() / w.norm() ** 2),
    }


def dense_algebra() -> str:
    """Return the largest deviation of each quantity from d×d algebra, over random heads."""
    generator = torch.Generator().manual_seed(0)
    d, r, n_heads = 96, 12, 20
    worst: dict[str, float] = {}
    for _ in range(n_heads):
        for name, pair in _both_ways(generator, d, r).items():
            ours, dense = (torch.as_tensor(x, dtype=torch.float64) for x in pair)
            error = ((ours - dense).abs().max() / dense.abs().max()).item()
            worst[name] = max(worst.get(name, 0.0), error)
    rows = [(name, f"{error:.0e}") for name, error in worst.items()]
    header = ["Quantity", "Largest relative deviation from dense algebra"]
    return f"{n_heads} random heads, d = {d}, r = {r}:\n\n" + table(header, rows)
