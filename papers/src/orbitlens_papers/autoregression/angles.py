"""Claim 6: where angles are small, which places does the model use?

Enters: a bench. Leaves: outcomes. Heads are fixed at C = I and the weights p of places are trained
alone, by gradient descent on the mean over angles in [0, 2 pi / mu]; all turns are then alike, and
nearby places say nearly the same.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome

N_TOKENS, N_ANGLES = 30, 512
RATE = 0.5
SLOWNESS = (1, 50, 100, 200, 300)


def place_weights(mu: float, n_steps: int) -> tuple[Float[Tensor, " tokens"], float]:
    """Return trained weights of places and the loss left, E |sum_t p_t l^(2t-T+1) - l^(T+1)|^2.

    The loss is a quadratic in p, so that a step of descent is p - rate (M p - v), M and v being
    means over angles.
    """
    share = (torch.arange(N_ANGLES, dtype=torch.float64) + 0.5) / N_ANGLES
    angle = 2 * torch.pi / mu * share
    t = torch.arange(1, N_TOKENS + 1)
    turns = torch.polar(
        torch.ones(N_ANGLES, N_TOKENS).double(), angle[:, None] * (2 * t - N_TOKENS + 1)
    )
    target = torch.polar(torch.ones(N_ANGLES).double(), angle * (N_TOKENS + 1))
    m = (turns.mH @ turns).real / N_ANGLES
    v = (turns.mH @ target).real / N_ANGLES
    top = float(torch.linalg.eigvalsh(m)[-1])
    p = torch.zeros(N_TOKENS, dtype=torch.float64)
    for _ in range(n_steps):
        p = p - RATE / max(1.0, top * RATE) * (m @ p - v)
    return p, float((p @ m @ p) - 2 * (p @ v) + 1.0)


def spread(p: Float[Tensor, " tokens"]) -> float:
    """Return the share of |p| that is not at the last place."""
    return float(1.0 - p[-1].abs() / p.abs().sum())


def small_angles(bench: Bench) -> Outcome:
    """6a: share of |p| at other places than the last, the least of mu >= 50; control: mu = 1."""
    n_steps = bench.pick(500, 5000, 50_000)
    weights = {mu: place_weights(float(mu), n_steps) for mu in SLOWNESS}
    spreads = [spread(p) for mu, (p, _) in weights.items() if mu > 1]
    return Outcome(
        result=estimate.smallest(spreads, of="ranges of angles"),
        control=estimate.largest([spread(weights[1][0])], of="ranges of angles"),
        data={
            "weights": {str(mu): p.tolist() for mu, (p, _) in weights.items()},
            "losses": {str(mu): loss for mu, (_, loss) in weights.items()},
        },
    )
