"""Named systems to start from, and random ensembles of them.

Enters: a name, a width, a generator. Leaves: a `System`. The scenarios "pd", "hd" and "nd" are
those of arXiv 2512.03058: sym(W) positive definite, and the alignment A = W V^-1 positive,
half-and-half or negative definite in its symmetric part, with antisymmetric parts in both.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.flows.streams import random_stream
from orbitlens.flows.system import System, system_of_maps


@dataclass(frozen=True, kw_only=True)
class Example:
    """A named system."""

    what: str
    build: Callable[[int, torch.Generator], System]


def random_definite(d: int, signs: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random symmetric matrix whose eigenvalues have the given signs, sizes 0.5 to 1.5."""
    q, _ = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))
    sizes = 0.5 + torch.rand(d, generator=generator, dtype=torch.float64)
    return (q * (signs * sizes)) @ q.T


def random_antisymmetric(d: int, generator: torch.Generator) -> Tensor:
    """Return a random antisymmetric matrix of the size of a random definite one."""
    a = torch.randn(d, d, generator=generator, dtype=torch.float64) / math.sqrt(d)
    return (a - a.T) / 2


def scenario(
    d: int,
    signs: Tensor,
    generator: torch.Generator,
    *,
    antisymmetric: bool,
) -> System:
    """Return V = A^-1 W with sym(W) positive definite and A of the given signs.

    Without antisymmetric parts the hypotheses of T1 and T2 hold exactly; with them only the signs.
    """
    w = random_definite(d, torch.ones(d, dtype=torch.float64), generator)
    a = random_definite(d, signs, generator)
    if antisymmetric:
        w = w + random_antisymmetric(d, generator)
        a = a + random_antisymmetric(d, generator)
    return system_of_maps(w, torch.linalg.solve(a, w))


def _signs(d: int, positive: int) -> Tensor:
    signs = -torch.ones(d, dtype=torch.float64)
    signs[:positive] = 1.0
    return signs


def _identity(d: int, sign: float) -> System:
    eye = torch.eye(d, dtype=torch.float64)
    return system_of_maps(eye, sign * eye)


def _rotation(d: int, generator: torch.Generator) -> System:
    """Return W = I and V a slow turn in each plane, with a pull inwards where d is odd."""
    v = torch.zeros(d, d, dtype=torch.float64)
    for k in range(0, d - 1, 2):
        v[k, k + 1], v[k + 1, k] = -1.0, 1.0
    return system_of_maps(torch.eye(d, dtype=torch.float64), v)


def _spiral(d: int, generator: torch.Generator) -> System:
    turn = _rotation(d, generator).w_o[0].T
    return system_of_maps(
        torch.eye(d, dtype=torch.float64), 0.5 * turn - 0.05 * torch.eye(d, dtype=torch.float64)
    )


def _random(d: int, generator: torch.Generator) -> System:
    def draw() -> Tensor:
        return torch.randn(d, d, generator=generator, dtype=torch.float64) / math.sqrt(d)

    return system_of_maps(draw(), draw())


EXAMPLES: dict[str, Example] = {
    "aligned": Example(
        what="W = V = I: tokens run apart (T1, T2)", build=lambda d, g: _identity(d, 1.0)
    ),
    "anti-aligned": Example(
        what="W = I, V = -I: tokens come together at 0 (T1, T2)",
        build=lambda d, g: _identity(d, -1.0),
    ),
    "rotation": Example(what="W = I, V a quarter turn in each plane", build=_rotation),
    "spiral": Example(what="W = I, V a slow inward spiral", build=_spiral),
    "random": Example(what="W and V with independent normal entries", build=_random),
    "symmetric-pd": Example(
        what="random W and A, symmetric, A positive: certified to diverge",
        build=lambda d, g: scenario(d, _signs(d, d), g, antisymmetric=False),
    ),
    "symmetric-nd": Example(
        what="random W and A, symmetric, A negative: certified to converge",
        build=lambda d, g: scenario(d, _signs(d, 0), g, antisymmetric=False),
    ),
    "pd": Example(
        what="sym(W) and sym(A) positive definite, antisymmetric parts in both",
        build=lambda d, g: scenario(d, _signs(d, d), g, antisymmetric=True),
    ),
    "hd": Example(
        what="sym(W) positive definite, sym(A) half positive, half negative",
        build=lambda d, g: scenario(d, _signs(d, (d + 1) // 2), g, antisymmetric=True),
    ),
    "nd": Example(
        what="sym(W) positive, sym(A) negative definite, antisymmetric parts in both",
        build=lambda d, g: scenario(d, _signs(d, 0), g, antisymmetric=True),
    ),
}


def example_system(name: str, *, d_model: int = 3, seed: int = 0) -> System:
    """Return the example called `name` for tokens of width `d_model`.

    Raises:
        InputError: there is no such example.
    """
    if name not in EXAMPLES:
        raise InputError(f"no system is called {name!r}. Known: {', '.join(EXAMPLES)}.")
    if d_model < 1:
        raise InputError(f"tokens of width {d_model} were asked for; expected at least 1.")
    return EXAMPLES[name].build(d_model, random_stream(seed, f"weights of {name}"))
