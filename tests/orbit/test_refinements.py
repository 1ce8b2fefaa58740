"""Each refinement holds what it promises, in training, on weights and outputs."""

import pytest
import torch

from orbit_models import SMALL, tiny, token_ids
from orbitlens.orbit import OrbitConfig, OrbitForCausalLM
from orbitlens.orbit.aligned import HeadWeights, alignment, held, weights_of
from orbitlens.orbit.attention import Frame, Given, PlainAttention
from orbitlens.orbit.checks import NEEDS_POSITION
from orbitlens.orbit.refinements import ATTENTIONS
from orbitlens.orbit.switches import DEFINITE, SWITCHES

REFINED = [name for name in SWITCHES["refinement"].values if name != "none"]


def config_of(refinement, **switches):
    position = NEEDS_POSITION.get(refinement, ("learned",))[0]
    return OrbitConfig(**{**SMALL, "position": position, "refinement": refinement, **switches})


def trained(config, *, n_steps, watch=None, towards=-1.0):
    """Train for a few large steps that push <V, W> towards one side; `watch` sees every step."""
    torch.manual_seed(0)
    model = OrbitForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for step in range(n_steps):
        ids = token_ids(16, batch=8, seed=step)
        loss = model(ids, targets=ids.roll(-1, 1)).loss + model.extra_loss()
        if config.refinement not in DEFINITE:
            push = sum(values.sum() for values in alignments(model))
            loss = loss - towards * push
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.after_step()
        if watch is not None:
            watch(model)
    return model.eval()


def alignments(model):
    """<V, W> of every head of every layer, written out with full maps: V W^T has this trace."""
    found = []
    for block in model.model.layers:
        attention, d_head = block.self_attn, 6
        qkv = attention.qkv_proj.weight.double()
        q, k, v = (part.unflatten(0, (4, d_head)) for part in qkv.chunk(3))
        o = attention.o_proj.weight.double().T.unflatten(0, (4, d_head))
        seen = torch.diag(block.attn_norm.weight.double())
        if isinstance(block.attn_norm, torch.nn.LayerNorm):
            seen = seen @ (torch.eye(24) - 1 / 24).double()
        score = seen.T @ q.mT @ k @ seen / d_head**0.5
        value = o.mT @ v @ seen
        found.append((score * value).sum(dim=(-1, -2)))
    return found


# --- none ------------------------------------------------------------------------------------


def test_none_is_bit_equal_to_a_layer_written_by_hand():
    attention = tiny(position="rotary", refinement="none").float().model.layers[0].self_attn
    x = torch.randn(2, 9, 24)
    q, k, v = attention.qkv_proj(x).view(2, 9, 3, 4, 6).permute(2, 0, 3, 1, 4)
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    by_hand = attention.o_proj(mixed.transpose(1, 2).reshape(2, 9, 24))
    assert torch.equal(attention(x, Given(causal=True))[0], by_hand)
    assert isinstance(attention, PlainAttention)


@pytest.mark.parametrize("refinement", ["guard", "guard-data", "anti", "penalty", "reinjection"])
def test_refinements_of_training_alone_have_the_plain_layers_forward(refinement):
    config = config_of(refinement)
    torch.manual_seed(0)
    refined, x = ATTENTIONS[refinement](config).eval(), torch.randn(2, 9, 24)
    plain = PlainAttention(config)
    plain.load_state_dict(
        {name: value for name, value in refined.state_dict().items() if name != "covariance"}
    )
    given = Given(causal=True)
    assert torch.equal(refined(x, given)[0], plain(x, given)[0])


@pytest.mark.parametrize("refinement", ["aligned", "diagonal", "rotary-values", *DEFINITE])
def test_refinements_of_the_forward_pass_change_it(refinement):
    refined = tiny(refinement=refinement, position="rotary")
    plain = tiny(position="rotary")
    shared = {k: v for k, v in refined.state_dict().items() if k in plain.state_dict()}
    plain.load_state_dict(shared, strict=False)
    difference = (refined(token_ids()).logits - plain(token_ids()).logits).abs().max()
    assert difference > 1e-3


