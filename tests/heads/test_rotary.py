"""Rotary encodings: frequencies equal transformers' own, and T(m) is what turned products give."""

import dataclasses
import math

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from orbitlens.errors import CheckpointError
from orbitlens.families.architecture import Pairing, RotarySpec
from orbitlens.families.settings import ROTARY_KINDS, Settings
from orbitlens.heads.rotary import (
    mean_rotation,
    plane_indices,
    resolve_rotary,
    rotate,
    rotation_matrix,
)
from random_heads import PROPERTY, SEEDS, normal, seeded
from tiny_models import float64

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CASES = [
    ("default", {}),
    ("linear", {"factor": 2.5}),
    ("linear", {"factor": 4.0, "partial_rotary_factor": 0.5}),
    ("dynamic", {"factor": 2.0}),
    ("dynamic", {"factor": 3.0, "partial_rotary_factor": 0.25}),
    ("yarn", {"factor": 4.0}),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 1024}),
    ("yarn", {"factor": 16.0, "original_max_position_embeddings": 256, "truncate": False}),
    ("yarn", {"factor": 8.0, "beta_fast": 8.0, "beta_slow": 2.0, "partial_rotary_factor": 0.5}),
    ("yarn", {"factor": 8.0, "attention_factor": 1.3}),
    ("yarn", {"factor": 8.0, "mscale": 0.7, "mscale_all_dim": 1.2}),
    ("yarn", {"factor": 0.5}),
    ("yarn", {"factor": 8.0, "mscale": 0.7}),
    ("llama3", LLAMA3),
    (
        "llama3",
        {
            "factor": 32.0,
            "low_freq_factor": 0.5,
            "high_freq_factor": 16.0,
            "original_max_position_embeddings": 300,
            "partial_rotary_factor": 0.5,
        },
    ),
    ("longrope", {"original_max_position_embeddings": 512}),
    ("longrope", {"original_max_position_embeddings": 512, "factor": 3.0}),
    ("longrope", {"original_max_position_embeddings": 512, "attention_factor": 1.7}),
    ("longrope", {"original_max_position_embeddings": 512, "partial_rotary_factor": 0.5}),
    ("proportional", {}),
    ("proportional", {"partial_rotary_factor": 0.3, "factor": 2.0}),
    ("proportional", {"partial_rotary_factor": 0.5}),
]
SHAPES = [(16, 10_000.0), (64, 500_000.0)]
LENGTHS = [1, 511, 513, 2048, 2049, 9000]


def configured(kind, parameters, d_head, base):
    """Return transformers' config and our spec of it."""
    pairs = int(d_head * parameters.get("partial_rotary_factor", 1.0)) // 2
    if kind == "longrope":
        parameters = {
            **parameters,
            "short_factor": [1.0 + 0.1 * k for k in range(pairs)],
            "long_factor": [2.0 + 0.7 * k for k in range(pairs)],
        }
    config = transformers.LlamaConfig(
        hidden_size=2 * d_head,
        num_attention_heads=2,
        head_dim=d_head,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": kind, "rope_theta": base, **parameters},
    )
    settings = Settings(config.to_dict(), "config.json")
    return config, settings.rotary(d_head=d_head, pairing=Pairing.HALVES, base=1.0)


def theirs(config, kind, n_context):
    """Return frequencies and factor as transformers computes them, but in double precision."""
    with float64():
        return in_their_code(config, kind, n_context)


def in_their_code(config, kind, n_context):
    if kind == "default":
        return LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[kind](config, seq_len=n_context)


def deviation(kind, parameters, shape, n_context, change=None):
    """Return the largest relative deviation of frequencies and factor from transformers'."""
    config, spec = configured(kind, parameters, *shape)
    ours = resolve_rotary(dataclasses.replace(spec, **(change or {})), n_context)
    frequencies, factor = theirs(config, kind, n_context)
    if ours.frequencies.shape != frequencies.shape:
        return math.inf
    gaps = (ours.frequencies - frequencies.double()).abs() / frequencies.double().clamp(min=1e-30)
    return max(gaps.max().item(), abs(ours.factor / factor - 1))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("kind", "parameters"), CASES)
def test_frequencies_and_factor_equal_transformers_own(kind, parameters, shape):
    worst = max(deviation(kind, parameters, shape, n) for n in LENGTHS)
    assert worst < 1e-12


def test_every_scaling_type_that_transformers_knows_is_compared():
    compared = {kind for kind, _ in CASES}
    assert compared == set(ROPE_INIT_FUNCTIONS) | {"default"} == set(ROTARY_KINDS)


