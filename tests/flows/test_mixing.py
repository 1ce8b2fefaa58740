"""Two ways to mix values, one answer; and what they cost in memory."""

import itertools
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from orbitlens.flows._fast.head_mixing import HeadMixing
from orbitlens.flows.fields import AttentionField
from orbitlens.flows.mixing import BLOCK, Mixing, visible_tokens
from orbitlens.flows.system import Mask
from orbitlens.running import threads
from orbitlens.running._compiled.powers import LANES
from slow_flow import random_system


def heads(n_tokens, d_head, n_heads=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (3, n_heads, n_tokens, d_head)
    return torch.randn(shape, generator=generator, dtype=torch.float64).unbind()


def make(n_tokens, *, mask=Mask.FULL, window=None, slopes=None, unnormalised=False, n_heads=2):
    """Return how torch mixes, and how compiled loops do."""
    given = None if slopes is None else torch.tensor(slopes, dtype=torch.float64)
    plain = Mixing(n_tokens, mask, window, unnormalised, given)
    compiled = HeadMixing(
        n_tokens=n_tokens,
        causal=mask is Mask.CAUSAL,
        window=window or 0,
        unnormalised=unnormalised,
        slopes=torch.zeros(n_heads, dtype=torch.float64) if given is None else given,
    )
    return plain, compiled


def by_definition(mix, q, k, v, scale):
    """Every weight, one matrix for each head."""
    n = q.shape[1]
    scores = scale * q @ k.mT
    if mix.slopes is not None:
        places = torch.arange(n, dtype=torch.float64)
        scores = scores - mix.slopes[:, None, None] * (places - places[:, None]).abs()
    hidden = ~visible_tokens(n, mix.mask, mix.window)
    if mix.unnormalised:
        return (scores.exp().masked_fill(hidden, 0.0) / n) @ v
    return scores.masked_fill(hidden, -torch.inf).softmax(dim=-1) @ v


@pytest.mark.parametrize("n_tokens", [1, 5, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
@pytest.mark.parametrize("window", [None, 1, 3, BLOCK + 2])
@pytest.mark.parametrize("mask", list(Mask))
def test_every_way_gives_the_definition(n_tokens, window, mask):
    q, k, v = heads(n_tokens, 6)
    for slopes in (None, (0.03, 0.002)):
        for unnormalised in (False, True):
            settings = {"mask": mask, "window": window, "slopes": slopes}
            plain, compiled = make(n_tokens, **settings, unnormalised=unnormalised)
            expected = by_definition(plain, q, k, v, 0.4)
            for mix in (plain, compiled):
                torch.testing.assert_close(mix(q, k, v, 0.4), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 8, 16, 40])
@pytest.mark.parametrize("n_tokens", [1, 3, 64, 67])
@pytest.mark.parametrize("unnormalised", [False, True])
def test_heads_of_every_width_are_mixed_alike(width, n_tokens, unnormalised):
    q, k, v = heads(n_tokens, width)
    for mask in Mask:
        plain, compiled = make(n_tokens, mask=mask, unnormalised=unnormalised)
        expected = by_definition(plain, q, k, v, 0.4)
        torch.testing.assert_close(compiled(q, k, v, 0.4), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 8, 16, 40])
@pytest.mark.parametrize("n_tokens", [1, 3, 64, 67])
@pytest.mark.parametrize("slopes", [None, (0.03, 0.002)])
@pytest.mark.parametrize("unnormalised", [False, True])
def test_both_ways_in_single_precision_stay_single_and_are_right_to_its_rounding(
    width, n_tokens, slopes, unnormalised
):
    single = [part.float() for part in heads(n_tokens, width)]
    for mask, window in itertools.product(Mask, (None, 50)):
        settings = {"mask": mask, "window": window, "slopes": slopes}
        ways = make(n_tokens, **settings, unnormalised=unnormalised)
        wanted = by_definition(ways[0], *(part.double() for part in single), 0.4)
        for mix in ways:
            found = mix(*single, 0.4)
            assert found.dtype == torch.float32
            assert (found.double() - wanted).abs().max() < 2e-6 * wanted.abs().max()


@pytest.mark.parametrize("width", [2, 3, 8])
@pytest.mark.parametrize("scale", [1.0, 15.0, 60.0, 1e4, 1e30])
def test_large_scores_in_single_precision(width, scale):
    """The mean is right where the scores are: rounded scores move weights by as much."""
    single = [part.float() for part in heads(40, width)]
    plain, compiled = make(40)
    q, k, v = (part.double() for part in single)
    rounding = 1e-6 + 4e-7 * scale * float((q @ k.mT).abs().max())
    exact = by_definition(plain, q, k, v, scale)
    wrong = (compiled(*single, scale).double() - exact).abs().max()
    assert wrong < min(rounding, 1e-3 if scale > 1e3 else 1.0) * float(v.abs().max())


def test_unnormalised_scores_beyond_single_precision_are_not_finite():
    ones = torch.ones(1, 3, 2)
    for mix in make(3, unnormalised=True, n_heads=1):
        assert torch.isfinite(mix(ones, ones, ones, 40.0)).all()
        assert not torch.isfinite(mix(ones, ones, ones, 45.0)).any()


@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_is_not_finite_is_never_mixed_into_a_finite_answer(width, bad, where, dtype):
    qkv = [part.to(dtype) for part in heads(20, width)]
    qkv[where][0, 7, 1] = bad
    out = make(20)[1](*qkv, 0.4)
    touched = out[0, 7] if where == 0 else out[0]
    assert not torch.isfinite(touched).all()
    assert torch.isfinite(out[1]).all()


def test_torch_has_one_thread_while_compiled_code_runs_and_its_own_afterwards(monkeypatch):
    system, tokens = random_system(0)
    seen = []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for compiled in (True, False):
            field = AttentionField(system, len(tokens), compiled=compiled)
            mix = field._mix

            def watched(*args, mix=mix):
                seen.append(torch.get_num_threads())
                return mix(*args)

            field._mix = watched
            field(tokens)
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2]


