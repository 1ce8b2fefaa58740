"""What a cloud of tokens looks like: sizes, distances, angles, ranks, energy.

Enters: tokens at one moment. Leaves: numbers, each a pure function with its formula. Means over
pairs cost one pass over the tokens: they come from sums, not from tokens x tokens tables.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.errors import InputError
from orbitlens.theory.ranks import entropy_rank


def lengths(x: Tokens) -> Float[Tensor, " tokens"]:
    """Return |x_i| of each token, whose square may be out of the range of floats."""
    top = x.abs().amax(dim=-1, keepdim=True)
    unit = x / torch.where(top > 0, top, 1.0)
    return unit.norm(dim=-1) * top[:, 0]


def mean_squared_distance(x: Tokens) -> float:
    """Return the mean of |x_i - x_j|^2 over pairs i != j: 2 sum_i |x_i - mean|^2 / (n - 1)."""
    n = _at_least_two(x)
    return (2 * (x - x.mean(dim=0)).square().sum() / (n - 1)).item()


def largest_norm(x: Tokens) -> float:
    """Return max_i |x_i|."""
    return lengths(x).max().item()


def mean_norm(x: Tokens) -> float:
    """Return the mean of |x_i|."""
    return lengths(x).mean().item()


def mean_cosine(x: Tokens, *, centred: bool = False) -> float:
    """Return the mean of cos(x_i, x_j) over pairs i != j: (|sum_i u_i|^2 - n) / (n (n - 1))."""
    n = _at_least_two(x)
    y = x - x.mean(dim=0) if centred else x
    u = y / lengths(y)[:, None].clamp(min=1e-300)
    total = u.sum(dim=0).square().sum() - u.square().sum()
    return (total / (n * (n - 1))).item()


def effective_rank(x: Tokens) -> float:
    """Return exp(H(s / sum s)) of the singular values s (Roy & Vetterli 2007); 0 for no tokens."""
    return entropy_rank(torch.linalg.svdvals(x))


def shuffled_cosine(x: Tokens, *, generator: torch.Generator) -> float:
    """Return `mean_cosine` after shuffling each token's own coordinates: the floor of cosines.

    It keeps every token's numbers and forgets their directions; what is left comes from a mean of
    the coordinates that is not zero.
    """
    order = torch.rand(x.shape, generator=generator, dtype=x.dtype).argsort(dim=-1)
    return mean_cosine(x.gather(-1, order))


def cosine_clusters(x: Tokens, *, threshold: float = 0.9) -> int:
    """Return the number of clusters of tokens linked by cosines of at least `threshold`.

    Tokens and links form a graph; its connected components are counted. n^2 in time, not in memory.
    """
    u = x / lengths(x)[:, None].clamp(min=1e-300)
    unseen = torch.ones(x.shape[0], dtype=torch.bool)
    count = 0
    while bool(unseen.any()):
        count += 1
        front = unseen.nonzero()[:1, 0]
        unseen[front] = False
        while front.numel():
            linked = ((u[front] @ u.T) >= threshold).any(dim=0) & unseen
            unseen &= ~linked
            front = linked.nonzero()[:, 0]
    return count


def rank_one_distance(x: Tokens) -> float:
    """Return |X - 1 mean^T|_F / |X|_F: 0 when all tokens are one."""
    unit = x / x.abs().max().clamp(min=1e-300)
    size = unit.norm()
    return ((unit - unit.mean(dim=0)).norm() / size).item() if size > 0 else 0.0


def dispersion(x: Tokens) -> float:
    """Return sum_ij |x_i - x_j|^2 / (2 (n - 1) sum_i |x_i|^2) (arXiv 2512.03058)."""
    n = _at_least_two(x)
    unit = x / x.abs().max().clamp(min=1e-300)
    size, apart = unit.square().sum(), (unit - unit.mean(dim=0)).square().sum()
    return (n * apart / ((n - 1) * size)).item() if size > 0 else 0.0


def interaction_energy(x: Tokens, beta: float) -> float:
    """Return sum_ij exp(beta x_i . x_j) / (2 beta n^2): it rises along the sphere's flow."""
    if beta <= 0:
        raise InputError(f"the energy is for a positive beta; {beta} was given.")
    n = x.shape[0]
    total = x.new_zeros(())
    for block in x.split(1024):
        total = total + torch.exp(beta * block @ x.T).sum()
    return (total / (2 * beta * n**2)).item()


def over_time(tokens: Float[Tensor, "steps tokens d_model"]) -> dict[str, list[float]]:
    """Return the metrics of every moment, by name."""
    functions = {
        "largest_norm": largest_norm,
        "mean_norm": mean_norm,
        "mean_squared_distance": mean_squared_distance,
        "mean_cosine": mean_cosine,
        "dispersion": dispersion,
        "rank_one_distance": rank_one_distance,
        "effective_rank": effective_rank,
    }
    return {name: [f(x) for x in tokens] for name, f in functions.items()}


def _at_least_two(x: Tokens) -> int:
    if x.shape[0] < 2:
        raise InputError(f"{x.shape[0]} token was given; means over pairs need at least 2.")
    return x.shape[0]
