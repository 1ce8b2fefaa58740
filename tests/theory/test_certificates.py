"""Certificates: each hypothesis counts, each margin has its meaning, and the theorems are true.

The second half integrates the flow itself: every conclusion is checked on systems that got the
certificate, and shown to fail on a system that lacks one hypothesis.
"""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from orbitlens.families.architecture import NormKind, Pairing, Position, QKNormScope, RotarySpec
from orbitlens.heads.head import QKNorm, make_head
from orbitlens.heads.rotary import resolve_rotary, rotation_matrix
from orbitlens.theory.certificates import THEOREMS
from orbitlens.theory.eigenpairs import Growth, certain_eigenpairs
from orbitlens.theory.plain import head_certificates, layer_certificates
from random_heads import (
    PROPERTY,
    SEEDS,
    dense_score,
    dense_value,
    head_of,
    in_basis,
    normal,
    orthogonal,
    random_head,
    regauged,
    seeded,
    symmetric_part,
    zero_head,
)

# --- systems ---------------------------------------------------------------------------------


def definite(source, d):
    m = normal(source, d, d)
    return m @ m.T / d + 0.3 * torch.eye(d, dtype=torch.float64)


def twist(source, d):
    m = normal(source, d, d)
    return (m - m.T) / 2


def aligned_maps(seed, *, d=3, sign=1.0, symmetric=False):
    """Return (A, W, V) with A symmetric of the given sign, sym(W) > 0 and W = A V."""
    source = seeded(seed)
    a, w = sign * definite(source, d), definite(source, d)
    if not symmetric:
        w = w + twist(source, d)
    return a, w, torch.linalg.solve(a, w)


def aligned_head(seed, **options):
    _, w, v = aligned_maps(seed, **options)
    return head_of(w, v)


def mild_gauge(source, r):
    """Return an invertible matrix whose singular values lie between 1/2 and 2."""
    stretch = torch.rand(r, generator=source, dtype=torch.float64) * 1.5 + 0.5
    return orthogonal(source, r) * stretch @ orthogonal(source, r)


def narrow_aligned_head(seed, *, d=5, r=2, sign=1.0):
    """Return (A, head) of low rank with W = A V: keys read what values read."""
    source = seeded(seed)
    a, out, value = sign * definite(source, d), normal(source, d, r), normal(source, d, r)
    gauge = mild_gauge(source, r)
    left = a @ out @ torch.linalg.inv(gauge).T  # W = A O U^T, in another gauge than V = O U^T
    return a, make_head(left, value @ gauge, value, out.T.contiguous(), scale=1.0)


def certificates(head):
    return {certificate.name: certificate for certificate in head_certificates(head)}


def held(head):
    return {name for name, certificate in certificates(head).items() if certificate.holds}


def failing(head, name):
    return [h.name for h in certificates(head)[name].hypotheses if not h.holds]


def rotary(head):
    spec = RotarySpec(
        base=20.0, d_rotary=head.d_head // 2 * 2, d_head=head.d_head, pairing=Pairing.NEIGHBOURS
    )
    return dataclasses.replace(head, rotary=spec, position=Position.ROTARY)


# --- who gets a certificate ------------------------------------------------------------------


@PROPERTY
@given(SEEDS, st.integers(1, 3).map(lambda k: 2 * k - 1))
def test_an_aligned_head_of_full_width_diverges_by_t1_t2_and_t3(seed, d):
    """In odd width V has a real eigenvalue, and all of them have positive real parts."""
    found = certificates(aligned_head(seed, d=d))
    assert {name for name in found if found[name].holds} == {"T1", "T2", "T3", "T5"}
    assert "never shrink" in found["T1"].why
    assert "tokens diverge" in found["T2"].why


@PROPERTY
@given(SEEDS, st.integers(1, 5))
def test_an_anti_aligned_head_of_full_width_converges_by_t1_and_t2(seed, d):
    found = certificates(aligned_head(seed, d=d, sign=-1.0))
    assert {name for name in found if found[name].holds} == {"T1", "T2", "T5"}
    assert "never grow" in found["T1"].why
    assert "converge to 0" in found["T2"].why


@PROPERTY
@given(SEEDS, st.integers(1, 3), st.integers(1, 4), st.sampled_from([1.0, -1.0]))
def test_a_narrow_head_with_w_equal_to_a_v_gets_t1_but_never_t2(seed, r, extra, sign):
    _, head = narrow_aligned_head(seed, d=r + extra, r=r, sign=sign)
    found = certificates(head)
    assert found["T1"].holds
    assert ("never shrink" in found["T1"].why) == (sign > 0)
    assert failing(head, "T2") == ["sym(W) is positive definite"]
    assert found["T2"].margin == -1.0


@PROPERTY
@given(SEEDS, st.integers(2, 8), st.integers(1, 8))
def test_a_random_head_gets_neither_t1_nor_t2(seed, d, r):
    head = random_head(d, r, seed)
    assert not held(head) & {"T1", "T2"}
    assert "A is symmetric" in failing(head, "T1") or r == 1