# --- guard, anti, penalty --------------------------------------------------------------------


@pytest.mark.parametrize(("refinement", "sign"), [("guard", 1), ("anti", -1)])
@pytest.mark.parametrize("norm", [{"norm": "pre"}, {"norm_kind": "rms"}])
def test_every_head_is_on_its_side_after_every_step(refinement, sign, norm):
    seen = []

    def watch(model):
        seen.extend(values * sign for values in alignments(model))

    trained(config_of(refinement, **norm), n_steps=12, watch=watch, towards=-sign)
    assert len(seen) == 36
    assert torch.cat(seen).min() >= 0
    assert torch.cat(seen).max() > 0


@pytest.mark.parametrize("sign", [1, -1])
def test_without_the_guard_the_same_training_leaves_that_side(sign):
    seen = []
    trained(
        config_of("none"), n_steps=12, watch=lambda m: seen.extend(alignments(m)), towards=-sign
    )
    assert (torch.cat(seen[-3:]) * sign).max() < 0


def random_heads(seed=0, d_model=12, d_head=3):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(2, d_model, d_head)] * 3 + [(2, d_head, d_model)]
    w_q, w_k, w_v, w_o = (torch.randn(s, generator=generator).double() for s in shapes)
    return HeadWeights(w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o, scale=d_head**-0.5)


def test_alignment_is_the_inner_product_of_value_and_score_map():
    heads = random_heads()
    score = heads.w_q @ heads.w_k.mT * heads.scale
    value = (heads.w_v @ heads.w_o).mT
    torch.testing.assert_close(alignment(heads), (value * score).sum(dim=(-1, -2)))
    root = torch.randn(12, 12, dtype=torch.float64)
    seen = root @ root.T
    expected = (value @ seen @ score.mT).diagonal(dim1=-2, dim2=-1).sum(-1)
    torch.testing.assert_close(alignment(heads, covariance=seen), expected)


def test_held_moves_wrong_heads_to_the_nearest_output_map_and_no_other():
    heads = random_heads()
    before = alignment(heads)
    assert before.min() < 0 < before.max()  # one head on each side
    after = held(heads, sign=1)
    values = alignment(HeadWeights(**{**vars(heads), "w_o": after}))
    assert torch.equal(after[before > 0], heads.w_o[before > 0])
    assert (values[before < 0] >= 0).all() and (values[before < 0] < 1e-4).all()
    # Nearest: the step is along the gradient of <V, W> and as long as it must be.
    step = (after - heads.w_o)[before < 0]
    slope = (heads.w_v.mT @ heads.w_k @ heads.w_q.mT * heads.scale)[before < 0]
    cosine = (step * slope).sum() / step.norm() / slope.norm()
    torch.testing.assert_close(cosine, torch.ones((), dtype=torch.float64))
    torch.testing.assert_close(
        step.norm(), -before[before < 0][0] / slope.norm(), rtol=1e-4, atol=0
    )


def test_a_silent_head_stays_as_it_is():
    heads = random_heads()
    silent = HeadWeights(**{**vars(heads), "w_v": torch.zeros_like(heads.w_v)})
    assert torch.equal(held(silent, sign=1), heads.w_o)


def test_the_data_aware_guard_holds_the_covariance_of_what_it_sees():
    readings = []

    def watch(model):
        for block in model.model.layers:
            layer = block.self_attn
            heads = weights_of(
                layer.qkv_proj.weight.double(), layer.o_proj.weight.double(), layer.n_heads
            )
            gain = Frame(gain=block.attn_norm.weight.double(), centred=True)
            readings.append(alignment(heads, frame=gain, covariance=layer.covariance.double()))

    model = trained(config_of("guard-data"), n_steps=8, watch=watch)
    assert torch.cat(readings).min() >= 0
    plain_readings = torch.cat(alignments(model))
    assert plain_readings.min() < 0  # the weights-only reading is free
    covariance = model.model.layers[1].self_attn.covariance
    assert (covariance - torch.eye(24)).abs().max() > 0.1
    kept = covariance.clone()
    model(token_ids())
    assert torch.equal(covariance, kept)  # only training moves it