def test_a_wrong_mask_would_be_noticed():
    q, k, v = heads(300, 6)
    full = make(300)[0]
    for mix in make(300, mask=Mask.CAUSAL):
        assert (mix(q, k, v, 0.4) - by_definition(full, q, k, v, 0.4)).abs().max() > 0.1


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0, 1e4, 1e200])
def test_scores_of_any_size_are_mixed(scale):
    q, k, v = heads(40, 3)
    plain, compiled = make(40)
    expected = by_definition(plain, q, k, v, scale)
    torch.testing.assert_close(compiled(q, k, v, scale), expected, rtol=1e-9, atol=1e-9)


def test_no_temperature_means_equal_weights_whatever_the_slopes():
    q, k, v = heads(9, 4)
    for mix in make(9, slopes=(0.0, 0.0)):
        torch.testing.assert_close(mix(q, k, v, 0.0), v.mean(dim=1, keepdim=True).expand_as(v))


def test_threads_share_rows_without_gaps(monkeypatch):
    monkeypatch.setattr(threads, "SMALL_PART", 100)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    q, k, v = heads(101, 4, n_heads=3)
    plain, mix = make(101, mask=Mask.CAUSAL, n_heads=3)
    padded = 3 * 104  # rows of a head are filled up to whole lanes
    parts = mix._parts(padded, padded * 101, LANES)[::-1]
    assert [row for begin, end in parts for row in range(begin, end)] == list(range(padded))
    assert all(begin % LANES == 0 for begin, _ in parts)
    assert len(parts) > 3
    torch.testing.assert_close(mix(q, k, v, 0.4), by_definition(plain, q, k, v, 0.4))


def mixed_in_a_child(queue):
    q, k, v = heads(400, 4)
    queue.put(make(400)[1](q, k, v, 0.4).sum().item())


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork"
)
def test_a_forked_process_starts_threads_of_its_own():
    q, k, v = heads(400, 4)
    expected = make(400)[1](q, k, v, 0.4).sum().item()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=mixed_in_a_child, args=(queue,))
    child.start()
    found = queue.get(timeout=60)
    child.join()
    assert found == pytest.approx(expected, rel=1e-12)


GROWTH = """
import sys, torch
from orbitlens.running.info import peak_rss_bytes as peak
from orbitlens.flows.fields import AttentionField
from orbitlens.flows.system import Mask, System

def run(n):
    r = int(sys.argv[1])
    w = [torch.randn(1, r, r, dtype=torch.float64) / r for _ in range(4)]
    names = ("w_q", "w_k", "w_v", "w_o")
    window = int(sys.argv[3]) or None
    system = System(**dict(zip(names, w)), mask=Mask(sys.argv[2]), window=window)
    AttentionField(system, n, compiled=True)(torch.randn(n, r, dtype=torch.float64))

run(500)
before = peak()
run(16384)
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("width", [4, 20], ids=["lanes", "tiles"])
@pytest.mark.parametrize(("mask", "window"), [("full", 0), ("causal", 0), ("full", 100)])
def test_memory_grows_with_tokens_and_not_with_their_pairs(width, mask, window):
    command = [sys.executable, "-c", GROWTH, str(width), mask, str(window)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    table = 8 * 16384**2  # bytes of one weight for each pair
    assert 0 < int(found.stdout) < 0.06 * table
