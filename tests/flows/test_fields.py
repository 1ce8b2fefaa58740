"""Both right-hand sides, torch's and the compiled one, against the flow's definition.

Every setting is compared at one state, to rounding: mask x encoding x geometry x heads, softmax or
not. Mutations show that the comparison would notice a wrong pairing, mask or bias.
"""

import itertools
import math
from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.errors import InputError
from orbitlens.families.architecture import Pairing, Position
from orbitlens.flows._fast import attention as compiled
from orbitlens.flows._fast.arrays import system_arrays
from orbitlens.flows.fields import AttentionField, discrete_layer, make_field
from orbitlens.flows.integrate import integrate_flow
from orbitlens.flows.mixing import visible_tokens
from orbitlens.flows.system import (
    Geometry,
    Mask,
    System,
    system_of_heads,
    system_of_layer,
    system_of_maps,
    with_settings,
)
from orbitlens.heads.attention import attention_output
from orbitlens.heads.head import alibi_slopes
from orbitlens.heads.layers import load_layer
from orbitlens.orbit.position import alibi_bias
from random_heads import head_of, random_head
from slow_flow import (
    ENCODINGS,
    GEOMETRIES,
    MASKS,
    normal,
    random_system,
    seeded,
    slow_attention,
    slow_field,
    slow_start,
)
from tiny_models import CASES, build

ROUNDING = 1e-13


def torch_field(system, x):
    return make_field(system, len(x))(torch.from_numpy(x)).numpy()


def compiled_field(system, x):
    arrays = system_arrays(system, len(x))
    out = np.empty(x.size)
    work = compiled.workspace(arrays, len(x))
    compiled.rate(arrays, x.ravel().copy(), False, len(x), out, work)
    return out.reshape(x.shape)


def compiled_attention(system, x, log_scale):
    arrays = system_arrays(system, len(x))
    out = np.empty(x.size)
    compiled.attend(arrays, x.ravel().copy(), log_scale, out, compiled.workspace(arrays, len(x)))
    return out.reshape(x.shape)


def deviation(found, expected):
    return np.abs(found - expected).max() / max(np.abs(expected).max(), 1.0)


# --- against the definition ------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("mask", MASKS)
def test_both_fields_are_the_definition(mask, encoding):
    for seed, geometry in enumerate(GEOMETRIES):
        for heads, biased in ((1, False), (2, True)):
            for unnormalised in (False, True):
                system, tokens = random_system(
                    seed,
                    heads=heads,
                    biased=biased,
                    mask=mask,
                    encoding=encoding,
                    geometry=geometry,
                    unnormalised=unnormalised,
                )
                x = slow_start(system, tokens)
                expected = slow_field(system, x)
                assert deviation(torch_field(system, x), expected) < ROUNDING
                assert deviation(compiled_field(system, x), expected) < ROUNDING


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("mask", MASKS)
def test_wide_heads_are_the_definition(mask, encoding):
    """Heads of 20 coordinates go to blocks of rows; 150 tokens need two blocks."""
    for seed, (geometry, n) in enumerate(itertools.product(GEOMETRIES, (7, 150))):
        for heads, biased in ((1, False), (2, True)):
            system, tokens = random_system(
                seed,
                n=n,
                r=20,
                heads=heads,
                biased=biased,
                mask=mask,
                encoding=encoding,
                geometry=geometry,
            )
            x = slow_start(system, tokens)
            expected = slow_field(system, x)
            field = make_field(system, n, compiled=True)
            assert deviation(field(torch.from_numpy(x)).numpy(), expected) < ROUNDING
            single = make_field(system, n, compiled=True, dtype=torch.float32)
            wrong = deviation(single(torch.from_numpy(x)).numpy(), expected)
            # Biases of 75 are rounded to 4e-6 in float32.
            assert 1e-10 < wrong < (2e-5 if encoding == "alibi" else 1e-5)
            if encoding.startswith("rotary"):
                other = replace(system, rotary=replace(system.rotary, base=30.0))
                turned = make_field(other, n, compiled=True)(torch.from_numpy(x)).numpy()
                assert deviation(turned, expected) > 1e-4
            if biased:
                bare = make_field(replace(system, b_q=None, b_k=None), n, compiled=True)
                assert deviation(bare(torch.from_numpy(x)).numpy(), expected) > 1e-4