def test_the_covariance_becomes_that_of_the_tokens():
    layer = ATTENTIONS["guard-data"](config_of("guard-data")).train()
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(24, 24, generator=generator)
    for _ in range(150):
        layer(torch.randn(4, 64, 24, generator=generator) @ mix + 3, Given())
    expected = mix.T @ mix
    error = (layer.covariance - expected).norm() / expected.norm()
    assert error < 0.1


def test_the_penalty_is_the_square_of_what_is_below_zero():
    torch.manual_seed(0)
    model = OrbitForCausalLM(config_of("penalty", penalty_weight=3.0)).double()
    expected = 3.0 * sum(values.clamp(max=0).square().sum() for values in alignments(model))
    assert expected > 0
    torch.testing.assert_close(model.extra_loss(), expected, rtol=1e-6, atol=0)
    model.extra_loss().backward()
    assert model.model.layers[0].self_attn.o_proj.weight.grad.abs().max() > 0
    assert OrbitForCausalLM(config_of("none")).extra_loss() == 0


def test_the_penalty_draws_heads_towards_the_other_side():
    def lowest(weight):
        config = config_of("penalty", penalty_weight=weight)
        return torch.cat(alignments(trained(config, n_steps=12))).min()

    assert lowest(1000.0) > 0.5 * lowest(0.0)


# --- definite --------------------------------------------------------------------------------


def symmetric(a):
    return (a + a.mT) / 2


@pytest.mark.parametrize(
    ("refinement", "n_negative"),
    [("definite-positive", 0), ("definite-half", 12), ("definite-negative", 24)],
)
@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_definite_maps_keep_their_signs_after_every_step(refinement, n_negative, position):
    def watch(model):
        for block in model.model.layers:
            w, v = (maps.double() for maps in block.self_attn.double().maps())
            assert torch.linalg.eigvalsh(symmetric(w)).min() > 0
            ratio = symmetric(w @ torch.linalg.inv(v))
            negative = (torch.linalg.eigvalsh(ratio) < 0).sum(-1)
            assert (negative == n_negative).all()
            block.self_attn.float()

    config = config_of(refinement, position=position)
    first = OrbitForCausalLM(config).model.layers[0].self_attn.maps()[0]
    last = trained(config, n_steps=6, watch=watch).model.layers[0].self_attn.maps()[0]
    assert (first - last).abs().max() > 1e-2  # it did learn
    assert (last - last.mT).abs().max() > 1e-3  # and is not merely symmetric


def test_plain_maps_are_not_definite():
    attention = tiny().model.layers[0].self_attn
    heads = weights_of(attention.qkv_proj.weight, attention.o_proj.weight, 4)
    w = heads.w_q @ heads.w_k.mT
    assert torch.linalg.eigvalsh(symmetric(w)).min() < -1e-3


# --- the others ------------------------------------------------------------------------------


def test_aligned_adds_the_score_map_to_the_value_map():
    model = tiny(refinement="aligned", position="none", norm="none", mask="full")
    layer, x = model.model.layers[0].self_attn, torch.randn(1, 7, 24, dtype=torch.float64)
    heads = weights_of(layer.qkv_proj.weight, layer.o_proj.weight, 4)
    added, pattern = layer(x, Given(patterns=True))
    gain = torch.nn.functional.softplus(layer.alignment.weight)
    expected = 0
    for h in range(4):
        score = heads.w_q[h] @ heads.w_k[h].T * heads.scale
        value = (heads.w_v[h] @ heads.w_o[h]).T + gain[h] * score
        expected = expected + pattern[0, h] @ x[0] @ value.T
    torch.testing.assert_close(added[0], expected)


