"""Tables of docs/concepts.md: how far the closure holds, and what a rotary encoding leaves."""

import math

import torch
from generated.tables import table
from torch import Tensor

from orbitlens.families.architecture import Pairing, RotarySpec
from orbitlens.heads.head import Head, make_head
from orbitlens.scanning.layers import CHANCE
from orbitlens.theory.positional import rotary_effect
from orbitlens.theory.rates import predicted_log_change


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def closure_beside_measured() -> str:
    """Return the predicted and measured log-change of one head, for sharper and sharper scores."""
    generator = torch.Generator().manual_seed(0)
    d, n_queries, sizes = 8, 1000, (100, 1000, 10000)
    covariance = torch.diag(torch.linspace(0.2, 2.0, d, dtype=torch.float64))
    factors = [_normal(generator, *shape) for shape in ((d, 2), (d, 2), (d, 2), (2, d))]
    rows = []
    for size in (0.2, 0.3, 0.4, 0.6):
        head = make_head(*(size * factor for factor in factors))
        score_map = head.w_q @ head.w_k.T * head.scale
        values = [predicted_log_change([head], covariance)]
        for n in sizes:
            tokens = _normal(generator, n, d) @ covariance.sqrt()
            queries = tokens[:n_queries]
            scores = queries @ score_map @ tokens.T
            moved = queries + scores.softmax(dim=-1) @ tokens @ head.w_v @ head.w_o
            values.append(math.log(moved.var(dim=0).sum() / queries.var(dim=0).sum()))
        sigma = scores.std(dim=-1).mean()
        rows.append((f"{sigma:.2f}", *(f"{value:+.3f}" for value in values)))
    return table(["σ of the scores", "predicted", *(f"measured, n = {n:,}" for n in sizes)], rows)


def orientation() -> str:
    """Return the definition of an orientation, with its threshold."""
    return (
        "**Orientation**: how the value map lies to the score map. The two are *aligned* if the "
        f"alignment is at\nleast {CHANCE:g} sigmas, *opposed* if it is at most −{CHANCE:g}, and "
        "*neutral* in between. The map of heads shows the\norientation."
    )


def _random_head(generator: torch.Generator, d: int, r: int) -> Head:
    rotary = RotarySpec(base=10000.0, d_rotary=r, d_head=r, pairing=Pairing.NEIGHBOURS)
    w_q, w_k, w_v, w_o = torch.randn(4, d, r, generator=generator, dtype=torch.float64)
    return make_head(w_q, w_k, w_v, w_o.T, causal=True, rotary=rotary)


def rotary_survival() -> str:
    """Return how much of the rates of random heads is left in longer and longer contexts."""
    generator = torch.Generator().manual_seed(0)
    heads = [_random_head(generator, d=64, r=8) for _ in range(50)]
    rows = []
    for n in (16, 256, 4096):
        kept = sorted(rotary_effect(head, n).size_survival for head in heads)
        rows.append((f"{n:,}", *(f"{kept[i]:.0%}" for i in (0, len(heads) // 2, -1))))
    header = ["Context", f"Least survival of {len(heads)} random heads", "Median", "Most"]
    return table(header, rows)
