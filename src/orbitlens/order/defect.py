"""How far a function is from symmetric under permutations; any callable, any subgroup.

Enters: a function of items (rows), an input, a group. Leaves: one number; `assert_invariant` and
`assert_equivariant` turn it into a test for people's own suites.

**What neighbour swaps prove.** If f(s y) = f(y) for every generator s *at every input y*, then f is
invariant under the whole group: an element is a product of generators, peeled off one by one. At a
single input x, f(s x) = f(x) for all s proves nothing about products: f(s t x) = f(t x) has to hold
at the arrangement t x, which is another input. So the defect is measured along a walk: at each
arrangement the walk visits, generators are tried, and elements drawn from the whole group are tried
at the start. A number above rounding disproves the symmetry; one at rounding is evidence, no proof.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.order.permutations import Group, Permutation, all_permutations

Function = Callable[[Tensor], Tensor]


def permutation_defect(
    f: Function,
    tokens: Tensor,
    group: Group | None = None,
    *,
    equivariant: bool = False,
    n_trials: int = 16,
    generator: torch.Generator | None = None,
) -> float:
    """Return the largest relative change of f under permutations of its items.

        invariance    max over p of |f(p x) - f(x)| / |f(x)|
        equivariance  max over p of |f(p x) - p f(x)| / |f(x)|

    Args:
        f: from items (first axis) to any tensor; for equivariance, to one row an item.
        tokens: the input x, items on the first axis.
        group: what to permute by; all permutations if None.
        equivariant: ask for f(p x) = p f(x) in place of f(p x) = f(x).
        n_trials: elements drawn from the group, and steps of the walk through generators.
        generator: source of randomness; seeded with 0 if None.

    >>> x = torch.tensor([1.0, 2.0, 4.0])
    >>> permutation_defect(torch.sum, x)
    0.0
    >>> permutation_defect(torch.square, x, equivariant=True)
    0.0
    >>> permutation_defect(lambda x: x[0], x) > 0.5
    True
    """
    chosen = group or all_permutations(len(tokens))
    if chosen.n_items != len(tokens):
        raise InputError(
            f"the group acts on {chosen.n_items} items, the input has {len(tokens)}. "
            "Items are on the first axis."
        )
    source = generator or torch.Generator().manual_seed(0)
    start = f(tokens)
    worst = 0.0
    for element in chosen.draw(n_trials, source):
        worst = max(worst, _change(f, tokens, start, element, equivariant))
    here, value = tokens, start
    for _ in range(n_trials):
        pick = int(torch.randint(len(chosen.generators), (1,), generator=source))
        step = chosen.generators[pick]
        worst = max(worst, _change(f, here, value, step, equivariant))
        here = here[step]
        value = f(here)
    return worst


def assert_invariant(
    f: Function,
    tokens: Tensor,
    group: Group | None = None,
    *,
    tolerance: float = 1e-6,
    n_trials: int = 16,
    generator: torch.Generator | None = None,
) -> None:
    """Raise AssertionError unless f(p x) = f(x) to `tolerance` for the permutations tried."""
    defect = permutation_defect(f, tokens, group, n_trials=n_trials, generator=generator)
    if not defect <= tolerance:
        raise AssertionError(
            f"not invariant: permuting the items changes the output by {defect:.3g} of its size, "
            f"more than {tolerance:.3g}."
        )


def assert_equivariant(
    f: Function,
    tokens: Tensor,
    group: Group | None = None,
    *,
    tolerance: float = 1e-6,
    n_trials: int = 16,
    generator: torch.Generator | None = None,
) -> None:
    """Raise AssertionError unless f(p x) = p f(x) to `tolerance` for the permutations tried."""
    defect = permutation_defect(
        f, tokens, group, equivariant=True, n_trials=n_trials, generator=generator
    )
    if not defect <= tolerance:
        raise AssertionError(
            f"not equivariant: f(p x) and p f(x) differ by {defect:.3g} of the output's size, more "
            f"than {tolerance:.3g}."
        )


def _change(
    f: Function, tokens: Tensor, value: Tensor, element: Permutation, equivariant: bool
) -> float:
    expected = value[element] if equivariant else value
    difference = (f(tokens[element]) - expected).double().norm()
    size = value.double().norm()
    if not torch.isfinite(difference):
        return float("inf")
    return float(difference / size) if size > 0 else float(difference)
