"""Random token-selection problems, and descent on all of them side by side.

Enters: sizes and generators. Leaves: problems, and the matrices W that descent passes through. The
model is f(X, z) = vᵀ Xᵀ softmax(X W z) with a fixed head v and the logistic loss of Y f, as in
arXiv 2308.16898: tokens, queries and head lie on the unit sphere, labels are coins.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from orbitlens.lab.fitting import NormalizedDescent

N_SAMPLES, N_TOKENS, WIDTH = 6, 8, 10  # of the paper's experiment
RATE = 0.1  # length of a normalised step
PENALTY = torch.finfo(torch.float64).eps  # on |K|² + |Q|²: the paper's vanishing regularisation

Matrices = Float[Tensor, "problem d_model d_model"]
Choice = Int[Tensor, "problem sample"]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large one problem is."""

    samples: int = N_SAMPLES
    tokens: int = N_TOKENS
    width: int = WIDTH


@dataclass(frozen=True, kw_only=True)
class Problems:
    """Independent problems of one size."""

    tokens: Float[Tensor, "problem sample tokens d_model"]
    queries: Float[Tensor, "problem sample d_model"]
    labels: Float[Tensor, "problem sample"]  # +1 or -1
    head: Float[Tensor, "problem d_model"]

    def __len__(self) -> int:
        """Return how many problems there are."""
        return len(self.tokens)

    @property
    def width(self) -> int:
        """Width of a token."""
        return self.tokens.shape[-1]

    def optimal(self, labels: Float[Tensor, "problem sample"] | None = None) -> Choice:
        """Return the token that each sample would best select: argmax Y vᵀx."""
        signs = self.labels if labels is None else labels
        return (signs[..., None] * values_of(self)).argmax(dim=-1)


def draw(n: int, generator: torch.Generator, sizes: Sizes | None = None) -> Problems:
    """Return random problems; tokens, queries and head on the unit sphere."""
    size = sizes or Sizes()
    return Problems(
        tokens=_sphere((n, size.samples, size.tokens, size.width), generator),
        queries=_sphere((n, size.samples, size.width), generator),
        labels=draw_labels((n, size.samples), generator),
        head=_sphere((n, size.width), generator),
    )


def draw_labels(
    shape: tuple[int, int], generator: torch.Generator
) -> Float[Tensor, "problem sample"]:
    """Return labels of +1 and -1, equally likely."""
    return 2.0 * torch.randint(2, shape, generator=generator).double() - 1.0


