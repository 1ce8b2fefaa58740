"""Tokens of images that know of each other: MoTo, TokenProp and the stem, alone and in a model."""

import json

import pytest
import torch

from orbit_models import SMALL, tiny
from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.errors import InputError
from orbitlens.lab.recipe import build_model
from orbitlens.lab.run import run_config, run_hash, task_of
from orbitlens.lab.run_state import MODEL
from orbitlens.lab.training import train
from orbitlens.orbit import OrbitConfig
from orbitlens.orbit.moto import MoTo, TokenNorm, TokenProp, over_tokens, patches_of
from orbitlens.running.loading import build_module
from orbitlens.scanning.api import scan
from small_llama import refused, run

IMAGES = {"image_size": 8, "patch_size": 2, "num_labels": 5, "mask": "full"}


def drawn(module, generator):
    """Draw all maps: at their start they are zero, and everything would hold for nothing."""
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module.double()


def tokens(generator, n=9, width=6):
    return 3 * torch.randn(2, n, width, generator=generator, dtype=torch.float64) + 1


# --- the layers ------------------------------------------------------------------------------


def test_tokens_are_normalised_over_the_image_and_each_channel_for_itself(generator):
    x = tokens(generator)
    z = over_tokens(x)
    torch.testing.assert_close(z.mean(dim=1), torch.zeros(2, 6).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        z.var(dim=1, correction=0), torch.ones(2, 6).double(), atol=1e-4, rtol=0
    )
    assert torch.equal(TokenNorm()(x), z)


@pytest.mark.parametrize("replaces", [False, True])
def test_moto_is_what_its_formula_says_token_by_token(generator, replaces):
    moto, x = drawn(MoTo(6, regions=3, replaces=replaces), generator), tokens(generator)
    z, shares = over_tokens(x), moto.layout(x)
    torch.testing.assert_close(shares.sum(dim=-1), torch.ones(2, 9).double())
    for b in range(2):
        regions = []
        for k in range(3):
            share = shares[b, :, k]
            region = sum(share[i] * x[b, i] for i in range(9)) / share.sum()
            regions.append(region @ moto.w_modulation + moto.b_modulation)
        for i in range(9):
            mixed = sum(shares[b, i, k] * regions[k] for k in range(3))
            start = z[b, i] if replaces else x[b, i]
            expected = start + z[b, i] * mixed[:6] + mixed[6:]
            torch.testing.assert_close(moto(x)[b, i], expected)


def test_moto_commutes_with_permutations_unless_its_layout_is_fixed(generator):
    x, order = tokens(generator), torch.randperm(9, generator=generator)

    def error(moto):
        return (moto(x[:, order]) - moto(x)[:, order]).abs().max().item()

    for replaces in (False, True):
        assert error(drawn(MoTo(6, replaces=replaces), generator)) < 1e-11
    assert error(drawn(MoTo(6, n_fixed=9), generator)) > 0.1


def test_moto_lets_a_token_move_all_others_and_none_of_another_image(generator):
    moto, x = drawn(MoTo(6), generator), tokens(generator)
    changed = x.clone()
    changed[0, 4] += 1
    moved = (moto(changed) - moto(x)).abs().amax(dim=-1)
    assert moved[0].min() > 1e-3
    assert moved[1].max() == 0


def test_at_the_start_the_residual_form_does_nothing_and_the_other_normalises(generator):
    x = tokens(generator)
    assert torch.equal(MoTo(6).double()(x), x)
    assert torch.equal(MoTo(6, replaces=True).double()(x), over_tokens(x))


def test_the_layout_is_drawn_without_moving_the_generator_of_all_other_weights():
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    first = MoTo(6).w_layout
    assert torch.equal(torch.randn(3), expected)
    torch.manual_seed(6)
    assert not torch.equal(MoTo(6).w_layout, first)


def test_one_token_and_equal_tokens_leave_no_nan():
    moto = MoTo(6)
    for x in (torch.ones(1, 1, 6), torch.ones(2, 5, 6)):
        assert moto(x).isfinite().all()
        assert MoTo(6, replaces=True)(x).isfinite().all()


def test_patches_are_the_pixels_a_token_stands_for():
    image = torch.arange(16.0).view(1, 1, 4, 4)
    assert patches_of(image, 2)[0].tolist() == [
        [0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]
    ]  # fmt: skip


