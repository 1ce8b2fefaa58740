"""A flow's rate and the way back through it: what autograd would do, with compiled attention.

Enters: a `System` and its number of tokens. Leaves: a function x -> dx/dt that keeps what its way
back needs, and that way back: from the gradient with respect to a rate to those with respect to the
tokens and to every tensor of the system.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.flows._fast.head_mixing import HeadMixing
from orbitlens.flows._fast.mixing_back import MixingBack
from orbitlens.flows.fields import LARGEST_LOGIT, AttentionField, lengths
from orbitlens.flows.system import System
from orbitlens.running.products import product


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """A rate, and what its way back needs beside the tokens."""

    rate: Tokens
    rows: Float[Tensor, "tokens qkv"]
    means: Float[Tensor, "tokens mixed"]
    log_sums: Float[Tensor, "heads tokens"]
    size: Float[Tensor, "tokens 1"] | None  # of attention's output, where it is divided by that
    along: Float[Tensor, "tokens 1"] | None  # what of it the sphere takes away: its part along x

    @property
    def n_numbers(self) -> int:
        """How many numbers are kept."""
        kept = (self.rate, self.rows, self.means, self.log_sums)
        return sum(each.numel() for each in kept)


class RateBack:
    """The rate of a system, and the sums of gradients that its way back adds to."""

    def __init__(self, system: System, n_tokens: int) -> None:
        """Prepare; all sums are zero."""
        self.system = system
        self.field = AttentionField(system, n_tokens, compiled=True)
        mixing = HeadMixing.of(system, n_tokens)
        self._mix = mixing
        self._back = MixingBack(mixing=mixing, biased=system.alibi_slopes is not None)
        self._scale = min(system.beta, LARGEST_LOGIT[torch.float64])
        self._w_in = torch.zeros_like(self.field.w_in)
        self._w_out = torch.zeros_like(self.field.w_out)
        self._b_in = self.field.w_in.new_zeros(self.field.w_in.shape[1])
        self._b_out = self.field.w_in.new_zeros(system.d_model)
        self._positions = self.field.w_in.new_zeros(n_tokens, system.d_model)
        self._slopes = self.field.w_in.new_zeros(system.n_heads)

    def __call__(self, x: Tokens) -> Evaluated:
        """Return the rate at some tokens."""
        field, geometry = self.field, self.system.geometry
        with field.threads():
            rows = field.rows(field.seen(x))
            means = self._mix.mix_rows(rows, self._scale, field.turn)
            out = field.output(means)
        size = lengths(out) if geometry.normalises_output else None
        out = out if size is None else out / size
        along = (x * out).sum(dim=-1, keepdim=True) if geometry.on_sphere else None
        rate = out if along is None else out - along * x
        kept = {"rows": rows, "means": means, "log_sums": self._mix.log_sums()}
        return Evaluated(rate=rate, size=size, along=along, **kept)

    def back(self, x: Tokens, kept: Evaluated, given: Tokens) -> Tokens:
        """Return the gradient at the tokens from that at their rate, and add those of tensors."""
        with self.field.threads():
            return self._go_back(x, kept, given)

    def _go_back(self, x: Tokens, kept: Evaluated, given: Tokens) -> Tokens:
        field = self.field
        given, beside = self._through_geometry(x, kept, given)
        self._w_out += product(kept.means.mT, given)
        if self.system.drift is not None:
            self._b_out += given.sum(dim=0)
        asked = (kept.rows, kept.means, kept.log_sums, product(given, field.w_out.mT))
        rows, slopes = self._back(*asked, self._scale, field.turn)
        self._slopes += slopes
        seen = field.seen(x)
        self._w_in += product(seen.mT, rows)
        if self.system.b_q is not None or self.system.b_k is not None:
            self._b_in += rows.sum(dim=0)
        back = product(rows, field.w_in.mT)
        positions = self.system.positions if self.system.reinjected else None
        if self.system.geometry.normalises_input:
            inside = x if positions is None else x + positions
            back = _unit_back(seen, lengths(inside), back)
        if positions is not None:
            self._positions += back
        return back if beside is None else back + beside

    def _through_geometry(
        self, x: Tokens, kept: Evaluated, given: Tokens
    ) -> tuple[Tokens, Tokens | None]:
        """Return the gradients with respect to attention's output and, directly, to the tokens."""
        out, beside = kept.rate, None
        if kept.along is not None:
            out = out + kept.along * x
            spent = (given * x).sum(dim=-1, keepdim=True)
            beside = torch.addcmul(-spent * out, kept.along, given, value=-1.0)
            given = given - spent * x
        return given if kept.size is None else _unit_back(out, kept.size, given), beside

    def gradients(self) -> dict[str, Tensor]:
        """Return the sums, by the name of the tensor that they are gradients of."""
        system = self.system
        h, d, r = system.w_q.shape
        inward = self._w_in.view(d, 3, h, r).permute(1, 2, 0, 3)
        b_q, b_k, _ = self._b_in.view(3, h, r)
        found = dict(zip(("w_q", "w_k", "w_v"), inward, strict=True))
        found |= {"w_o": self._w_out.view(h, r, d), "b_q": b_q, "b_k": b_k, "drift": self._b_out}
        # ALiBi's slopes are taken times beta.
        return found | {"positions": self._positions, "alibi_slopes": system.beta * self._slopes}


def _unit_back(unit: Tokens, size: Tensor, given: Tokens) -> Tokens:
    """Turn the gradient at tokens of length 1 into that at the tokens before they had it."""
    return (given - (given * unit).sum(dim=-1, keepdim=True) * unit) / size