CHANGES = [
    ("default", {}, 9, {"base": 9999.0}),
    ("linear", {"factor": 2.5}, 9, {"kind": "default"}),
    ("dynamic", {"factor": 2.0}, 9000, {"max_positions": 4096}),
    ("dynamic", {"factor": 2.0}, 9000, {"kind": "default"}),
    ("yarn", {"factor": 4.0}, 9, {"kind": "linear"}),
    (
        "llama3",
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        9,
        {"kind": "linear"},
    ),
    ("longrope", {"original_max_position_embeddings": 512}, 513, {"kind": "default"}),
    ("longrope", {"original_max_position_embeddings": 512}, 9, {"max_positions": 512}),
    ("proportional", {"partial_rotary_factor": 0.5}, 9, {"kind": "default"}),
    ("linear", {"factor": 4.0, "partial_rotary_factor": 0.5}, 9, {"d_rotary": 16}),
]


@pytest.mark.parametrize(("kind", "parameters", "n_context", "change"), CHANGES)
def test_a_wrong_setting_is_noticed(kind, parameters, n_context, change):
    assert deviation(kind, parameters, SHAPES[0], n_context) < 1e-12
    assert deviation(kind, parameters, SHAPES[0], n_context, change) > 1e-5


def test_dynamic_frequencies_change_only_beyond_the_trained_length():
    _, spec = configured("dynamic", {"factor": 2.0}, 16, 10_000.0)
    short, trained, long = (resolve_rotary(spec, n).frequencies for n in (10, 2048, 4096))
    assert torch.equal(short, trained)
    assert (long[1:] < trained[1:]).all()


def test_longrope_changes_factors_at_the_trained_length():
    _, spec = configured("longrope", {"original_max_position_embeddings": 512}, 16, 10_000.0)
    short, edge, long = (resolve_rotary(spec, n).frequencies for n in (1, 512, 513))
    assert torch.equal(short, edge)
    assert (long < edge).all()


def test_divisors_stored_in_a_file_divide_the_frequencies():
    spec = RotarySpec(base=100.0, d_rotary=4, d_head=4, pairing=Pairing.HALVES)
    divided = dataclasses.replace(spec, frequency_divisors=(2.0, 5.0))
    ratio = resolve_rotary(spec, 8).frequencies / resolve_rotary(divided, 8).frequencies
    assert ratio.tolist() == pytest.approx([2.0, 5.0])


@pytest.mark.parametrize(
    "change",
    [
        {"frequency_divisors": (1.0, 2.0, 3.0)},
        {
            "kind": "longrope",
            "parameters": {
                "original_max_position_embeddings": 8,
                "short_factor": [1.0],
                "long_factor": [1.0],
            },
        },
    ],
)
def test_the_wrong_number_of_factors_is_refused(change):
    spec = RotarySpec(base=100.0, d_rotary=4, d_head=4, pairing=Pairing.HALVES)
    with pytest.raises(CheckpointError, match="2 pairs"):
        resolve_rotary(dataclasses.replace(spec, **change), 8)


# --- rotations -------------------------------------------------------------------------------


@st.composite
def drawn_rotations(draw, factors=(1.0, 1.3)):
    """Draw what `rotation_of` takes: both pairings, full and partial, with and without a factor."""
    pairs = draw(st.integers(1, 6))
    turned = draw(st.integers(1, pairs))
    base, pairing = draw(st.floats(2.0, 1e6)), draw(st.sampled_from(Pairing))
    return 2 * pairs, 2 * turned, base, pairing, draw(st.sampled_from(factors))


def rotation_of(drawn):
    """Build a rotation, outside the strategy: run-time type checks draw random numbers."""
    d_head, d_rotary, base, pairing, factor = drawn
    spec = RotarySpec(base=base, d_rotary=d_rotary, d_head=d_head, pairing=pairing)
    return dataclasses.replace(resolve_rotary(spec, 8), factor=factor)


def turn(rotation, offset):
    return rotation_matrix(rotation, float(offset))


def turned_part(rotation):
    """Return which of the head's coordinates turn."""
    turned = torch.zeros(rotation.d_head, dtype=torch.bool)
    turned[torch.cat(plane_indices(rotation))] = True
    return turned


@PROPERTY
@given(drawn_rotations())
def test_offset_zero_leaves_all_but_the_squared_factor(drawn):
    rotation = rotation_of(drawn)
    scale = torch.ones(rotation.d_head, dtype=torch.float64)
    scale[turned_part(rotation)] = rotation.factor**2
    assert torch.equal(turn(rotation, 0), torch.diag(scale))


@PROPERTY
@given(drawn_rotations(factors=(1.0,)), st.integers(-500, 500), st.integers(-500, 500))
def test_rotations_compose_and_are_orthogonal(drawn, m, n):
    rotation = rotation_of(drawn)
    first, second = turn(rotation, m), turn(rotation, n)
    assert (first @ second - turn(rotation, m + n)).abs().max() < 1e-12
    assert (first.T - turn(rotation, -m)).abs().max() < 1e-12
    eye = torch.eye(rotation.d_head, dtype=torch.float64)
    assert (first @ first.T - eye).abs().max() < 1e-12


def test_rotations_with_a_factor_do_not_compose():
    scaled = rotation_of((4, 4, 50.0, Pairing.HALVES, 1.3))
    product = turn(scaled, 1) @ turn(scaled, 2)
    assert (product - turn(scaled, 3)).abs().max() > 0.1


