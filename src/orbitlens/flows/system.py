"""System: everything that decides how tokens move (theory section 1).

Enters: heads, invented or read from a checkpoint. Leaves: a `System` of plain tensors, which
`fields.py` turns into a vector field

    d/dt x_i = sum_h V_h sum_j p^h_ij x_j + b,     p^h_ij = softmax_j(beta (q_i . k_j + bias_ij)).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.families.architecture import Position, RotarySpec
from orbitlens.heads.head import Head
from orbitlens.heads.layers import AttentionLayer


class Mask(StrEnum):
    """Which tokens a token sees."""

    FULL = "full"
    CAUSAL = "causal"


class Geometry(StrEnum):
    """Where tokens live, and how normalisation regulates their speed (arXiv 2510.22026).

    With A_i the attention output at token i and theta = x / |x|:

        free    x' = A(x)                      sphere (= post-ln)  x' = P_x A(x),  |x| = 1
        pre-ln  x' = A(theta)                  peri-ln             x' = A(theta) / |A(theta)|
        ngpt    x' = P_x A(x) / |A(x)|, |x| = 1

    Each is the limit of its discrete layer at a small step, which is how they are tested.
    """

    FREE = "free"
    SPHERE = "sphere"
    POST_LN = "post-ln"
    PRE_LN = "pre-ln"
    PERI_LN = "peri-ln"
    NGPT = "ngpt"

    @property
    def on_sphere(self) -> bool:
        """Whether tokens keep length 1."""
        return self in {Geometry.SPHERE, Geometry.POST_LN, Geometry.NGPT}

    @property
    def normalises_input(self) -> bool:
        """Whether attention sees tokens divided by their length."""
        return self in {Geometry.PRE_LN, Geometry.PERI_LN}

    @property
    def normalises_output(self) -> bool:
        """Whether attention's output is divided by its length."""
        return self in {Geometry.PERI_LN, Geometry.NGPT}


@dataclass(frozen=True, kw_only=True)
class System:
    """A flow of tokens; weights act from the right and carry the scale of the scores."""

    w_q: Float[Tensor, "head d_model d_head"]
    w_k: Float[Tensor, "head d_model d_head"]
    w_v: Float[Tensor, "head d_model d_head"]
    w_o: Float[Tensor, "head d_head d_model"]
    b_q: Float[Tensor, "head d_head"] | None = None  # carries the scale too
    b_k: Float[Tensor, "head d_head"] | None = None
    drift: Float[Tensor, " d_model"] | None = None  # b: moves every token alike
    beta: float = 1.0
    mask: Mask = Mask.FULL
    window: int | None = None
    geometry: Geometry = Geometry.FREE
    rotary: RotarySpec | None = None
    alibi_slopes: Float[Tensor, " head"] | None = None
    positions: Float[Tensor, "tokens d_model"] | None = None  # absolute encodings
    reinjected: bool = False  # p_i added before every layer, not to the start alone
    unnormalised: bool = False  # weights exp(score) / n in place of a softmax
    noise: float = 0.0  # standard deviation of the noise per square root of time

    @property
    def n_heads(self) -> int:
        """Number of heads."""
        return self.w_q.shape[0]

    @property
    def d_model(self) -> int:
        """Width of the tokens."""
        return self.w_q.shape[1]

    @property
    def d_head(self) -> int:
        """Width of a head."""
        return self.w_q.shape[2]

    def __post_init__(self) -> None:
        """Refuse shapes that do not fit together and numbers that mean nothing."""
        self._check_weights()
        if not (self.beta >= 0 and self.beta < float("inf")):
            raise InputError(f"beta is {self.beta}; expected a number that is not negative.")
        if not 0 <= self.noise < float("inf"):
            raise InputError(f"noise is {self.noise}; expected a number that is not negative.")
        if self.window is not None and self.window < 1:
            raise InputError(f"the window is {self.window}; expected at least 1 token.")
        if self.reinjected and self.positions is None:
            raise InputError("positions are to be re-injected, and there are none. Give positions.")
        if self.rotary is not None and self.rotary.d_head != self.d_head:
            raise InputError(
                f"the rotary encoding is for heads of width {self.rotary.d_head}; "
                f"these are {self.d_head} wide."
            )

    def _check_weights(self) -> None:
        shape = tuple(self.w_q.shape)
        good = (
            len(shape) == 3
            and tuple(self.w_k.shape) == shape
            and tuple(self.w_v.shape) == shape
            and tuple(self.w_o.shape) == (shape[0], shape[2], shape[1])
        )
        if not good:
            raise InputError(
                f"w_q has shape {list(self.w_q.shape)}, w_k {list(self.w_k.shape)}, w_v "
                f"{list(self.w_v.shape)} and w_o {list(self.w_o.shape)}; expected heads x d_model "
                "x d_head three times, then heads x d_head x d_model."
            )
        h, d, r = shape
        expected = {"b_q": (h, r), "b_k": (h, r), "drift": (d,), "alibi_slopes": (h,)}
        for name, fits in expected.items():
            found = getattr(self, name)
            if found is not None and tuple(found.shape) != fits:
                raise InputError(
                    f"{name} has shape {list(found.shape)}; {h} heads of width {r} on tokens of "
                    f"width {d} need {list(fits)}."
                )
        for name in ("w_q", "w_k", "w_v", "w_o", *expected, "positions"):
            found = getattr(self, name)
            if found is not None and not torch.isfinite(found).all():
                raise InputError(f"{name} holds NaN or infinity.")