def test_a_head_of_any_kind_has_a_speed_limit():
    assert "T5" in held(random_head(6, 2, 0))


def biased(head, **which):
    changes = {n: torch.full((head.d_head,), x, dtype=torch.float64) for n, x in which.items()}
    return dataclasses.replace(head, **changes)


def with_query_norm(head):
    one, zero = torch.ones_like(head.b_q), torch.zeros_like(head.b_q)
    norm = QKNorm(
        kind=NormKind.RMS,
        scope=QKNormScope.HEAD,
        epsilon=1e-6,
        q_gain=one,
        k_gain=one,
        q_shift=zero,
        k_shift=zero,
        q_typical=1.0,
        k_typical=1.0,
    )
    return dataclasses.replace(head, qk_norm=norm)


def changed(**fields):
    return lambda head: dataclasses.replace(head, **fields)


# What each change takes away from (T1, T2, T3, T5) and what it adds, W not being symmetric.
TOGGLES = {
    "causal": (changed(causal=True), {"T1", "T2"}, {"T4"}),
    "window": (changed(window=4), {"T1", "T2"}, set()),
    "causal and window": (changed(causal=True, window=4), {"T1", "T2"}, {"T4"}),
    "rotary": (rotary, {"T1", "T2"}, set()),
    "alibi": (changed(position=Position.ALIBI), {"T1", "T2"}, set()),
    "t5 bias": (changed(position=Position.T5_BIAS), {"T1", "T2"}, set()),
    "disentangled": (changed(position=Position.DISENTANGLED), {"T1", "T2"}, set()),
    "learned": (changed(position=Position.LEARNED), set(), set()),
    "sinusoidal": (changed(position=Position.SINUSOIDAL), set(), set()),
    "query bias": (lambda head: biased(head, b_q=0.1), {"T2"}, set()),
    "key bias": (lambda head: biased(head, b_k=0.1), set(), set()),  # it cancels in the softmax
    "value bias": (lambda head: biased(head, b_v=0.1), {"T2"}, set()),
    "soft cap": (changed(softcap=5.0), {"T1", "T2"}, set()),
    "query norm": (with_query_norm, {"T1", "T2"}, set()),
    "clip": (changed(clip=3.0), {"T1", "T2", "T3", "T5"}, set()),
    "output norm": (
        changed(output_gain=torch.ones(3, dtype=torch.float64)),
        {"T1", "T2", "T3", "T5"},
        set(),
    ),
}


@pytest.mark.parametrize("name", TOGGLES)
def test_a_violated_hypothesis_takes_exactly_its_own_certificates(name):
    change, lost, gained = TOGGLES[name]
    head = aligned_head(0)
    before = held(head)
    assert before == {"T1", "T2", "T3", "T5"}
    assert held(change(head)) == (before - lost) | gained


@pytest.mark.parametrize("name", ["rotary", "alibi", "window", "soft cap", "query norm"])
def test_what_takes_t1_and_t2_leaves_the_leader_of_a_causal_head(name):
    head = dataclasses.replace(aligned_head(0), causal=True)
    assert {"T3", "T4", "T5"} <= held(TOGGLES[name][0](head))


@pytest.mark.parametrize("name", ["clip", "output norm"])
def test_values_that_are_not_linear_leave_a_causal_head_nothing(name):
    head = dataclasses.replace(aligned_head(0), causal=True)
    assert held(TOGGLES[name][0](head)) == set()
    assert failing(TOGGLES[name][0](head), "T4") == ["values are linear"]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_causal_head_keeps_t2_only_if_its_score_map_is_symmetric(sign):
    even = dataclasses.replace(aligned_head(1, sign=sign, symmetric=True), causal=True)
    assert "T2" in held(even)
    assert "T1" not in held(even)
    odd = dataclasses.replace(aligned_head(1, sign=sign), causal=True)
    assert "T2" not in held(odd)


def test_a_score_map_that_is_almost_symmetric_does_not_pass_for_symmetric():
    source = seeded(2)
    a, w = definite(source, 3), definite(source, 3) + 1e-4 * twist(source, 3)
    head = dataclasses.replace(head_of(w, torch.linalg.solve(a, w)), causal=True)
    assert "T2" not in held(head)
    assert "T2" in held(dataclasses.replace(head, causal=False))


def test_an_antisymmetric_part_of_the_alignment_takes_t1_and_t2():
    source = seeded(3)
    a, w = definite(source, 3), definite(source, 3)
    for share, expected in ((0.0, {"T1", "T2"}), (1e-3, set()), (1.0, set())):
        head = head_of(w, torch.linalg.solve(a + share * twist(seeded(4), 3), w))
        assert held(head) & {"T1", "T2"} == expected
        if share:
            assert failing(head, "T1") == ["A is symmetric"]


