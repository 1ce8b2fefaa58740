"""Every switch does what it says: read off weights and outputs, never off the config."""

import math

import pytest
import torch

from orbit_models import SMALL, tiny, token_ids
from orbitlens.errors import InputError
from orbitlens.orbit import OrbitConfig, OrbitForCausalLM, OrbitForImageClassification

POSITIONS = ("none", "learned", "sinusoidal", "rotary", "alibi", "t5")


def silence(model, *names):
    """Let the named maps write nothing."""
    for name, parameter in model.named_parameters():
        if any(part in name for part in names):
            parameter.data.zero_()
    return model


def jacobian_size(model):
    x = torch.randn(1, 5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    body = model.model
    jacobian = torch.autograd.functional.jacobian(
        lambda tokens: body(inputs_embeds=tokens).last_hidden_state, x
    )
    return jacobian.abs().max().item()


# --- residual --------------------------------------------------------------------------------


def test_without_residuals_there_is_no_path_around_the_branches():
    branches = ("o_proj", "down_proj")
    without = silence(tiny(residual="none", norm="none"), *branches)
    assert jacobian_size(without) == 0.0
    assert jacobian_size(silence(tiny(residual="all", norm="none"), *branches)) == 1.0


def test_each_residual_switch_keeps_the_sums_it_names():
    def passes(residual, *silent):
        return jacobian_size(silence(tiny(residual=residual, norm="none"), *silent)) > 0

    assert passes("attention", "o_proj") and not passes("attention", "down_proj")
    assert passes("mlp", "down_proj") and not passes("mlp", "o_proj")


def test_a_list_keeps_the_residuals_of_those_layers_alone():
    kept = tiny(residual=[0, 2], norm="none")
    silence(kept, "layers.0.self_attn.o_proj", "layers.0.mlp.down_proj")
    assert jacobian_size(kept) > 0
    lost = tiny(residual=[0, 2], norm="none")
    silence(lost, "layers.1.self_attn.o_proj")
    assert jacobian_size(lost) == 0.0


# --- mask ------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_a_later_token_moves_earlier_outputs_only_behind_a_full_mask(position, mask):
    model = tiny(position=position, mask=mask)
    ids = token_ids()
    changed = ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 40
    moved = (model(ids).logits - model(changed).logits)[:, :-1].abs().max()
    assert moved == 0.0 if mask == "causal" else moved > 1e-3


@pytest.mark.parametrize("position", POSITIONS)
def test_equal_ids_and_a_full_mask_take_order_away(position):
    model = tiny(position=position)
    ids = token_ids()
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1))
    shuffled = torch.cat([ids[:, :10][:, order], ids[:, 10:]], dim=1)
    everyone = torch.zeros(2, 1, 11, 11, dtype=torch.float64)
    same = torch.full((2, 11), 3)

    def last(tokens, **named):
        return model(tokens, **named).logits[:, -1]

    both = [last(x, attention_mask=everyone, position_ids=same) for x in (ids, shuffled)]
    torch.testing.assert_close(*both, rtol=0, atol=1e-12)
    as_it_is = [last(x) for x in (ids, shuffled)]
    assert (as_it_is[0] - as_it_is[1]).abs().max() > 1e-3


@pytest.mark.parametrize("position", [p for p in POSITIONS if p != "none"])
def test_an_encoding_tells_places_apart(position):
    ids = token_ids(batch=1)
    place = torch.arange(11)[None]
    stretched = tiny(position=position)(ids, position_ids=place * 2).logits
    assert (stretched - tiny(position=position)(ids).logits).abs().max() > 1e-3


# --- norm, MLP, shared layers ----------------------------------------------------------------


def first_block(**switches):
    model = tiny(**switches)
    block = model.model.layers[0]
    for name, parameter in block.named_parameters():
        if "norm" in name and name.endswith("weight"):
            parameter.data.fill_(1.0)
    from orbitlens.orbit.attention import Given

    return lambda x: block(x, Given(causal=True))[0]