def test_aligned_with_rotary_adds_the_turned_score_map():
    model = tiny(refinement="aligned", position="rotary", norm="none", mask="full")
    layer, x = model.model.layers[0].self_attn, torch.randn(1, 7, 24, dtype=torch.float64)
    silence = layer.o_proj.weight
    silence.data.zero_()  # only the extra path is left
    from orbitlens.orbit.position import rotary_angles, turn

    def angles(ids):
        return rotary_angles(ids, d_rotary=6, base=50.0, dtype=torch.float64)

    given = Given(angles=angles(torch.arange(7)[None]), patterns=True)
    added, pattern = layer(x, given)
    heads = weights_of(layer.qkv_proj.weight, silence, 4)
    gain = torch.nn.functional.softplus(layer.alignment.weight) * heads.scale
    expected = torch.zeros(7, 24, dtype=torch.float64)
    for h in range(4):
        for i in range(7):
            keys = (x[0] @ heads.w_k[h])[None, None]
            turned = turn(keys, angles(torch.arange(7)[None] - i))[0, 0]
            expected[i] += gain[h] * pattern[0, h, i] @ turned @ heads.w_q[h].T
    torch.testing.assert_close(added[0], expected)


def test_diagonal_adds_an_unrotated_form_to_the_scores():
    model = tiny(refinement="diagonal", position="rotary", norm="none", mask="full")
    layer, x = model.model.layers[0].self_attn, torch.randn(1, 7, 24, dtype=torch.float64)
    layer.qkv_proj.weight.data[:48].zero_()  # no queries, no keys: the diagonal alone
    pattern = layer(x, Given(patterns=True))[1]
    own = x[0].unflatten(-1, (4, 6))  # each head sees its own slice
    scores = torch.einsum("ihd,hd,jhd->hij", own, layer.diagonal.weight, own) / 6**0.5
    torch.testing.assert_close(pattern[0], scores.softmax(-1))
    fresh = ATTENTIONS["diagonal"](config_of("diagonal")).diagonal.weight
    assert torch.equal(fresh, torch.full((4, 6), 0.05))


def test_rotary_values_arrive_turned_by_the_offset():
    from orbitlens.orbit.position import rotary_angles, turn

    def angles(ids):
        return rotary_angles(ids, d_rotary=6, base=50.0, dtype=torch.float64)

    model = tiny(refinement="rotary-values", position="rotary", norm="none", mask="full")
    layer, x = model.model.layers[0].self_attn, torch.randn(1, 7, 24, dtype=torch.float64)
    added, pattern = layer(x, Given(angles=angles(torch.arange(7)[None]), patterns=True))
    heads = weights_of(layer.qkv_proj.weight, layer.o_proj.weight, 4)
    expected = torch.zeros(7, 24, dtype=torch.float64)
    for h in range(4):
        for i in range(7):
            values = (x[0] @ heads.w_v[h])[None, None]
            turned = turn(values, angles(torch.arange(7)[None] - i))[0, 0]
            expected[i] += pattern[0, h, i] @ turned @ heads.w_o[h]
    torch.testing.assert_close(added[0], expected)


def test_reinjection_adds_positions_again_before_every_layer():
    def before_layers(refinement):
        model = tiny(refinement=refinement, position="learned", norm="none")
        for name, parameter in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter.data.zero_()
        states = model(token_ids(), output_hidden_states=True).hidden_states
        return states, model.model.embed_positions.weight[:11]

    states, places = before_layers("reinjection")
    torch.testing.assert_close(states[1] - states[0], places.expand(2, -1, -1))
    torch.testing.assert_close(states[2] - states[1], places.expand(2, -1, -1))
    states, _ = before_layers("none")
    assert torch.equal(states[2], states[0])


@pytest.mark.parametrize("refinement", ["aligned", "diagonal", "rotary-values", *DEFINITE])
def test_a_refined_model_runs_with_a_cache_as_without(refinement):
    model = tiny(refinement=refinement, position="rotary")
    ids = token_ids()
    start = model(ids[:, :6], use_cache=True)
    rest = model(ids[:, 6:], past_key_values=start.past_key_values)
    parts = torch.cat([start.logits, rest.logits], dim=1)
    torch.testing.assert_close(parts, model(ids).logits, rtol=0, atol=1e-11)