def _sphere(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return functional.normalize(
        torch.randn(shape, generator=generator, dtype=torch.float64), dim=-1
    )


def values_of(problems: Problems) -> Float[Tensor, "problem sample tokens"]:
    """Return what each token is worth to the head: vᵀx."""
    return torch.einsum("pstd,pd->pst", problems.tokens, problems.head)


def scores_of(problems: Problems, w: Matrices) -> Float[Tensor, "problem sample tokens"]:
    """Return the scores of attention, X W z."""
    return _scores(problems, w)


def _scores(problems: Problems, w: Tensor) -> Tensor:
    turned = problems.queries @ w.transpose(1, 2)
    return (problems.tokens @ turned[..., None]).squeeze(-1)


def selected(problems: Problems, w: Matrices) -> Choice:
    """Return the token that attention looks at most."""
    return scores_of(problems, w).argmax(dim=-1)


def saturation(problems: Problems, w: Matrices) -> Float[Tensor, " problem"]:
    """Return the largest weight of softmax, mean over samples."""
    return scores_of(problems, w).softmax(dim=-1).amax(dim=-1).mean(dim=-1)


def losses(problems: Problems, w: Matrices) -> Float[Tensor, " problem"]:
    """Return the mean logistic loss of each problem.

    Values are counted from that of the selected token, f = g_a + sum_t (g_t - g_a) s_t: the same
    number, but its gradient keeps all digits where softmax has long rounded to 0 and 1.
    """
    scores, values = scores_of(problems, w), values_of(problems)
    base = values.gather(-1, scores.argmax(dim=-1, keepdim=True))
    output = base[..., 0] + ((values - base) * scores.softmax(dim=-1)).sum(dim=-1)
    return functional.softplus(-problems.labels * output).mean(dim=-1)


# --- descent ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Descent:
    """How to go down."""

    steps: int
    factored: bool = False  # on K and Q with W = K Qᵀ and a penalty, not on W itself
    rate: float = RATE
    normalised: bool = True


@dataclass(frozen=True, kw_only=True)
class Path:
    """Where descent came through."""

    steps: tuple[int, ...]
    matrices: tuple[Matrices, ...]  # W, or K Qᵀ, after so many steps

    @property
    def end(self) -> Matrices:
        """The last one."""
        return self.matrices[-1]


def start(problems: Problems, generator: torch.Generator, *, factored: bool) -> list[Tensor]:
    """Return W, or K and Q, uniform within 1/sqrt(d), as a linear layer of torch starts."""
    shape = (len(problems), problems.width, problems.width)
    bound = 1 / math.sqrt(problems.width)
    return [
        bound * (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1)
        for _ in range(1 + factored)
    ]


def matrix_of(parameters: Sequence[Tensor]) -> Matrices:
    """Return W, or K Qᵀ."""
    if len(parameters) == 1:
        return parameters[0]
    key, query = parameters
    return key @ query.transpose(1, 2)


def descend(
    problems: Problems, beginning: Sequence[Tensor], how: Descent, looks: Sequence[int] = ()
) -> Path:
    """Go down from a start, all problems side by side; keep W after the steps in `looks`."""
    parameters = [p.clone() for p in beginning]
    make = partial(NormalizedDescent, separate=True) if how.normalised else torch.optim.SGD
    optimizer, values = make(parameters, lr=how.rate), values_of(problems)
    wanted = {*looks, how.steps}
    kept: dict[int, Tensor] = {}
    for step in range(how.steps + 1):
        if step in wanted:
            kept[step] = matrix_of(parameters).clone()
        if step < how.steps:
            _set_gradients(problems, parameters, values, how)
            optimizer.step()
    order = sorted(kept)
    return Path(steps=tuple(order), matrices=tuple(kept[k] for k in order))


def _set_gradients(
    problems: Problems, parameters: Sequence[Tensor], values: Tensor, how: Descent
) -> None:
    slope = _gradient(problems, matrix_of(parameters), values)
    if how.factored:
        key, query = parameters
        key.grad = slope @ query + 2 * PENALTY * key
        query.grad = slope.transpose(1, 2) @ key + 2 * PENALTY * query
    else:
        parameters[0].grad = slope


def _gradient(problems: Problems, w: Tensor, values: Tensor) -> Tensor:
    """Return the gradient of `losses` by W, written out: thousands of steps are taken with it."""
    scores = _scores(problems, w)
    weights = scores.softmax(dim=-1)
    base = values.gather(-1, scores.argmax(dim=-1, keepdim=True))
    above = values - base
    mean = (above * weights).sum(dim=-1, keepdim=True)
    labels = problems.labels[..., None]
    outer = -labels * torch.sigmoid(-labels * (base + mean)) / labels.shape[1]
    by_score = outer * weights * (above - mean)
    by_token = (by_score[:, :, None] @ problems.tokens).squeeze(2)
    return by_token.transpose(1, 2) @ problems.queries


def cosine(first: Matrices, second: Matrices) -> Float[Tensor, " problem"]:
    """Return the cosine between matrices, as vectors."""
    return functional.cosine_similarity(first.flatten(1), second.flatten(1), dim=1)


def nuclear_norm(w: Matrices) -> Float[Tensor, " problem"]:
    """Return the sum of singular values of w / |w|."""
    values = torch.linalg.svdvals(w)
    return values.sum(dim=-1) / values.norm(dim=-1)


def ranks(w: Matrices, tolerance: float = 1e-3) -> Int[Tensor, " problem"]:
    """Return how many singular values exceed `tolerance` times the largest."""
    values = torch.linalg.svdvals(w)
    return (values > tolerance * values[:, :1]).sum(dim=-1)
