"""Three hundred random systems against a right-hand side written from theory section 1 alone.

It shares neither code nor form with the simulator or with `slow_flow`: rotary scores come from the
relative offset, x_i^T W(m) x_j with W(m) = W_Q^T R(m) W_K, value maps are whole d x d matrices, and
all pairs are one product of tensors. SciPy's own DOP853 integrates it at 1e-10.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from orbitlens.families.architecture import Pairing
from orbitlens.flows.integrate import IntegrateOptions, integrate_flow
from orbitlens.flows.system import Geometry, Mask
from slow_flow import ENCODINGS, MASKS, random_system

GEOMETRIES = list(Geometry)
N_SYSTEMS, N_TOKENS, UNTIL, RTOL = 300, 5, 1.0, 1e-7
UNIT = {Geometry.SPHERE, Geometry.POST_LN, Geometry.NGPT}


def relative_turn(spec, offset):
    """Return R(m): plane k turns by m base^(-2k / d_rotary)."""
    turn, half = np.eye(spec.d_head), spec.d_rotary // 2
    for k in range(half):
        a, b = (k, k + half) if spec.pairing is Pairing.HALVES else (2 * k, 2 * k + 1)
        angle = offset * spec.base ** (-2.0 * k / spec.d_rotary)
        turn[a, a] = turn[b, b] = math.cos(angle)
        turn[a, b], turn[b, a] = -math.sin(angle), math.sin(angle)
    return turn


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


class Reference:
    """dx/dt of a system, from the formulas."""

    def __init__(self, system, n):
        self.system, places = system, np.arange(n)
        offsets = places[None, :] - places[:, None]  # j - i
        turns = [[np.eye(system.d_head)] * n for _ in range(n)]
        if system.rotary is not None:
            turns = [[relative_turn(system.rotary, m) for m in row] for row in offsets]
        self.turns = np.array(turns)
        self.bias = np.zeros((system.n_heads, n, n))
        if system.alibi_slopes is not None:
            self.bias = -system.alibi_slopes.numpy()[:, None, None] * np.abs(offsets)
        hidden = offsets > 0 if system.mask is Mask.CAUSAL else np.zeros((n, n), bool)
        if system.window is not None:
            hidden |= np.abs(offsets) >= system.window
        self.seen = ~hidden
        self.value = np.einsum("hdr,hre->hed", system.w_v.numpy(), system.w_o.numpy())  # V_h

    def attention(self, x):
        system = self.system
        q = np.einsum("id,hdr->hir", x, system.w_q.numpy())
        k = np.einsum("id,hdr->hir", x, system.w_k.numpy())
        q = q if system.b_q is None else q + system.b_q.numpy()[:, None]
        k = k if system.b_k is None else k + system.b_k.numpy()[:, None]
        scores = np.einsum("hir,ijrs,hjs->hij", q, self.turns, k) + self.bias
        weights = np.exp(system.beta * scores) * self.seen
        total = len(x) if system.unnormalised else weights.sum(axis=-1, keepdims=True)
        out = np.einsum("hed,hij,jd->ie", self.value, weights / total, x)
        return out if system.drift is None else out + system.drift.numpy()

    def __call__(self, x):
        system = self.system
        seen = x + system.positions.numpy() if system.reinjected else x
        if system.geometry in {Geometry.PRE_LN, Geometry.PERI_LN}:
            seen = unit(seen)
        out = self.attention(seen)
        if system.geometry in {Geometry.PERI_LN, Geometry.NGPT}:
            out = unit(out)
        if system.geometry in UNIT:
            out = out - (x * out).sum(axis=-1, keepdims=True) * x
        return out

    def flow(self, tokens):
        """Return the tokens at UNTIL; None where the flow is singular before."""
        x = tokens.numpy()
        if self.system.positions is not None and not self.system.reinjected:
            x = x + self.system.positions.numpy()
        x = unit(x) if self.system.geometry in UNIT else x
        solved = solve_ivp(
            lambda t, y: self(y.reshape(x.shape)).ravel(),
            (0.0, UNTIL),
            x.ravel(),
            "DOP853",
            rtol=1e-10,
            atol=1e-10,
        )
        return solved.y[:, -1].reshape(x.shape) if solved.success else None


def drawn(number):
    """Return one of the systems: every mask, encoding and geometry in turn, the rest at random."""
    settings = list(itertools.product(MASKS, ENCODINGS, GEOMETRIES))
    mask, encoding, geometry = settings[(7 * number) % len(settings)]
    random = np.random.default_rng(number)
    unnormalised = bool(random.random() < 0.15)  # whose tokens may be infinite soon
    beta = 0.1 if unnormalised else float(random.choice([0.3, 1.0, 3.0]))
    return random_system(
        number,
        heads=int(random.integers(1, 4)),
        d=4,
        r=int(random.choice([2, 4, 20])) if encoding != "rotary-partial" else 4,
        n=N_TOKENS,
        mask=mask,
        encoding=encoding,
        biased=bool(random.integers(2)),
        geometry=geometry,
        beta=beta,
        unnormalised=unnormalised,
    )


def deviation(found, expected):
    return np.abs(found.numpy() - expected).max() / max(np.abs(expected).max(), 1.0)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
@pytest.mark.parametrize("part", range(6))
def test_three_hundred_random_systems_end_where_theory_says(part, compiled):
    wrong = []
    for number in range(part, N_SYSTEMS, 6):
        system, tokens = drawn(number)
        options = IntegrateOptions(rtol=RTOL, n_saved=2, compiled=compiled)
        expected = Reference(system, N_TOKENS).flow(tokens)
        if expected is None:  # an output of 0 has no direction, and what is not normalised explodes
            assert system.geometry.normalises_output or system.unnormalised
            continue
        found = integrate_flow(system, tokens, until=UNTIL, options=options)
        wrong.append(deviation(found.final, expected))
    assert len(wrong) >= 46
    assert max(wrong) < 3e-5
    assert np.median(wrong) < RTOL


def test_every_mask_encoding_and_geometry_is_among_them():
    systems = [drawn(number)[0] for number in range(N_SYSTEMS)]
    assert {s.geometry for s in systems} == set(Geometry)
    assert {(s.mask, s.window) for s in systems} == {(m, w) for m in Mask for w in (None, 3)}
    assert sum(s.alibi_slopes is not None for s in systems) > 20
    assert sum(s.rotary is not None for s in systems) > 40
    assert sum(s.drift is not None for s in systems) > 100


def test_the_reference_would_notice_a_wrong_slope_offset_or_drift():
    """ALiBi as slope (j - i), which flows and their slow reference once shared."""
    tokens = torch.randn(
        N_TOKENS, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    system, _ = random_system(3, encoding="alibi", biased=True, n=N_TOKENS)
    right = Reference(system, N_TOKENS)
    expected = right(tokens.numpy())
    right.bias = -right.bias * np.sign(np.arange(N_TOKENS) - np.arange(N_TOKENS)[:, None])
    assert np.abs(right(tokens.numpy()) - expected).max() > 0.01
    system, _ = random_system(3, encoding="rotary", biased=True, n=N_TOKENS)
    turned = Reference(system, N_TOKENS)
    expected = turned(tokens.numpy())
    turned.turns = turned.turns.swapaxes(0, 1)
    assert np.abs(turned(tokens.numpy()) - expected).max() > 0.01