def test_an_indefinite_alignment_takes_t1_and_t2_and_turns_the_margin_negative():
    source = seeded(5)
    q, w = orthogonal(source, 3), definite(source, 3)
    a = q @ torch.diag(torch.tensor([1.0, 0.5, -0.2], dtype=torch.float64)) @ q.T
    head = head_of(w, torch.linalg.solve(a, w))
    assert failing(head, "T1") == failing(head, "T2") == ["A is definite"]
    assert certificates(head)["T1"].margin < 0
    assert "T3" in held(head)  # det V < 0 in odd width: V has eigenvalues of both signs


def test_an_indefinite_score_map_takes_t2_alone():
    source = seeded(6)
    q, a = orthogonal(source, 3), definite(source, 3)
    w = q @ torch.diag(torch.tensor([1.0, 0.7, -0.1], dtype=torch.float64)) @ q.T
    head = head_of(w, torch.linalg.solve(a, w))
    assert "T1" in held(head)
    assert failing(head, "T2") == ["sym(W) is positive definite"]
    assert certificates(head)["T2"].margin == pytest.approx(-0.1, rel=1e-9)


def test_keys_that_read_what_values_do_not_take_t1():
    _, head = narrow_aligned_head(7)
    strayed = dataclasses.replace(head, w_k=head.w_k + 1e-3 * normal(seeded(8), 5, 2))
    assert "T1" in held(head)
    assert "W = A V for some A" in failing(strayed, "T1")


def test_a_refusal_names_every_hypothesis_that_fails_and_no_other():
    head = rotary(dataclasses.replace(aligned_head(0), causal=True))
    refused = certificates(head)["T1"]
    failed = [h for h in refused.hypotheses if not h.holds]
    assert [h.name for h in failed] == [
        "every token sees every token",
        "scores do not depend on positions",
    ]
    assert refused.why.startswith("no certificate")
    assert all(h.name in refused.why and h.detail in refused.why for h in failed)
    assert all(h.name not in refused.why for h in refused.hypotheses if h.holds)


def test_what_survives_a_rotary_encoding_is_as_the_table_says():
    for causal in (False, True):
        head = dataclasses.replace(aligned_head(0, symmetric=True), causal=causal)
        survivors = held(rotary(head))
        assert survivors == {n for n in held(head) if THEOREMS[n].survives_rotary}
        assert survivors < held(head)