def test_token_prop_is_the_mean_squared_error_times_its_weight(generator):
    prop = TokenProp(6, 4, weight=0.5).double()
    x = tokens(generator)
    pixels = torch.randn(2, 9, 4, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(prop(x, pixels), 0.5 * pixels.square().mean())
    prop.w_pixels.data = torch.linalg.pinv(x.flatten(0, 1)) @ pixels.flatten(0, 1)
    assert prop(x, pixels) < 0.5 * pixels.square().mean()


# --- in a model ------------------------------------------------------------------------------


def test_moto_in_a_model_starts_as_the_plain_model_and_then_does_not():
    config = {"task": "digits", "layers": 1, "width": 16, "heads": 2, "seed": 3}
    plain, with_moto = (
        build_model(c, task_of(c))
        for c in (run_config(config), run_config(config | {"modulation": "moto"}))
    )
    images = torch.randn(3, 1, 8, 8)
    assert torch.equal(plain(images).logits, with_moto(images).logits)
    with_moto.model.embed_patches.modulation.b_modulation.data.fill_(0.3)
    assert not torch.equal(plain(images).logits, with_moto(images).logits)


def test_the_extra_loss_is_there_once_after_a_training_batch_only():
    model = tiny(**IMAGES, token_prop=0.5)
    images = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    model(images)
    assert model.extra_loss() == 0
    model.train()(images)
    tokenizer = model.model.embed_patches
    expected = tokenizer.token_prop(tokenizer.tokens(images), patches_of(images, 2))
    torch.testing.assert_close(model.extra_loss(), expected)
    assert model.extra_loss() == 0
    assert tiny(**IMAGES).train().extra_loss() == 0


def test_a_conv_stem_lets_a_token_see_a_pixel_beyond_its_patch_and_not_two():
    model = tiny(**IMAGES, stem="conv").model.embed_patches
    plain = tiny(**IMAGES).model.embed_patches
    images = torch.randn(1, 1, 8, 8, dtype=torch.float64)
    near, far = images.clone(), images.clone()
    near[..., 0, 2] += 1  # patch 0 holds columns 0 and 1
    far[..., 0, 3] += 1
    assert (model(near) - model(images))[0, 1].abs().max() > 1e-3
    assert (model(far) - model(images))[0, 1].abs().max() == 0
    assert (plain(near) - plain(images))[0, 1].abs().max() == 0


@pytest.mark.parametrize("switch", [{"modulation": "moto"}, {"stem": "conv"}, {"token_prop": 0.5}])
def test_models_of_tokens_refuse_what_acts_on_patches(switch):
    (name,) = switch
    with pytest.raises(InputError, match=f"{name} .* this is a model of tokens"):
        OrbitConfig(**SMALL, **switch)


@pytest.mark.parametrize(
    ("switch", "words"),
    [
        ({"modulation": "mota"}, "moto-replace, moto-random"),
        ({"stem": "fourier"}, "patch, conv"),
        ({"token_prop": -1.0}, "0 or more"),
        ({"token_prop": float("nan")}, "0 or more"),
    ],
)
def test_unknown_values_are_refused_with_the_known_ones(switch, words):
    with pytest.raises(InputError, match=words):
        OrbitConfig(**SMALL, **IMAGES, **switch)


# --- training, saving, reading ---------------------------------------------------------------


def settings(**changes):
    return {
        "task": "digits", "layers": 1, "heads": 2, "width": 16, "steps": 30, "warmup": 3,
        "judged": 64, **changes,
    }  # fmt: skip


def test_old_runs_keep_their_names():
    # These are the hashes of before there were such switches.
    assert run_hash(run_config({"task": "digits"})) == "fc5b34f10b87ef31"
    names = {run_hash(run_config(settings()))}
    for changes in ({"stem": "conv"}, {"modulation": "moto"}, {"token_prop": 0.5}):
        names.add(run_hash(run_config(settings(**changes))))
    assert len(names) == 4


def test_token_prop_trains_its_map_and_only_where_it_is_asked_for(tmp_path):
    config = run_config(settings(modulation="moto", token_prop=0.5, mask="full"))
    train(config, tmp_path)
    model = build_module(tmp_path / run_hash(config) / MODEL)
    tokenizer = model.model.embed_patches
    images = task_of(config).batch("test", 0, 64, 0).inputs
    with torch.no_grad():
        error = tokenizer.token_prop(tokenizer.tokens(images), patches_of(images, 2)) / 0.5
    assert error < 0.8 * images.var()
    assert tokenizer.modulation.w_modulation.abs().max() > 0


@pytest.mark.parametrize("modulation", ["token-norm", "moto", "moto-replace", "moto-random"])
def test_a_saved_model_is_loaded_as_it_was_and_its_heads_are_read(tmp_path, modulation):
    model = tiny(**IMAGES, stem="conv", modulation=modulation, token_prop=0.5).float()
    model.save_pretrained(tmp_path)
    again = build_module(tmp_path)
    images = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(again(images).logits, model(images).logits)
    assert json.loads((tmp_path / "config.json").read_text())["modulation"] == modulation
    assert len(scan(load_checkpoint(tmp_path)).layers[0].heads) == 4


def test_the_command_trains_them_and_says_where_they_mean_nothing(tmp_path):
    words = ("--steps", "5", "--width", "16", "--layers", "1", "--out", tmp_path)
    found = run("train", "digits", "--modulation", "moto", "--token-prop", "0.5", *words)
    assert found.code == 0, found.err
    (model,) = tmp_path.glob("*/model")
    assert run("scan", model).code == 0
    refused("train", "addition", "--stem", "conv", *words, says=["stem 'conv'", "model of tokens"])