def score_gap(queries, keys, rotation, used):
    """Return how far q_i T(i - j) k_j is from the product of turned vectors."""
    scores = rotate(queries, rotation) @ rotate(keys, rotation).T
    n = queries.shape[0]
    expected = torch.stack(
        [
            torch.stack([queries[i] @ turn(used, i - j) @ keys[j] for j in range(n)])
            for i in range(n)
        ]
    )
    return (scores - expected).abs().max().item()


@PROPERTY
@given(drawn_rotations(), SEEDS)
def test_scores_are_queries_times_t_of_the_offset_times_keys(drawn, seed):
    rotation = rotation_of(drawn)
    source = seeded(seed)
    queries, keys = (normal(source, 6, rotation.d_head) for _ in range(2))
    assert score_gap(queries, keys, rotation, rotation) < 1e-12


@pytest.mark.parametrize("pairing", Pairing)
def test_the_other_pairing_or_the_other_sign_gives_other_scores(pairing):
    spec = RotarySpec(base=50.0, d_rotary=8, d_head=8, pairing=pairing)
    rotation, source = resolve_rotary(spec, 8), seeded(0)
    queries, keys = (normal(source, 6, 8) for _ in range(2))
    other = next(p for p in Pairing if p is not pairing)
    backwards = dataclasses.replace(rotation, frequencies=-rotation.frequencies)
    assert score_gap(queries, keys, rotation, rotation) < 1e-12
    assert score_gap(queries, keys, rotation, dataclasses.replace(rotation, pairing=other)) > 0.1
    assert score_gap(queries, keys, rotation, backwards) > 0.1


@PROPERTY
@given(drawn_rotations(), SEEDS)
def test_scores_depend_on_offsets_alone(drawn, seed):
    rotation = rotation_of(drawn)
    source = seeded(seed)
    query, key = (normal(source, rotation.d_head).expand(7, -1) for _ in range(2))
    scores = rotate(query, rotation) @ rotate(key, rotation).T
    assert (scores[1:, 1:] - scores[:-1, :-1]).abs().max() < 1e-12 * (1 + scores.abs().max())


@pytest.mark.parametrize("pairing", Pairing)
def test_turned_vectors_equal_transformers_own(pairing):
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as neighbours
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as halves

    rotation = resolve_rotary(RotarySpec(base=50.0, d_rotary=8, d_head=8, pairing=pairing), 6)
    x = normal(seeded(0), 1, 6, 1, 8)  # batch, tokens, heads, width: as GPT-J has it
    angles = torch.arange(6, dtype=torch.float64)[:, None] * rotation.frequencies
    if pairing is Pairing.HALVES:
        both = torch.cat([angles, angles], dim=-1)[None]
        expected, _ = halves(x.transpose(1, 2), x.transpose(1, 2), both.cos(), both.sin())
        expected = expected[0, 0]
    else:
        expected = neighbours(x, angles.sin()[None], angles.cos()[None])[0, :, 0]
    assert (rotate(x[0, :, 0], rotation) - expected).abs().max() < 1e-14


# --- averages over a context -----------------------------------------------------------------


def average_over_pairs(rotation, n, *, causal, window):
    """Return the plain mean of T(i - j) over the pairs that uniform attention sees.

    Under a causal mask that is what the last token sees.
    """
    rows = [n - 1] if causal else range(n)
    matrices = [
        turn(rotation, i - j)
        for i in rows
        for j in range(n)
        if (not causal or j <= i) and (window is None or abs(i - j) < window)
    ]
    return torch.stack(matrices).mean(dim=0)


@PROPERTY
@given(drawn_rotations(), st.integers(1, 12), st.booleans(), st.sampled_from([None, 1, 3, 40]))
def test_the_mean_rotation_is_the_average_over_what_is_seen(drawn, n, causal, window):
    rotation = rotation_of(drawn)
    expected = average_over_pairs(rotation, n, causal=causal, window=window)
    found = mean_rotation(rotation, n, causal=causal, window=window)
    assert (found - expected).abs().max() < 1e-12


def test_mask_window_and_length_each_change_the_mean_rotation():
    rotation = resolve_rotary(
        RotarySpec(base=50.0, d_rotary=4, d_head=4, pairing=Pairing.HALVES), 9
    )
    base = mean_rotation(rotation, 9, causal=True)
    others = [
        mean_rotation(rotation, 9, causal=False),
        mean_rotation(rotation, 8, causal=True),
        mean_rotation(rotation, 9, causal=True, window=3),
    ]
    assert all((base - other).abs().max() > 1e-3 for other in others)


def test_full_attention_sees_both_directions_and_averages_to_a_symmetric_map():
    rotation = resolve_rotary(
        RotarySpec(base=50.0, d_rotary=4, d_head=4, pairing=Pairing.HALVES), 9
    )
    full, causal = (mean_rotation(rotation, 9, causal=c) for c in (False, True))
    assert (full - full.T).abs().max() < 1e-15
    assert (causal - causal.T).abs().max() > 1e-2