def test_a_zero_head_gets_nothing_but_a_speed_limit_of_zero():
    for causal in (False, True):
        head = dataclasses.replace(zero_head(4, 4), causal=causal)
        assert held(head) == {"T5"}
        assert [c.margin for c in head_certificates(head)] == [0.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("size", [1e-200, 1e-100])
def test_a_speed_limit_whose_square_floats_do_not_hold_is_none(size):
    """Of maps of 1e-200 it was once printed that no token grows at all."""
    head = dataclasses.replace(zero_head(4, 4), w_v=size * torch.eye(4).double())
    head = dataclasses.replace(head, w_o=size * torch.eye(4).double())
    assert "T5" not in held(head)


def test_rounding_does_not_make_an_eigenvalue():
    """V of rank one with V^2 = 0 has only the eigenvalue 0, whatever sign rounding gives it."""
    signs = set()
    for seed in range(12):
        q = orthogonal(seeded(seed), 6)
        value, out = q[:, :1], q[:, 1:2].T.contiguous()
        head = dataclasses.replace(make_head(value, value, value, out), causal=True)
        signs.add(bool((value.T @ out.T).item() > 0))
        assert not held(head) & {"T3", "T4"}
    assert signs == {True, False}


# --- margins ---------------------------------------------------------------------------------


@PROPERTY
@given(SEEDS, st.integers(1, 5), st.sampled_from([1.0, -1.0]))
def test_margins_of_t1_and_t2_are_those_of_the_dense_forms(seed, d, sign):
    a, w, v = aligned_maps(seed, d=d, sign=sign)
    form = torch.linalg.eigvalsh(symmetric_part(v.T @ w)).abs()
    score = torch.linalg.eigvalsh(symmetric_part(w))
    found = certificates(head_of(w, v))
    margin = (form.min() / form.max()).item()
    assert found["T1"].margin == pytest.approx(margin, rel=1e-6)
    assert found["T2"].margin == pytest.approx(min(margin, (score[0] / score[-1]).item()), rel=1e-6)
    assert (torch.linalg.eigvalsh(a) * sign > 0).all()


@PROPERTY
@given(SEEDS, st.integers(1, 8), st.integers(1, 8))
def test_margins_of_t3_t4_and_t5_are_read_off_the_dense_value_map(seed, d, r):
    head = random_head(d, r, seed, causal=True)
    v = dense_value(head).numpy()
    spectrum, norm = np.linalg.eigvals(v), np.linalg.norm(v, 2)
    found = certificates(head)
    assert found["T5"].margin == pytest.approx(norm, rel=1e-9)
    assert found["T4"].margin == pytest.approx(spectrum.real.max(), abs=1e-9 * norm)
    real = spectrum[np.abs(spectrum.imag) < 1e-9 * norm].real
    positive = real[real > 1e-9 * norm]
    assert found["T3"].holds == (positive.size > 0)
    if positive.size:
        assert found["T3"].margin == pytest.approx(positive.max(), rel=1e-7)


def test_the_margin_of_t3_is_minus_the_radius_where_no_eigenvalue_is_real():
    turn = torch.tensor([[1.0, -2.0], [2.0, 1.0]], dtype=torch.float64)
    certificate = certificates(head_of(torch.eye(2, dtype=torch.float64), turn))["T3"]
    assert not certificate.holds
    assert certificate.margin == pytest.approx(-(5**0.5))


@pytest.mark.parametrize(("share", "word"), [(0.5, "diverges"), (-0.5, "converges")])
def test_the_leader_follows_the_sign_of_the_abscissa(share, word):
    eye = torch.eye(3, dtype=torch.float64)
    leader = certificates(dataclasses.replace(head_of(eye, share * eye), causal=True))["T4"]
    assert leader.holds
    assert word in leader.why
    assert leader.margin == pytest.approx(share)


def test_the_leader_of_a_narrow_head_keeps_what_lies_in_the_kernel():
    columns = orthogonal(seeded(0), 4)[:, :2]
    head = make_head(columns, columns, columns, -columns.T.contiguous())
    leader = certificates(dataclasses.replace(head, causal=True))["T4"]
    assert (leader.holds, leader.margin) == (False, 0.0)
    assert "kernel" in leader.why


# --- invariances -----------------------------------------------------------------------------


def close_to(head, other, *, rel=1e-6):
    """Return whether two heads get the same certificates, by the same margins."""
    first, second = certificates(head), certificates(other)
    return held(head) == held(other) and all(
        second[name].margin == pytest.approx(first[name].margin, rel=rel, abs=1e-9)
        for name in first
    )


@st.composite
def systems(draw):
    """Draw how to build a head: aligned, anti-aligned, narrow or random, causal or not."""
    kind = draw(st.sampled_from(["full", "narrow", "random"]))
    return kind, draw(SEEDS), draw(st.sampled_from([1.0, -1.0])), draw(st.booleans())


def built(system):
    kind, seed, sign, causal = system
    if kind == "full":
        head = aligned_head(seed, sign=sign, symmetric=causal)
    elif kind == "narrow":
        _, head = narrow_aligned_head(seed, sign=sign)
    else:
        head = random_head(5, 3, seed)
    return dataclasses.replace(head, causal=causal)


@PROPERTY
@given(systems(), SEEDS)
def test_a_rotation_of_the_token_basis_changes_no_certificate(system, seed):
    head = built(system)
    assert close_to(head, in_basis(head, orthogonal(seeded(seed), head.d_model)))


@PROPERTY
@given(systems(), SEEDS)
def test_a_change_of_gauge_changes_no_certificate(system, seed):
    head, source = built(system), seeded(seed)
    gauges = mild_gauge(source, head.d_head), mild_gauge(source, head.d_head)
    assert close_to(head, regauged(head, *gauges))


@PROPERTY
@given(systems(), st.floats(0.1, 10.0))
def test_scaling_the_values_scales_the_margins_that_are_rates(system, factor):
    head = built(system)
    scaled = dataclasses.replace(head, w_o=factor * head.w_o)
    before, after = certificates(head), certificates(scaled)
    assert held(head) == held(scaled)
    for name, unit in (("T1", 1.0), ("T2", 1.0), ("T3", factor), ("T4", factor), ("T5", factor)):
        expected = unit * before[name].margin
        assert after[name].margin == pytest.approx(expected, rel=1e-6, abs=1e-9)


@PROPERTY
@given(SEEDS, st.sampled_from([1.0, -1.0]))
def test_turning_the_sign_of_the_values_turns_the_conclusion(seed, sign):
    head = aligned_head(seed, sign=sign)
    opposite = dataclasses.replace(head, w_o=-head.w_o)
    words = [certificates(h)["T1"].why for h in (head, opposite)]
    assert ["never shrink" in w for w in words] == [sign > 0, sign < 0]
    assert certificates(head)["T5"].margin == pytest.approx(certificates(opposite)["T5"].margin)


def test_the_comparison_of_certificates_notices_another_head():
    assert not close_to(aligned_head(0), aligned_head(1))
    assert not close_to(aligned_head(0), rotary(aligned_head(0)))


# --- the theorems are true -------------------------------------------------------------------


def flow(heads, n):
    """Return dx/dt of n tokens under the heads, straight from the definition of attention."""
    parts = []
    for head in heads:
        turns = np.broadcast_to(np.eye(head.d_head), (n, n, head.d_head, head.d_head))
        if head.rotary is not None:
            rotation = resolve_rotary(head.rotary, n)
            turns = np.empty((n, n, head.d_head, head.d_head))
            for i, j in np.ndindex(n, n):
                turns[i, j] = rotation_matrix(rotation, float(i - j)).numpy()
        mask = np.where(np.tril(np.ones((n, n))) > 0, 0.0, -np.inf) if head.causal else 0.0
        arrays = (head.w_q, head.w_k, head.w_v, head.w_o, head.b_q, head.b_k, head.b_v)
        parts.append((turns, mask, head.scale, *(array.numpy() for array in arrays)))

    def velocity(t, y):
        x = y.reshape(n, -1)
        total = np.zeros_like(x)
        for turns, mask, scale, w_q, w_k, w_v, w_o, b_q, b_k, b_v in parts:
            queries, keys = x @ w_q + b_q, x @ w_k + b_k
            scores = np.einsum("ia,ijab,jb->ij", queries, turns, keys) * scale + mask
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            total += weights @ (x @ w_v + b_v) @ w_o
        return total.ravel()

    return velocity


def simulate(heads, tokens, end, *, n_times=40, stop=1e4):
    """Return (times, tokens at each); stops early once the cloud is `stop` times as large.

    With `n_times` None the times are the solver's own.
    """
    start = tokens.numpy().ravel()

    def far(t, y):
        return np.linalg.norm(y) - stop * np.linalg.norm(start)

    far.terminal = True
    solution = solve_ivp(
        flow(heads, len(tokens)),
        (0.0, end),
        start,
        method="DOP853",
        rtol=1e-9,
        atol=1e-12,
        t_eval=None if n_times is None else np.linspace(0.0, end, n_times),
        events=far,
    )
    return solution.t, solution.y.T.reshape(len(solution.t), *tokens.shape)


def pair_distances(tokens, metric):
    differences = tokens[:, :, None] - tokens[:, None]
    return np.einsum("tija,ab,tijb->tij", differences, metric, differences)


def largest_fall(series):
    """Return by how much any entry falls from one time to the next, relative to the largest."""
    return max(0.0, -np.diff(series, axis=0).min()) / np.abs(series).max()


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("seed", range(6))
def test_t1_orders_every_pair_distance_with_biases_too(seed, sign):
    a, w, v = aligned_maps(seed, sign=sign)
    head = biased(head_of(w, v), b_q=0.4, b_k=-0.3, b_v=0.2)
    assert "T1" in held(head)
    _, tokens = simulate([head], normal(seeded(seed + 50), 5, 3), 1.5)
    assert largest_fall(pair_distances(tokens, a.numpy())) < 1e-7  # a grows; -|a| grows towards 0


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("seed", range(4))
def test_t1_orders_every_pair_distance_of_a_narrow_head(seed, sign):
    a, head = narrow_aligned_head(seed, d=4, r=2, sign=sign)
    assert "T1" in held(head)
    _, tokens = simulate([head], 0.6 * normal(seeded(seed + 50), 5, 4), 1.0)
    distances = pair_distances(tokens, a.numpy())
    assert largest_fall(distances) < 1e-7
    assert np.abs(distances[-1] - distances[0]).max() > 1e-2  # they do move


def search(conclusion_fails, seeds):
    """Return the first seed whose system breaks the conclusion, or None."""
    return next((seed for seed in seeds if conclusion_fails(seed)), None)


def breaks_t1(seed, change):
    a, w, v = aligned_maps(seed)
    head = change(head_of(w, v))
    assert "T1" not in held(head)
    _, tokens = simulate([head], normal(seeded(seed + 50), 5, 3), 1.5)
    return largest_fall(pair_distances(tokens, a.numpy())) > 1e-3


@pytest.mark.parametrize("change", [changed(causal=True), rotary], ids=["causal", "rotary"])
def test_without_full_plain_attention_the_conclusion_of_t1_fails(change):
    assert search(lambda seed: breaks_t1(seed, change), range(20)) is not None


def test_without_a_symmetric_alignment_the_conclusion_of_t1_fails():
    def fails(seed):
        source = seeded(seed)
        a = definite(source, 3)
        w = definite(source, 3) + twist(source, 3)
        head = head_of(w, torch.linalg.solve(a + 2 * twist(source, 3), w))
        assert "T1" not in held(head)
        _, tokens = simulate([head], normal(seeded(seed + 50), 5, 3), 1.0)
        return largest_fall(pair_distances(tokens, a.numpy())) > 1e-3

    assert search(fails, range(20)) is not None


def energy(tokens, a):
    return np.einsum("tia,ab,tib->t", tokens, a.numpy(), tokens)


T2_SETTINGS = [(False, False), (False, True), (True, True)]  # (causal, W symmetric)


@pytest.mark.parametrize(("causal", "symmetric"), T2_SETTINGS)
@pytest.mark.parametrize("seed", range(4))
def test_t2_aligned_tokens_diverge(seed, causal, symmetric):
    a, w, v = aligned_maps(seed, symmetric=symmetric)
    head = dataclasses.replace(head_of(w, v), causal=causal)
    assert "T2" in held(head)
    start = 0.5 * normal(seeded(seed + 50), 5, 3)
    times, tokens = simulate([head], start, 60.0, n_times=None, stop=100.0)
    growth = energy(tokens, a)
    assert largest_fall(growth) < 1e-9
    assert len(growth) > 10
    assert times[-1] < 60.0  # the cloud became a hundred times as large


@pytest.mark.parametrize(("causal", "symmetric"), T2_SETTINGS)
@pytest.mark.parametrize("seed", range(3))
def test_t2_anti_aligned_tokens_converge_to_zero(seed, causal, symmetric):
    a, w, v = aligned_maps(seed, sign=-1.0, symmetric=symmetric)
    head = dataclasses.replace(head_of(w, v), causal=causal)
    assert "T2" in held(head)
    _, tokens = simulate([head], normal(seeded(seed + 50), 4, 3), 400.0, n_times=81)
    falling = energy(tokens, a)
    assert largest_fall(falling) < 1e-9
    sizes = np.linalg.norm(tokens, axis=(1, 2))
    assert sizes[-1] < 0.25 * sizes[0]
    if causal:  # exponential: uniform causal attention leaves no direction unmoved
        assert sizes[-1] < 1e-4 * sizes[0]  # soon at the solver's noise, where ratios say nothing
    else:
        pace = sizes[-1] / sizes[20]  # t = 400 against t = 100
        assert pace == pytest.approx(0.5, abs=0.1)  # t^(-1/2)


def test_t2_moves_the_cloud_and_not_every_token():
    """Clouds (x, -x, 0) stay of that form: the third token rests while the others diverge."""
    _, w, v = aligned_maps(0)
    velocity = flow([head_of(w, v)], 3)

    def cloud(x):
        return np.concatenate([x, -x, 0 * x])

    start = normal(seeded(1), 3).numpy()
    # Integrated within the clouds of that form, which are unstable: rounding would leave them.
    solution = solve_ivp(lambda t, x: velocity(t, cloud(x))[:3], (0.0, 8.0), start, rtol=1e-9)
    assert np.linalg.norm(solution.y[:, -1]) > 100 * np.linalg.norm(start)
    for x in solution.y.T:
        first, second, third = velocity(0.0, cloud(x)).reshape(3, 3)
        assert np.abs(third).max() < 1e-14 * np.abs(x).max()
        assert first == pytest.approx(-second, rel=1e-9)
    assert "all tokens diverge" not in certificates(head_of(w, v))["T2"].why


def test_with_antisymmetric_parts_in_both_maps_anti_aligned_tokens_can_diverge():
    """sym(W) > 0 and sym(A) < 0 alone are an indication, never a certificate."""

    def fails(seed):
        source = seeded(seed)
        a = -(definite(source, 3) + 2 * twist(source, 3))
        w = definite(source, 3) + 2 * twist(source, 3)
        head = head_of(w, torch.linalg.solve(a, w))
        assert failing(head, "T2") == ["A is symmetric"]
        _, tokens = simulate([head], normal(seeded(seed + 50), 5, 3), 30.0, stop=20.0)
        return np.linalg.norm(tokens[-1]) > 2 * np.linalg.norm(tokens[0])

    assert search(fails, range(25)) is not None


def test_with_an_indefinite_score_map_anti_aligned_tokens_can_diverge():
    source = seeded(6)
    q, a = orthogonal(source, 3), -definite(source, 3)
    w = q @ torch.diag(torch.tensor([1.0, 0.7, -0.5], dtype=torch.float64)) @ q.T
    head = head_of(w, torch.linalg.solve(a, w))
    assert failing(head, "T2") == ["sym(W) is positive definite"]
    times, _ = simulate([head], normal(source, 4, 3), 60.0, stop=20.0)
    assert times[-1] < 60.0


def test_with_a_bias_anti_aligned_tokens_do_not_converge_to_zero():
    head = biased(aligned_head(0, sign=-1.0), b_v=0.5)
    assert failing(head, "T2") == ["no biases"]
    _, tokens = simulate([head], normal(seeded(1), 4, 3), 100.0)
    assert np.linalg.norm(tokens[-1], axis=1).min() > 0.1


def test_under_a_causal_mask_with_a_twisted_score_map_the_energy_can_fall():
    """For small tokens the change of E is x^T (C (x) W) x, C the Cesàro matrix: of either sign."""
    n, w = 8, torch.tensor([[0.05, 2.0], [-2.0, 0.05]], dtype=torch.float64)
    a = torch.eye(2, dtype=torch.float64)
    head = dataclasses.replace(head_of(w, w), causal=True)
    assert failing(head, "T2") == [
        "every token sees every token, or the mask is causal and W symmetric"
    ]
    cesaro = torch.tril(torch.ones(n, n, dtype=torch.float64)) / torch.arange(1, n + 1)[:, None]
    _, directions = torch.linalg.eigh(symmetric_part(torch.kron(cesaro, w)))
    tokens = 1e-2 * directions[:, 0].reshape(n, 2)
    _, after = simulate([head], tokens, 0.5)
    assert largest_fall(energy(after, a)) > 1e-3
    _, full = simulate([dataclasses.replace(head, causal=False)], tokens, 0.5)
    assert largest_fall(energy(full, a)) < 1e-9


def eigenvector(head, eigenvalue):
    values, vectors = np.linalg.eig(dense_value(head).numpy().T)
    nearest = np.abs(values - eigenvalue).argmin()
    return vectors[:, nearest].real


SETTINGS = [changed(), changed(causal=True), rotary, lambda h: rotary(changed(causal=True)(h))]


@pytest.mark.parametrize("change", SETTINGS, ids=["plain", "causal", "rotary", "both"])
@pytest.mark.parametrize("seed", range(3))
def test_t3_tokens_on_one_side_diverge_at_least_at_the_rate(seed, change):
    head = change(random_head(4, 3, seed))  # of odd rank, so one eigenvalue at least is real
    certificate = certificates(head)["T3"]
    if not certificate.holds:
        head = dataclasses.replace(head, w_o=-head.w_o)
        certificate = certificates(head)["T3"]
    assert certificate.holds
    w = eigenvector(head, certificate.margin)
    tokens = 0.4 * normal(seeded(seed), 5, 4)
    depth = tokens.numpy() @ w
    tokens = tokens + torch.from_numpy(np.outer(0.3 - depth + np.abs(depth), w) / (w @ w))
    times, after = simulate([head], tokens, 2.0 / certificate.margin)
    lowest = (after @ w).min(axis=1)
    bound = np.exp(certificate.margin * times) * lowest[0]
    assert lowest[0] > 0
    assert (lowest > bound * (1 - 1e-6)).all()


def test_t3_is_reached_by_tokens_that_are_all_the_same():
    head = aligned_head(1)
    certificate = certificates(head)["T3"]
    w = eigenvector(head, certificate.margin)
    tokens = normal(seeded(0), 1, 3).expand(4, 3).contiguous()
    times, after = simulate([head], tokens, 1.0)
    expected = np.exp(certificate.margin * times)[:, None] * (after[0] @ w)
    assert after @ w == pytest.approx(expected, rel=1e-7)


def test_tokens_on_both_sides_need_not_diverge_whatever_t3_says():
    eye = torch.eye(3, dtype=torch.float64)
    head = head_of(0 * eye, eye)
    assert "T3" in held(head)
    x = normal(seeded(0), 1, 3)
    _, after = simulate([head], torch.cat([x, -x]), 5.0)
    assert np.abs(after[-1] - after[0]).max() < 1e-9


def test_without_a_real_eigenvalue_no_half_space_is_kept():
    turn = torch.tensor([[0.1, -2.0], [2.0, 0.1]], dtype=torch.float64)
    head = head_of(torch.eye(2, dtype=torch.float64), turn)
    assert "T3" not in held(head)
    _, after = simulate([head], torch.ones(3, 2, dtype=torch.float64), 4.0)
    angles = np.linspace(0, 2 * np.pi, 36, endpoint=False)
    sides = after @ np.array([np.cos(angles), np.sin(angles)])
    assert (sides.min(axis=(0, 1)) < 0).all()


@pytest.mark.parametrize("change", [changed(), rotary], ids=["plain", "rotary"])
@pytest.mark.parametrize("seed", range(3))
def test_t4_the_leader_follows_the_sum_of_the_value_maps(seed, change):
    heads = [change(random_head(4, r, seed + r, causal=True)) for r in (2, 3)]
    heads = [dataclasses.replace(head, w_o=0.3 * head.w_o) for head in heads]
    total = sum(dense_value(head) for head in heads).numpy()
    tokens = normal(seeded(seed), 4, 4)
    times, after = simulate(heads, tokens, 1.0, n_times=5)
    exact = np.array([expm(total * t) @ tokens[0].numpy() for t in times])
    assert np.abs(after[:, 0] - exact).max() < 1e-7 * np.abs(exact).max()
    free = [dataclasses.replace(head, causal=False) for head in heads]
    _, together = simulate(free, tokens, 1.0, n_times=5)
    assert np.abs(together[:, 0] - exact).max() > 1e-2 * np.abs(exact).max()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_t4_tells_whether_the_leader_leaves_or_comes_home(sign):
    head = dataclasses.replace(aligned_head(2, sign=sign), causal=True)
    leader = certificates(head)["T4"]
    assert leader.holds
    times, after = simulate([head], normal(seeded(3), 3, 3), 12.0 / abs(leader.margin), stop=1e6)
    sizes = np.linalg.norm(after[:, 0], axis=1)
    slope = np.log(sizes[-1] / sizes[len(sizes) // 2]) / (times[-1] - times[len(sizes) // 2])
    assert slope == pytest.approx(leader.margin, rel=0.25)
    assert ("diverges" in leader.why) == (sizes[-1] > sizes[0])


@pytest.mark.parametrize("change", SETTINGS, ids=["plain", "causal", "rotary", "both"])
@pytest.mark.parametrize("seed", range(3))
def test_t5_bounds_the_growth_of_every_token_biases_included(seed, change):
    heads = [change(random_head(3, 2, seed + h, sizes=(1, 1, 0.6, 0.6))) for h in range(2)]
    limit = sum(certificates(head)["T5"].margin for head in heads)
    tokens = normal(seeded(seed), 4, 3)
    times, after = simulate(heads, tokens, 1.0)
    largest = np.linalg.norm(after, axis=2).max(axis=1)
    assert (largest <= np.exp(limit * times) * largest[0] * (1 + 1e-7)).all()
    pushed = [biased(head, b_v=0.7) for head in heads]
    push = np.linalg.norm(sum(head.value_shift for head in pushed).numpy())
    times, after = simulate(pushed, tokens, 1.0)
    largest = np.linalg.norm(after, axis=2).max(axis=1)
    allowed = np.exp(limit * times) * largest[0] + push * (np.exp(limit * times) - 1) / limit
    assert (largest <= allowed * (1 + 1e-7)).all()
    assert all("biases" in certificates(head)["T5"].why for head in pushed)


def test_t5_is_reached_and_fails_without_the_term_of_the_bias():
    v = torch.diag(torch.tensor([1.0, 0.3], dtype=torch.float64))
    head = head_of(torch.eye(2, dtype=torch.float64), v)
    tokens = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    times, after = simulate([head], tokens, 1.0)
    largest = np.linalg.norm(after, axis=2).max(axis=1)
    limit = certificates(head)["T5"].margin
    assert largest == pytest.approx(np.exp(limit * times), rel=1e-7)
    times, after = simulate([biased(head, b_v=0.5)], tokens, 1.0)
    largest = np.linalg.norm(after, axis=2).max(axis=1)
    assert largest[-1] > 1.1 * np.exp(limit * times[-1])


# --- layers ----------------------------------------------------------------------------------


def layer_of(heads, growth):
    speed = sum(torch.linalg.matrix_norm(dense_value(head), 2).item() for head in heads)
    drift = sum(head.value_shift for head in heads)
    answer = layer_certificates(heads, speed_limit=speed, growth=growth, drift=drift)
    return {certificate.name: certificate for certificate in answer}


def test_a_layer_gets_t4_and_t5_of_the_sum_of_its_heads():
    heads = [random_head(4, 4, seed, causal=True) for seed in range(3)]
    total = sum(dense_value(head) for head in heads)
    found = layer_of(heads, Growth.of(total.numpy(), 0.0))
    assert found["T4"].holds
    assert found["T4"].margin == pytest.approx(torch.linalg.eigvals(total).real.max().item())
    assert found["T5"].holds
    assert set(found) == {"T4", "T5"}


@pytest.mark.parametrize(
    ("change", "lost"), [(changed(causal=False), {"T4"}), (changed(clip=1.0), {"T4", "T5"})]
)
def test_one_head_that_lacks_a_hypothesis_is_enough_to_lose_a_layers_certificate(change, lost):
    heads = [random_head(4, 4, seed, causal=True) for seed in range(3)]
    growing = Growth(abscissa=1.0, at_least=1.0, decays=False)
    found = layer_of([*heads[:2], change(heads[2])], growing)
    assert {name for name in found if not found[name].holds} == lost


def test_an_abscissa_that_was_not_computed_is_no_certificate():
    unknown = Growth(abscissa=None, at_least=0.0, decays=False)
    found = layer_of([random_head(4, 4, 0, causal=True)], unknown)
    assert not found["T4"].holds
    assert "ask for exact spectra" in found["T4"].why


def test_the_score_map_of_a_certified_head_is_the_one_simulated():
    """The flow above reads the factors; the certificates read the maps. They are the same."""
    head = aligned_head(0)
    x = normal(seeded(0), 4, 3)
    pattern = (x @ dense_score(head) @ x.T).softmax(dim=-1)
    velocity = flow([head], 4)(0.0, x.numpy().ravel()).reshape(4, 3)
    assert np.abs(velocity - (pattern @ x @ dense_value(head).T).numpy()).max() < 1e-12


def test_eigenvalues_too_close_for_floats_have_no_radius_and_raise_no_warning():
    close = np.array([[0.0, 0.0], [0.0, 1e-200]])  # the inverse of their gap squares to infinity
    assert [pair.is_simple for pair in certain_eigenpairs(close, 0.0)] == [False, False]
    assert list(certain_eigenpairs(close, 1.0)) == []