@pytest.mark.parametrize("missing", ["b_q", "b_k"])
def test_wide_heads_may_have_one_bias_only(missing):
    system, tokens = random_system(4, r=20, heads=2, biased=True)
    system = replace(system, **{missing: None})
    found = make_field(system, len(tokens), compiled=True)(tokens).numpy()
    assert deviation(found, slow_field(system, tokens.numpy())) < ROUNDING


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_scaled_cloud_moves_as_the_large_one_divided_by_its_scale(encoding):
    for mask in MASKS:
        system, tokens = random_system(3, heads=2, biased=True, mask=mask, encoding=encoding)
        scale = 1.3
        expected = slow_attention(system, math.exp(scale) * tokens.numpy()) / math.exp(scale)
        by_torch = AttentionField(system, len(tokens))(tokens, scale).numpy()
        assert deviation(by_torch, expected) < ROUNDING
        assert deviation(compiled_attention(system, tokens.numpy(), scale), expected) < ROUNDING
        system, tokens = random_system(3, r=20, heads=2, biased=True, mask=mask, encoding=encoding)
        expected = slow_attention(system, math.exp(scale) * tokens.numpy()) / math.exp(scale)
        in_blocks = AttentionField(system, len(tokens), compiled=True)(tokens, scale).numpy()
        assert deviation(in_blocks, expected) < ROUNDING


@pytest.mark.parametrize("log_scale", [20.0, 200.0, 900.0, 5000.0])
def test_attention_far_out_is_the_choice_of_the_largest_score(log_scale):
    system, tokens = random_system(1, encoding="alibi", biased=True)
    score = system.w_q[0] @ system.w_k[0].T
    chosen = (tokens @ score @ tokens.T).argmax(dim=-1)
    expected = (tokens[chosen] @ system.w_v[0] @ system.w_o[0]).numpy()
    by_torch = AttentionField(system, len(tokens))(tokens, log_scale).numpy()
    assert deviation(by_torch, expected) < 1e-8
    assert deviation(compiled_attention(system, tokens.numpy(), log_scale), expected) < 1e-8


def test_blocks_of_rows_are_put_together_in_order():
    """Unnormalised attention goes in blocks of 256 rows; 300 tokens need two."""
    system, tokens = random_system(2, n=300, mask="causal", encoding="alibi", unnormalised=True)
    system = replace(system, alibi_slopes=system.alibi_slopes / 100)
    expected = slow_field(system, tokens.numpy())
    assert deviation(torch_field(system, tokens.numpy()), expected) < ROUNDING
    assert deviation(compiled_field(system, tokens.numpy()), expected) < ROUNDING


@pytest.mark.parametrize("mask", MASKS)
def test_alibi_is_one_bias_in_flows_heads_and_the_lab(mask):
    """Under a full mask it is minus the slope times the distance, as encoders have it."""
    system, tokens = random_system(6, heads=2, n=6, mask=mask, encoding="alibi")
    system = replace(system, alibi_slopes=torch.tensor(alibi_slopes(2), dtype=torch.float64))
    places = torch.arange(6)[None]
    bias = alibi_bias(places, places, n_heads=2, dtype=torch.float64)[0]
    visible = visible_tokens(6, system.mask, system.window)
    scores = (tokens @ system.w_q) @ (tokens @ system.w_k).mT + bias
    weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
    expected = (weights @ (tokens @ system.w_v) @ system.w_o).sum(dim=0).numpy()
    for field in (torch_field, compiled_field):
        assert deviation(field(system, tokens.numpy()), expected) < ROUNDING
    padded = {w: F.pad(getattr(system, w), (0, 16)) for w in ("w_q", "w_k", "w_v")}
    wide = replace(system, **padded, w_o=F.pad(system.w_o, (0, 0, 0, 16)))
    found = make_field(wide, 6, compiled=True)(tokens).numpy()
    assert deviation(found, expected) < ROUNDING


def test_post_ln_is_the_sphere():
    system, tokens = random_system(5, geometry=Geometry.SPHERE)
    x = slow_start(system, tokens)
    other = replace(system, geometry=Geometry.POST_LN)
    assert np.array_equal(torch_field(system, x), torch_field(other, x))
    assert np.array_equal(compiled_field(system, x), compiled_field(other, x))


# --- the comparison notices ------------------------------------------------------------------

