"""Flows with norms: the heads of a model as a flow of directions (theory section 7).

Enters: the plain system of a head or layer, where its model has norms, and how long its tokens are.
Leaves: a `System` whose tokens are directions. A norm in front hands attention u_i = sqrt(d) y_i
with y_i = x_i / |x_i| (a LayerNorm: of x_i without its mean coordinate), and a layer adds A_i(u) to
x_i, so that the direction turns by

    y_i' = P_{y_i} A_i(sqrt(d) y) / |x_i|,     P_y = I - y y^T:

one unit of time is one layer. On the sphere all tokens have one length, which is held; in the
Pre-LN geometry, x_i' = A_i(sqrt(d) y), each has its own. Where norms stand on the stream itself,
behind attention and MLP, attention sees x_i = |x_i| y_i. The norm's epsilon is left out.
"""

import math
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.errors import InputError
from orbitlens.families.architecture import NormKind
from orbitlens.flows.fields import lengths
from orbitlens.flows.system import Geometry, System
from orbitlens.heads.head import Head


@dataclass(frozen=True, kw_only=True)
class Norms:
    """The norms around the attention of a model."""

    in_front: bool  # else on the stream itself, behind attention and MLP
    centres: bool  # the norm in front takes away a token's mean coordinate

    @classmethod
    def of(cls, head: Head) -> "Norms | None":
        """Return the norms around a head; None where attention sees tokens as they are."""
        if head.norm is None and not head.post_norm:
            return None
        return cls(in_front=head.norm is not None, centres=head.norm is NormKind.LAYER)

    def seen(self, x: Float[Tensor, "*any d_model"]) -> Float[Tensor, "*any d_model"]:
        """Return tokens as the norm sees them, but for their length."""
        return x - x.mean(dim=-1, keepdim=True) if self.centres else x

    def geometry(self, *, own_lengths: bool) -> Geometry:
        """Return where tokens live unless a reader asks otherwise."""
        return Geometry.PRE_LN if own_lengths and self.in_front else Geometry.SPHERE


def usual_length(d_model: int) -> float:
    """Return sqrt(d): the length of a token whose coordinates have a mean square of 1."""
    return math.sqrt(d_model)


def typical_length(x: Tokens) -> float:
    """Return 1 / mean(1 / |x_i|): the one length at which directions turn at their mean speed."""
    return 1.0 / (1.0 / lengths(x)).mean().item()


def direction_system(system: System, norms: Norms, *, geometry: Geometry, length: float) -> System:
    """Return the system that moves directions as the model does, tokens being `length` long.

    Raises:
        InputError: the length is not a positive number.
    """
    if not 0 < length < math.inf:
        raise InputError(f"tokens of length {length} were asked for; expected a positive number.")
    seen = usual_length(system.d_model) if norms.in_front else length
    # On the sphere a token is its direction: what moves it is divided by its length here.
    slow = 1.0 / length if geometry.on_sphere else 1.0
    drift = system.drift
    return replace(
        system,
        geometry=geometry,
        w_q=system.w_q * seen,
        w_k=system.w_k * seen,
        w_v=system.w_v * seen,
        w_o=norms.seen(system.w_o) * slow,
        drift=None if drift is None else norms.seen(drift) * slow,
    )