def system_of_maps(
    score: Float[Tensor, "*head d_model d_model"], value: Float[Tensor, "*head d_model d_model"]
) -> System:
    """Return the flow of full maps W and V (acting on columns, as the theory writes them).

    For examples in few dimensions; a head of a checkpoint keeps its factors (`system_of_layer`).
    """
    w, v = (m.double().reshape(-1, *m.shape[-2:]) for m in (score, value))
    eye = torch.eye(w.shape[-1], dtype=torch.float64).expand_as(w)
    # x_i^T W x_j = (x_i W) . x_j, and V x_j as a row is x_j V^T.
    return System(w_q=w, w_k=eye, w_v=eye, w_o=v.transpose(-1, -2))


def system_of_heads(heads: Sequence[Head], *, drift: Tensor | None = None) -> System:
    """Return the flow of heads side by side, as one layer repeated at every depth.

    Raises:
        InputError: the heads have a score that is not bilinear (query-key norm, soft cap, clip), or
            a position encoding that the flow does not have.
    """
    if not heads:
        raise InputError("a system needs at least one head.")
    first = heads[0]
    if not all(h.has_bilinear_scores for h in heads):
        raise InputError(
            "this head normalises, caps or clips its scores, which the flow does not have. "
            "Simulate a head of another model."
        )
    if first.position in {Position.T5_BIAS, Position.DISENTANGLED}:
        raise InputError(
            f"this head has the position encoding {first.position.value!r}, which the flow does "
            "not have. Simulate a head of another model."
        )
    values = sum((h.value_shift for h in heads), torch.zeros(first.d_model, dtype=torch.float64))
    slopes = torch.tensor([h.alibi_slope for h in heads], dtype=torch.float64)
    return System(
        w_q=torch.stack([h.w_q * h.scale for h in heads]),
        w_k=torch.stack([h.w_k for h in heads]),
        w_v=torch.stack([h.value_factors[0] for h in heads]),
        w_o=torch.stack([h.value_factors[1] for h in heads]),
        b_q=torch.stack([h.b_q * h.scale for h in heads]),
        b_k=torch.stack([h.b_k for h in heads]),
        drift=values if drift is None else values + drift,
        mask=Mask.CAUSAL if first.causal else Mask.FULL,
        window=first.window,
        rotary=first.rotary,
        alibi_slopes=slopes if first.position is Position.ALIBI else None,
    )


def system_of_layer(layer: AttentionLayer) -> System:
    """Return the flow of a whole attention layer of a checkpoint."""
    return system_of_heads(list(layer), drift=layer.b_o)


def with_settings(system: System, **changes: object) -> System:
    """Return the system with some settings changed, checked anew."""
    return replace(system, **changes)  # type: ignore[arg-type]