def stream(seed=0):
    x = torch.randn(2, 9, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return 3 * x + 2  # neither unit length nor mean zero


def rms(x):
    return x.square().mean(dim=-1).sqrt()


def test_pre_norm_makes_branches_blind_to_the_streams_length():
    def drift(norm, factor):
        x = stream()
        return first_block(norm=norm, mlp=False)(factor * x) - factor * x

    torch.testing.assert_close(drift("pre", 1), drift("pre", 5), atol=1e-4, rtol=0)
    assert (drift("none", 1) - drift("none", 5)).abs().max() > 1


def test_post_norm_leaves_a_stream_of_unit_length():
    ones = torch.ones(2, 9, dtype=torch.float64)
    torch.testing.assert_close(rms(first_block(norm="post")(stream())), ones, atol=1e-3, rtol=0)
    assert (rms(first_block(norm="pre")(stream())) - 1).abs().max() > 1


def test_peri_norm_gives_what_a_branch_adds_unit_length():
    ones = torch.ones(2, 9, dtype=torch.float64)
    added = first_block(norm="peri", mlp=False)(stream()) - stream()
    torch.testing.assert_close(rms(added), ones, atol=1e-3, rtol=0)
    plain = first_block(norm="pre", mlp=False)(stream()) - stream()
    assert (rms(plain) - 1).abs().max() > 0.1


def test_layer_norm_is_blind_to_a_common_shift_and_rms_norm_is_not():
    def moved(kind):
        block, x = first_block(norm_kind=kind, mlp=False), stream()
        return (block(x + 1) - block(x) - 1).abs().max()

    assert moved("layer") < 1e-10
    assert moved("rms") > 0.01


def test_without_an_mlp_a_silent_attention_layer_does_nothing():
    quiet = silence(tiny(mlp=False), "o_proj").model.layers[0]
    loud = silence(tiny(mlp=True), "o_proj").model.layers[0]
    from orbitlens.orbit.attention import Given

    assert torch.equal(quiet(stream(), Given())[0], stream())
    assert not torch.equal(loud(stream(), Given())[0], stream())


def test_shared_layers_are_one_set_of_weights_used_again():
    shared, apart = tiny(shared_layers=True), tiny()
    state = shared.state_dict()
    assert len({name for name in state if ".layers." in name}) * 3 == len(
        {name for name in apart.state_dict() if ".layers." in name}
    )
    for layer in (1, 2):
        copies = {
            name.replace("layers.0", f"layers.{layer}"): value
            for name, value in state.items()
            if "layers.0" in name
        }
        state |= copies
    different = apart(token_ids()).logits
    apart.load_state_dict(state)
    assert torch.equal(apart(token_ids()).logits, shared(token_ids()).logits)
    assert not torch.equal(different, shared(token_ids()).logits)


# --- as transformers has its models ----------------------------------------------------------


@pytest.mark.parametrize("position", POSITIONS)
def test_a_cached_run_equals_an_uncached_one(position):
    model = tiny(position=position)
    ids = token_ids()
    whole = model(ids).logits
    start = model(ids[:, :4], use_cache=True)
    middle = model(ids[:, 4:9], past_key_values=start.past_key_values)
    rest = model(ids[:, 9:], past_key_values=middle.past_key_values)
    parts = torch.cat([start.logits, middle.logits, rest.logits], dim=1)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("position", POSITIONS)
def test_padding_in_front_changes_nothing_that_is_generated(position):
    model = tiny(position=position)
    ids = token_ids(batch=1)
    padded = torch.nn.functional.pad(ids, (3, 0))
    mask = torch.nn.functional.pad(torch.ones_like(ids), (3, 0))
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(ids, **options, use_cache=False)[:, 11:]
    cached = model.generate(padded, attention_mask=mask, **options)[:, 14:]
    assert torch.equal(plain, cached)


def test_patterns_are_the_weights_that_the_fused_softmax_uses():
    model = tiny(position="alibi")
    output = model(token_ids(), output_attentions=True)
    torch.testing.assert_close(output.logits, model(token_ids()).logits, rtol=0, atol=1e-12)
    pattern = output.attentions[1]
    assert pattern.shape == (2, 4, 11, 11)
    torch.testing.assert_close(pattern.sum(-1), torch.ones(2, 4, 11).double())
    assert pattern.triu(1).abs().max() == 0


def test_sinusoidal_positions_are_sines_and_cosines_and_are_not_trained():
    table = tiny(position="sinusoidal").model.embed_positions.weight
    width = table.shape[1]
    for place in (0, 3, 10):
        for k in (0, width // 2 - 1):
            angle = place / 10000 ** (2 * k / width)
            assert table[place, k].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[place, width // 2 + k].item() == pytest.approx(math.cos(angle), abs=1e-6)
    assert not table.requires_grad
    learned = tiny(position="learned").model.embed_positions.weight
    assert learned.requires_grad
    assert (learned - table).abs().max() > 0.5


@pytest.mark.parametrize("position", ["sinusoidal", "t5"])
def test_saved_and_loaded_weights_are_bit_equal(tmp_path, position):
    from transformers import AutoModel, AutoModelForCausalLM

    model = tiny(position=position)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[k]) for k, value in again.state_dict().items())
    # Products of the same numbers may differ in the last digit with where they lie in memory.
    expected = model(token_ids()).logits
    torch.testing.assert_close(again(token_ids()).logits, expected, rtol=0, atol=1e-12)
    body = AutoModel.from_pretrained(tmp_path, dtype=torch.float64)
    expected = model.model(token_ids()).last_hidden_state
    torch.testing.assert_close(body(token_ids()).last_hidden_state, expected, rtol=0, atol=1e-12)


def test_targets_judge_a_position_in_its_own_place_and_labels_the_next_one():
    model, ids = tiny(), token_ids()
    logits = model(ids).logits
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(model(ids, labels=ids).loss, expected)
    targets = torch.full_like(ids, -100)
    targets[:, 4] = ids[:, 5]
    judged = model(ids, targets=targets)
    torch.testing.assert_close(judged.logits, logits[:, 4])
    expected = torch.nn.functional.cross_entropy(logits[:, 4], ids[:, 5])
    torch.testing.assert_close(judged.loss, expected)


def test_a_class_token_sees_all_patches_behind_a_causal_mask():
    images = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    changed = images.clone()
    changed[:, :, -2:, -2:] += 1  # the last patch
    model = tiny(image_size=8, patch_size=2, num_labels=5, mask="causal")
    assert model(images).logits.shape == (2, 5)
    before, after = (model.model(pixel_values=x).last_hidden_state for x in (images, changed))
    assert (before - after)[:, 1:-1].abs().max() == 0
    assert (before - after)[:, 0].abs().max() > 1e-3


# --- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"position": "polar"}, ("position 'polar'", "rotary, alibi, t5")),
        ({"mask": "half"}, ("mask 'half'", "causal, full")),
        ({"norm": "sandwich"}, ("norm 'sandwich'", "pre, post, peri, none")),
        ({"norm_kind": "batch"}, ("norm_kind 'batch'", "layer, rms")),
        ({"residual": "some"}, ("residual 'some'", "attention, mlp")),
        ({"residual": [0, 7]}, ("no layer 7", "0 to 2")),
        ({"refinement": "magic"}, ("refinement 'magic'", "guard-data")),
        ({"refinement": "reinjection", "position": "rotary"}, ("learned or sinusoidal",)),
        ({"refinement": "rotary-values", "position": "learned"}, ("rotary",)),
        (
            {"qk_norm": True, "refinement": "diagonal", "position": "rotary"},
            ("qk_norm", "diagonal"),
        ),
        ({"qk_norm": True, "attention": "plastic"}, ("qk_norm", "plastic")),
        ({"hidden_size": 25}, ("25", "4 heads")),
        ({"position": "rotary", "hidden_size": 20}, ("width 5", "even")),
        ({"position": "rotary", "rotary_fraction": 1.5}, ("1.5",)),
        ({"num_hidden_layers": 0}, ("num_hidden_layers is 0",)),
        ({"image_size": 8, "patch_size": 3}, ("patches of 3",)),
    ],
)
def test_a_wrong_switch_or_size_is_refused_with_what_is_known(switches, words):
    with pytest.raises(InputError) as caught:
        OrbitConfig(**{**SMALL, **switches})
    assert all(word in str(caught.value) for word in words)


def test_inputs_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="33 tokens; this model has 32 positions"):
        tiny()(token_ids(33))
    with pytest.raises(InputError, match="expected \\(batch, 11\\)"):
        tiny()(token_ids(), attention_mask=torch.ones(2, 5))
    with pytest.raises(InputError, match="image_size is missing"):
        OrbitForImageClassification(OrbitConfig(**SMALL))
    with pytest.raises(InputError, match="give pixel_values"):
        OrbitForCausalLM(OrbitConfig(**SMALL, image_size=8))(token_ids())
    with pytest.raises(InputError, match="this model takes \\[1, 8, 8\\]"):
        tiny(image_size=8)(torch.zeros(1, 3, 8, 8))