NEIGHBOURS = {"pairing": Pairing.NEIGHBOURS}
MUTATIONS = {
    "wrong pairing": lambda s: replace(s, rotary=replace(s.rotary, **NEIGHBOURS)),
    "another base": lambda s: replace(s, rotary=replace(s.rotary, base=21.0)),
    "one coordinate pair less turned": lambda s: replace(s, rotary=replace(s.rotary, d_rotary=2)),
    "no mask": lambda s: replace(s, mask=Mask.FULL),
    "window one wider": lambda s: replace(s, window=s.window + 1),
    "window one narrower": lambda s: replace(s, window=s.window - 1),
    "no bias of the queries": lambda s: replace(s, b_q=None),
    "no bias of the keys": lambda s: replace(s, b_k=None),
    "no drift": lambda s: replace(s, drift=None),
    "heads in another order, slopes not": lambda s: replace(s, w_q=s.w_q.flip(0)),
    "another temperature": lambda s: replace(s, beta=1.01),
    "values and output swapped": lambda s: replace(
        s, w_v=s.w_o.transpose(1, 2).contiguous(), w_o=s.w_v.transpose(1, 2).contiguous()
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutated_system_does_not_pass_for_the_right_one(name):
    system, tokens = random_system(7, heads=2, mask="causal-window", encoding="rotary", biased=True)
    x = tokens.numpy()
    expected = slow_field(system, x)
    mutated = MUTATIONS[name](system)
    assert deviation(compiled_field(system, x), expected) < ROUNDING
    assert deviation(compiled_field(mutated, x), expected) > 1e-3
    assert deviation(torch_field(mutated, x), expected) > 1e-3


def test_the_bias_of_the_keys_cancels_in_a_softmax_without_rotations():
    system, tokens = random_system(8, biased=True)
    x = tokens.numpy()
    bare = replace(system, b_k=None)
    assert deviation(compiled_field(bare, x), compiled_field(system, x)) < ROUNDING
    turned, _ = random_system(8, biased=True, encoding="rotary")
    assert deviation(compiled_field(replace(turned, b_k=None), x), compiled_field(turned, x)) > 1e-3


def test_a_head_that_does_nothing_changes_nothing():
    system, tokens = random_system(9, heads=2)
    silent = torch.zeros(1, 4, 4, dtype=torch.float64)
    more = {n: torch.cat([getattr(system, n), silent]) for n in ("w_q", "w_k", "w_v", "w_o")}
    x = tokens.numpy()
    assert deviation(compiled_field(replace(system, **more), x), compiled_field(system, x)) < 1e-15


def test_permuted_tokens_flow_the_same_unless_positions_count():
    system, tokens = random_system(10)
    order = torch.randperm(len(tokens), generator=seeded(0))
    x, shuffled = tokens.numpy(), tokens[order].numpy()
    assert deviation(torch_field(system, shuffled), torch_field(system, x)[order]) < ROUNDING
    causal = replace(system, mask=Mask.CAUSAL)
    assert deviation(torch_field(causal, shuffled), torch_field(causal, x)[order]) > 1e-2


# --- geometries as limits of layers ----------------------------------------------------------


@pytest.mark.parametrize("encoding", ["none", "reinjected"])
@pytest.mark.parametrize("geometry", list(Geometry))
def test_a_geometry_is_the_small_step_limit_of_its_layer(geometry, encoding):
    """Tokens after many layers of size h are where the flow is, up to a multiple of h."""
    system, tokens = random_system(11, encoding=encoding, geometry=geometry)
    flowed = integrate_flow(system, tokens, until=0.5).final
    gaps = []
    for n_layers in (64, 128, 256):
        x = torch.from_numpy(slow_start(system, tokens))
        for _ in range(n_layers):
            x = discrete_layer(system, x, 0.5 / n_layers)
        gaps.append((x - flowed).abs().max().item())
    assert gaps[-1] < 0.02
    for coarse, fine in itertools.pairwise(gaps):
        assert 1.85 < coarse / fine < 2.15


def slow_layer(geometry, attention, x, h):
    """Return one layer as each architecture writes it down."""

    def unit(rows):
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    if geometry in {Geometry.SPHERE, Geometry.POST_LN}:
        return unit(x + h * attention(x))
    if geometry is Geometry.PRE_LN:
        return x + h * attention(unit(x))
    if geometry is Geometry.PERI_LN:
        return x + h * unit(attention(unit(x)))
    if geometry is Geometry.NGPT:
        return unit(x + h * (unit(attention(x)) - x))
    return x + h * attention(x)


@pytest.mark.parametrize("geometry", list(Geometry))
def test_a_discrete_layer_is_what_the_architecture_writes(geometry):
    system, tokens = random_system(12, geometry=geometry)
    x = slow_start(system, tokens)
    plain = replace(system, geometry=Geometry.FREE)
    expected = slow_layer(geometry, lambda y: slow_attention(plain, y), x, 0.3)
    found = discrete_layer(system, torch.from_numpy(x), 0.3).numpy()
    assert deviation(found, expected) < ROUNDING


def test_one_geometry_is_not_the_limit_of_anothers_layer():
    system, tokens = random_system(13, geometry=Geometry.NGPT)
    x = torch.from_numpy(slow_start(system, tokens))
    velocity = make_field(system, len(x))(x)
    other = replace(system, geometry=Geometry.SPHERE)
    moved = (discrete_layer(other, x, 1e-6) - x) / 1e-6
    assert (moved - velocity).abs().max() > 1e-2


# --- where systems come from -----------------------------------------------------------------


def test_full_maps_act_on_columns_as_the_theory_writes_them():
    w, v, x = normal(seeded(0), 3, 3), normal(seeded(1), 3, 3), normal(seeded(2), 4, 3)
    weights = torch.softmax(x @ w @ x.T, dim=-1)
    expected = weights @ x @ v.T
    assert torch.allclose(make_field(system_of_maps(w, v), 4)(x), expected, atol=1e-14)


@pytest.mark.parametrize(
    "name", ["gpt2", "gptj", "gpt_neox", "bloom", "llama", "bert", "gpt_neo", "mistral"]
)
def test_a_layer_of_a_model_flows_as_its_attention_does(name, tmp_path):
    case = next(case for case in CASES if case.name == name)
    build(case).save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    layer = load_layer(checkpoint, 1)
    tokens = layer.normalise(normal(seeded(0), 11, layer.head(0).d_model))
    found = AttentionField(system_of_layer(layer), len(tokens))(tokens)
    expected = attention_output(layer, tokens)
    assert (found - expected).abs().max() < 1e-12 * expected.abs().max()


def test_heads_side_by_side_add_up():
    heads = [random_head(5, 3, seed) for seed in (1, 2)]
    x = normal(seeded(3), 6, 5)
    together = AttentionField(system_of_heads(heads), 6)(x)
    apart = sum(AttentionField(system_of_heads([head]), 6)(x) for head in heads)
    assert torch.allclose(together, apart, atol=1e-13)


def test_heads_that_the_flow_cannot_express_are_refused():
    w = torch.eye(3, dtype=torch.float64)
    with pytest.raises(InputError, match="normalises, caps or clips"):
        system_of_heads([head_of(w, w, softcap=30.0)])
    with pytest.raises(InputError, match="t5-bias"):
        system_of_heads([head_of(w, w, position=Position.T5_BIAS)])
    with pytest.raises(InputError, match="at least one head"):
        system_of_heads([])


# --- what does not fit -----------------------------------------------------------------------


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.float64)


@pytest.fixture
def unchecked_shapes():
    """Run as users do, without the tests' own check of shapes, which would be first to complain."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"w_k": zeros(1, 3, 4)}, r"w_k \[1, 3, 4\]"),
        ({"w_o": zeros(1, 4, 3)}, "heads x d_head x d_model"),
        ({"w_v": zeros(2, 4, 4)}, "expected heads x d_model"),
        ({"b_q": zeros(1, 3)}, r"b_q has shape \[1, 3\]"),
        ({"b_k": zeros(2, 4)}, r"b_k has shape \[2, 4\]"),
        ({"drift": zeros(3)}, "drift has shape"),
        ({"alibi_slopes": zeros(2)}, "alibi_slopes has shape"),
        ({"w_q": torch.full((1, 4, 4), math.nan).double()}, "w_q holds NaN"),
        ({"drift": torch.full((4,), math.inf).double()}, "drift holds NaN or infinity"),
        ({"positions": torch.full((5, 4), math.nan).double()}, "positions holds NaN"),
        ({"beta": -1.0}, "beta is -1"),
        ({"beta": math.nan}, "beta is nan"),
        ({"noise": -0.1}, "noise is -0.1"),
        ({"window": 0}, "at least 1 token"),
        ({"reinjected": True}, "there are none"),
    ],
)
def test_systems_that_make_no_sense_are_refused(change, words, unchecked_shapes):
    system, _ = random_system(0)
    with pytest.raises(InputError, match=words):
        with_settings(system, **change)


def test_a_rotary_encoding_must_fit_the_heads():
    wide, _ = random_system(0, r=6, encoding="rotary")
    narrow, _ = random_system(0, r=4)
    with pytest.raises(InputError, match="heads of width 6; these are 4 wide"):
        replace(narrow, rotary=wide.rotary)


def test_visible_tokens_count_the_token_itself():
    seen = visible_tokens(4, Mask.CAUSAL, 2)
    assert seen.tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [False, True, True, False],
        [False, False, True, True],
    ]
    assert visible_tokens(3, Mask.FULL, None).all()
    assert visible_tokens(3, Mask.FULL, 2).sum() == 7


def test_a_system_knows_its_sizes():
    system, _ = random_system(0, heads=3, d=5, r=2)
    assert (system.n_heads, system.d_model, system.d_head) == (3, 5, 2)
    assert isinstance(system, System)
