"""A running model under another rotation: as an independently built one, and put back behind it."""

import copy

import pytest
import torch

from orbitlens.encodings.changes import Change, changed
from orbitlens.errors import InputError
from orbitlens.families.architecture import Pairing
from orbitlens.orbit import OrbitForCausalLM
from orbitlens.orbit.config import OrbitConfig
from orbitlens.running.model import load
from tiny_models import CASES, build

BY_NAME = {case.name: case for case in CASES}
IDS = torch.tensor([[5, 17, 3, 8, 22, 9, 14]])


def logits(module, **more):
    with torch.no_grad():
        # With a mask given, transformers does not take equal ids for sequences side by side.
        mask = torch.ones_like(IDS)
        return module.eval()(input_ids=IDS, attention_mask=mask, use_cache=False, **more).logits


def orbit(**switches):
    torch.manual_seed(0)
    return OrbitForCausalLM(OrbitConfig(vocab_size=32, initializer_range=0.2, **switches)).float()


def like(module, **switches):
    """Return another model with the same weights."""
    other = OrbitForCausalLM(OrbitConfig(vocab_size=32, **switches)).float()
    other.load_state_dict(module.state_dict())
    return other


@pytest.mark.parametrize("name", ["llama-grouped", "qwen3", "gpt_neox", "gptj", "deepseek_v2"])
def test_without_any_rotation_a_model_is_that_with_all_tokens_at_place_0(name):
    module = build(BY_NAME[name]).float()
    whole = logits(module)
    n = module.config.num_hidden_layers
    with changed(load(module), Change(name="", pairing={}, unrotated=tuple(range(n)))):
        plain = logits(module)
    assert torch.allclose(plain, logits(module, position_ids=torch.zeros_like(IDS)), atol=1e-6)
    assert not torch.allclose(plain, whole, atol=1e-4)
    assert torch.equal(logits(module), whole)


def test_one_layer_of_the_labs_models_is_unrotated_or_rotated_as_its_switch_says():
    module = orbit(position="rotary")
    expected = logits(like(module, position="rotary", rotary_layers=[0, 2]))
    with changed(load(module), Change(name="", pairing={}, unrotated=(1,))):
        assert torch.allclose(logits(module), expected, atol=1e-6)
    assert torch.allclose(logits(module), logits(like(module, position="rotary")), atol=1e-6)
    mixed = like(module, position="rotary", rotary_layers=[0, 2])
    with changed(load(mixed), Change(name="", pairing={}, rotated=(1,))):
        assert torch.allclose(logits(mixed), logits(module), atol=1e-6)
    assert torch.allclose(logits(mixed), expected, atol=1e-6)


def test_smollm3_rotates_a_layer_that_its_config_leaves_out():
    module = build(BY_NAME["smollm3"]).float()
    before = logits(module)
    with changed(load(module), Change(name="", pairing={}, rotated=(1,))):
        whole = logits(module)
    assert not torch.allclose(whole, before, atol=1e-4)
    config = copy.deepcopy(module.config)
    config.no_rope_layers = [1, 1, 1]
    other = type(module)(config).float()
    other.load_state_dict(module.state_dict())
    assert torch.allclose(logits(other), whole, atol=1e-6)
    assert torch.equal(logits(module), before)


def test_another_base_is_that_of_a_model_built_with_it():
    module = orbit(position="rotary")
    before = logits(module)
    with changed(load(module), Change(name="", pairing={}, base=70.0)):
        found = logits(module)
    assert torch.allclose(found, logits(like(module, position="rotary", rotary_base=70.0)))
    assert torch.equal(logits(module), before)
    llama = build(BY_NAME["llama"]).float()
    settings = llama.config.to_dict()
    settings["rope_parameters"] = {**settings["rope_parameters"], "rope_theta": 70.0}
    other = type(llama)(type(llama.config)(**settings)).float()
    other.load_state_dict(llama.state_dict())
    with changed(load(llama), Change(name="", pairing={}, base=70.0)):
        assert torch.allclose(logits(llama), logits(other), atol=1e-5)


def test_swapping_rows_twice_is_no_change():
    module = build(BY_NAME["llama-grouped"]).float()
    before = logits(module)
    model = load(module)
    with changed(model, Change(name="", pairing={0: Pairing.NEIGHBOURS})):
        assert not torch.allclose(logits(module), before, atol=1e-4)
        with changed(model, Change(name="", pairing={0: Pairing.HALVES})):
            assert torch.allclose(logits(module), before, atol=1e-6)


def test_what_a_family_does_not_allow_is_refused_with_the_reason():
    bloom = build(BY_NAME["bloom"]).float()
    with (
        pytest.raises(InputError, match="inside"),
        changed(load(bloom), Change(name="", pairing={}, unrotated=(0,))),
    ):
        logits(bloom)
    for module in (build(BY_NAME["llama"]).float(), orbit(position="none")):
        with (
            pytest.raises(InputError, match="no switch"),
            changed(load(module), Change(name="", pairing={}, rotated=(0,))),
        ):
            pass
    for name in ("llama-yarn", "gptj"):
        with (
            pytest.raises(InputError, match="no single table"),
            changed(load(build(BY_NAME[name]).float()), Change(name="", base=70.0)),
        ):
            pass
