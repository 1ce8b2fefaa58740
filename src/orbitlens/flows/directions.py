"""What theorems N1 to N6 ask of a flow of directions (docs/certificates.md).

Enters: a softmax `System` whose tokens are normalised, and its tokens. Leaves: `Directions`, of

    d/dt y_i = s_i (I - y_i y_i^T) (sum_h V_h sum_j p^h_ij y_j + b),      y_i = x_i / |x_i|,

with speeds s_i = 1 on the sphere, and 1 / |x_i|, 1 / |A_i| or both in the other geometries, where
what a theorem says of the end still holds and what it says of rates does not.
"""

from dataclasses import dataclass

import numpy as np

from orbitlens._types import Tokens
from orbitlens.flows.certify import value_scalars
from orbitlens.flows.system import Geometry, Mask, System
from orbitlens.heads.head import Head
from orbitlens.theory.certificates import Hypothesis
from orbitlens.theory.eigenpairs import Matrix, Vector
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.sharpness import score_spread, smallest_weight

UNIT_SPEED = {Geometry.SPHERE, Geometry.POST_LN}


@dataclass(frozen=True, kw_only=True)
class Directions:
    """What the theorems ask of a flow of directions."""

    system: System
    heads: list[Head]
    maps: list[HeadMaps]
    tokens: Matrix  # of length 1
    scalars: tuple[float, ...] | None  # v_h where every V_h is v_h I to the last bit
    drift: Vector

    @classmethod
    def of(
        cls, system: System, tokens: Tokens, heads: list[Head], maps: list[HeadMaps]
    ) -> "Directions":
        """Read them off a system and its start, positions included."""
        x = tokens.numpy()
        lengths = np.linalg.norm(x, axis=1, keepdims=True)
        return cls(
            system=system,
            heads=heads,
            maps=maps,
            tokens=x / np.maximum(lengths, 1e-300),
            scalars=value_scalars(system),
            drift=np.zeros(x.shape[1]) if system.drift is None else system.drift.numpy(),
        )

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    @property
    def is_causal(self) -> bool:
        """Whether the mask is causal."""
        return self.system.mask is Mask.CAUSAL

    @property
    def has_unit_speed(self) -> bool:
        """Whether rates are those of the flow's own time."""
        return self.system.geometry in UNIT_SPEED

    def least_weight(self, head: int) -> float:
        """Return a floor of the attention weights of a head."""
        spread = self.spread(head)
        return 0.0 if spread is None else smallest_weight(spread, self.n_tokens)

    def spread(self, head: int) -> float | None:
        """Return a bound on the difference of two scores of a head, for tokens of length 1."""
        return score_spread(self.heads[head], self.maps[head], length=1.0, n_tokens=self.n_tokens)

    # --- hypotheses ---

    def no_drift(self) -> Hypothesis:
        """No bias pulls tokens to a direction of its own."""
        return Hypothesis(
            name="no drift", holds=not self.drift.any(), detail="a bias pulls every token"
        )

    def causal(self) -> Hypothesis:
        """The first token sees itself alone."""
        return Hypothesis(
            name="the mask is causal",
            holds=self.is_causal,
            detail="the first token sees the others too",
        )

    def no_window(self) -> Hypothesis:
        """Every token sees all others, or all before it."""
        window = self.system.window
        return Hypothesis(
            name="no window",
            holds=window is None or window >= self.n_tokens,
            detail=f"a token sees {window} others at most",
        )

    def scalar_values(self) -> Hypothesis:
        """V_h = v_h I with v_h >= 0."""
        if self.scalars is None:
            detail = "a value map is no multiple of I"
        else:
            detail = "none is positive" if min(self.scalars) >= 0 else "a multiple is negative"
        good = self.scalars is not None and min(self.scalars) >= 0
        pulled = bool(self.drift.any())
        return Hypothesis(
            name="value maps are v_h I with v_h >= 0",
            holds=good and (pulled or sum(self.scalars or ()) > 0),
            detail=detail,
        )
