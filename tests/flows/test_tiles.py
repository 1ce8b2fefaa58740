"""Attention in tiles: every shape of tile and every precision against NumPy; how it is packed."""

import math

import numpy as np
import pytest
import torch

from orbitlens.flows._fast import head_mixing, tiles
from orbitlens.flows._fast.tiles import KEYS, Shape, Turns, memory_for, mix_tiles, pack_heads
from orbitlens.flows.adaptive import take_step
from orbitlens.flows.fields import AttentionField
from orbitlens.flows.steps import DOP853, RK45
from orbitlens.heads.rotary import Pairing, RotarySpec, Turning, resolve_rotary
from orbitlens.running._compiled.powers import FULL
from orbitlens.running._compiled.tile_vectors import SINGLE, lanes_of
from slow_flow import random_system

SHAPES = {"long registers": Shape((0,) * 3, (0,) * 8), "short ones": Shape((0,), (0,) * 4)}
NOT_TURNED = Turns(np.empty((0, 0)), np.empty((0, 0)), np.empty(0, dtype=np.uint64))


def rows_of(n, heads, width, dtype):
    drawn = np.random.default_rng(n).standard_normal((n, 3 * heads * width))
    return (0.5 * drawn).astype(dtype)


PLAIN = {"scale": 1.0, "causal": False, "window": 0, "slope": 0.0}


def mixed(rows, heads, shape, **setting):
    scale, causal, window, slope = (PLAIN | setting).values()
    n, width = len(rows), rows.shape[1] // (3 * heads)
    terms = (0,) * len(FULL if rows.dtype == np.float64 else SINGLE)
    memory, slopes = memory_for(heads, width, n, rows.dtype.type, shape), np.full(heads, slope)
    turns = Turns(*(x.astype(rows.dtype) for x in NOT_TURNED[:2]), NOT_TURNED.partner)
    pack_heads(rows, width, scale, slopes, False, len(shape.outputs), turns, memory)
    out = np.empty((n, heads * width), rows.dtype)
    n_blocks = heads * memory.queries.shape[1]
    for part in ((n_blocks // 2, n_blocks), (0, n_blocks // 2)):  # as threads would share them
        if part[0] < part[1]:
            mix_tiles(memory, slopes, causal, window, False, n, shape, terms, *part, out)
    return out


def by_definition(rows, heads, *, scale=1.0, causal=False, window=0, slope=0.0):
    n, width = len(rows), rows.shape[1] // (3 * heads)
    q, k, v = rows.astype(np.float64).reshape(n, 3, heads, width).transpose(1, 2, 0, 3)
    offsets = np.arange(n)[:, None] - np.arange(n)
    seen = (offsets >= 0) | (not causal)
    seen &= (np.abs(offsets) < window) | (window == 0)
    s = np.where(seen, scale * (q @ k.transpose(0, 2, 1)) - slope * np.abs(offsets), -math.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    out = (p @ v) / p.sum(axis=-1, keepdims=True)
    return out.transpose(1, 0, 2).reshape(n, -1)


SETTINGS = {
    "full": {},
    "causal": {"causal": True},
    "causal window": {"causal": True, "window": 40},
    "biased": {"causal": True, "slope": 0.1},
    "large scores": {"scale": 300.0, "causal": True},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_tiles_of_every_shape_mix_as_numpy_does(shape, dtype):
    for n, width in ((1, 20), (7, 5), (2 * KEYS + 9, 20)):
        rows = rows_of(n, 2, width, dtype)
        for name, setting in SETTINGS.items():
            found, exact = (
                mixed(rows, 2, SHAPES[shape], **setting),
                by_definition(rows, 2, **setting),
            )
            # A rounded score moves a weight by as much as the score is large.
            bound = (1e-13 if dtype is np.float64 else 4e-6) * (1 + setting.get("scale", 1.0))
            assert np.abs(found - exact).max() < bound, (name, n)


def test_a_wrong_mask_or_bias_would_be_noticed():
    rows = rows_of(2 * KEYS + 9, 2, 20, np.float64)
    for setting in ({}, {"causal": True, "window": 41}, {"causal": True, "slope": 0.11}):
        found = mixed(rows, 2, SHAPES["long registers"], causal=True, window=40, slope=0.1)
        assert np.abs(found - by_definition(rows, 2, **setting)).max() > 1e-3


@pytest.mark.parametrize("pairing", list(Pairing))
def test_queries_are_turned_as_they_are_packed(pairing):
    n, width = 30, 12
    spec = RotarySpec(base=100.0, d_rotary=8, d_head=width, pairing=pairing)
    turn = Turning.of(resolve_rotary(spec, n), n, width)
    rows = rows_of(n, 1, width, np.float64)
    shape = SHAPES["short ones"]
    memory, block = memory_for(1, width, n, np.float64, shape), lanes_of(np.float64)
    turns = head_mixing.turns_of(turn, rows.dtype)
    pack_heads(rows, width, 1 / tiles.LOG2E, np.zeros(1), False, 4, turns, memory)
    expected = turn(torch.from_numpy(rows[:, :width].copy())).numpy()
    packed = memory.queries[0].transpose(0, 2, 1).reshape(-1, width)
    np.testing.assert_allclose(packed[:n], expected, atol=1e-15)
    assert not packed[n:].any() and len(packed) % block == 0
    keys = turn(torch.from_numpy(rows[:, width : 2 * width].copy())).numpy()
    packed = memory.keys[0].reshape(-1, width, 4).transpose(0, 2, 1).reshape(-1, width)
    np.testing.assert_allclose(packed[:n], keys, atol=1e-15)


def test_tiles_are_short_where_another_processor_is_asked_for(monkeypatch):
    monkeypatch.setattr(tiles.config, "CPU_NAME", "haswell")
    assert tiles.tile_shape.__wrapped__(64) == SHAPES["short ones"]


@pytest.mark.parametrize("encoding", ["none", "rotary", "alibi", "reinjected"])
def test_wide_heads_flow_alike_in_compiled_code_and_in_torch(encoding):
    system, x = random_system(3, heads=2, d=24, r=18, n=40, encoding=encoding, biased=True)
    plain, compiled = (AttentionField(system, 40, compiled=way) for way in (False, True))
    for log_scale in (0.0, 1.5):
        torch.testing.assert_close(
            compiled(x, log_scale), plain(x, log_scale), rtol=1e-11, atol=1e-12
        )
    assert torch.equal(compiled(x), compiled(x))  # memory that is used again holds nothing over


@pytest.mark.parametrize("method", [DOP853, RK45])
def test_a_step_by_compiled_sums_is_the_step(method):
    turn = torch.randn(
        5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).numpy()

    def rate(y):
        return turn * np.cos(y)

    y = np.linspace(-1, 1, 5000)
    tables = [np.zeros((method.n_stages + 1, 5000)) for _ in range(2)]
    for table in tables:
        table[0] = rate(y)
    ends = method.step(rate, y, 0.3, tables[0]), take_step(method, rate, y, 0.3, tables[1])
    np.testing.assert_allclose(ends[1], ends[0], rtol=0, atol=1e-13)
    np.testing.assert_allclose(tables[1][:-1], tables[0][:-1], rtol=0, atol=1e-12)
