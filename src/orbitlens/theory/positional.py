"""What position encodings do to a head's maps (theory sections 1 and 3).

Enters: a `Head`. Leaves: its maps at a rotary offset or averaged over a context, the share of each
rotary frequency, how much of each rate survives, and the drift that absolute positions add.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens._types import Covariance, Spectrum, Tokens
from orbitlens.errors import InputError
from orbitlens.families.architecture import RotarySpec
from orbitlens.heads.head import Head
from orbitlens.heads.rotary import mean_rotation, plane_indices, resolve_rotary, rotation_matrix
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.rates import Rates, core, rate_spectrum, rates_of_spectrum


@dataclass(frozen=True, kw_only=True)
class RotaryEffect:
    """What is left of a head's rates in a context of given length, attention uniform."""

    n_context: int
    rates: Rates  # with W averaged over the offsets of the context
    alignment: float
    size_survival: float  # sum of moduli of the rates, in the context over at offset 0
    rate_survival: Spectrum  # per rate at offset 0: what the context leaves of it, in its direction


def maps_at_offset(head: Head, offset: int, *, n_context: int | None = None) -> HeadMaps:
    """Return the maps with W(m) = W_Q^T R(m) W_K for tokens at offset m = i - j.

    `n_context` matters only for scaling types whose frequencies depend on the length.
    """
    spec = _rotary(head)
    resolved = resolve_rotary(spec, n_context or abs(offset) + 1)
    return HeadMaps.of(head, rotation_matrix(resolved, float(offset)))


def maps_in_context(head: Head, n_context: int) -> HeadMaps:
    """Return the maps with W averaged over the offsets that uniform attention sees in a context."""
    if n_context < 1:
        raise InputError(f"a context of {n_context} tokens was asked for; expected at least 1.")
    resolved = resolve_rotary(_rotary(head), n_context)
    turn = mean_rotation(resolved, n_context, causal=head.causal, window=head.window)
    return HeadMaps.of(head, turn)


def _rotary(head: Head) -> RotarySpec:
    if head.rotary is None:
        raise InputError(
            f"layer {head.layer}, head {head.index} has no rotary encoding "
            f"(its encoding is {head.position.value!r}), so offsets do not turn its scores."
        )
    return head.rotary


def frequency_energy(head: Head, *, n_context: int = 1) -> Float[Tensor, " pair"]:
    """Return the share of each rotary plane in the score map, |W_k|^2 / sum_k |W_k|^2.

    W_k is the part of W that plane k carries; planes are in the order of the frequencies, fast to
    slow. With partial rotary the shares of the turned planes sum to less than 1: the rest is the
    unturned part's.
    """
    resolved = resolve_rotary(_rotary(head), n_context)
    maps = HeadMaps.of(head)
    first, second = plane_indices(resolved)
    energy = torch.stack(
        [
            (maps.left_left[pair][:, pair] * maps.right_right[pair][:, pair]).sum()
            for pair in torch.stack([first, second], dim=1)
        ]
    )
    turned = torch.cat([first, second])
    rest = torch.ones(head.d_head, dtype=torch.bool)
    rest[turned] = False
    other = (maps.left_left[rest][:, rest] * maps.right_right[rest][:, rest]).sum()
    total = energy.sum() + other
    return energy / total if total > 0 else energy


def rotary_effect(head: Head, n_context: int, covariance: Covariance | None = None) -> RotaryEffect:
    """Compare a head's rates at offset 0 with those it keeps in a context of `n_context` tokens."""
    here, there = maps_at_offset(head, 0, n_context=n_context), maps_in_context(head, n_context)
    spectrum, survival = _survival(here, there, covariance)
    around = rate_spectrum(there, covariance)
    size = spectrum.abs().sum().item()
    return RotaryEffect(
        n_context=n_context,
        rates=rates_of_spectrum(around, head.d_model),
        alignment=there.alignment,
        size_survival=around.abs().sum().item() / size if size > 0 else 1.0,
        rate_survival=survival,
    )


def _survival(
    here: HeadMaps, there: HeadMaps, covariance: Covariance | None
) -> tuple[Spectrum, Spectrum]:
    """Return the rates at offset 0, and u^T sym(B') u / rate for each of their directions u.

    Both drifts live in the span of [O, L] (a rotation mixes the columns of L), so an orthonormal
    basis of it makes both of them 2r x 2r matrices.
    """
    basis, _ = torch.linalg.qr(torch.cat([here.out, here.left], dim=1))
    drifts = [(basis.T @ m.out) @ core(m, covariance) @ (m.left.T @ basis) for m in (here, there)]
    first, second = ((drift + drift.T) / 2 for drift in drifts)
    rates, directions = torch.linalg.eigh(first)
    kept = (directions * (second @ directions)).sum(dim=0)
    matters = rates.abs() > 1e-9 * rates.abs().max()
    return rates[matters], kept[matters] / rates[matters]


def positional_drift(
    head: Head, positions: Float[Tensor, "position d_model"], tokens: Tokens
) -> Tokens:
    """Return the drift that absolute positions add: V sum_j pi_ij p_j for every token i.

    pi_i = softmax_j(p_j . (W^T x_i + c)): positions pull as points while content pulls as a
    Gaussian around them (the closure of theory section 3, exact for many tokens a position).
    `positions` are the points as the head sees them, after the norm in front of it.
    """
    if positions.shape[1] != head.d_model or tokens.shape[1] != head.d_model:
        raise InputError(
            f"positions of width {positions.shape[1]} and tokens of width {tokens.shape[1]} were "
            f"given to a head of width {head.d_model}; expected three equal widths."
        )
    maps = HeadMaps.of(head)
    queries = tokens @ maps.left @ maps.right.T + head.score_shift
    pull = (queries @ positions.T).softmax(dim=-1)
    return pull @ positions @ maps.value @ maps.out.T
