"""Scalings of a rotary encoding: as models built with them, and put back behind them."""

import copy

import pytest
import torch

from orbitlens.encodings.scalings import (
    all_scalings,
    config_setting,
    one_encoding,
    scaled,
    scaling,
)
from orbitlens.errors import InputError
from orbitlens.orbit import OrbitForCausalLM
from orbitlens.orbit.config import OrbitConfig
from orbitlens.running.model import load
from tiny_models import CASES, build

BY_NAME = {case.name: case for case in CASES}
IDS = torch.tensor([[5, 17, 3, 8, 22, 9, 14]])
TRAINED = 16


def logits(module):
    with torch.no_grad():
        return module.eval()(input_ids=IDS, use_cache=False).logits


@pytest.mark.parametrize("kind", ["linear", "ntk", "yarn"])
@pytest.mark.parametrize("name", ["llama-grouped", "qwen3", "gpt_neox"])
def test_a_model_under_a_scaling_is_one_built_with_its_rope_parameters(name, kind):
    module = build(BY_NAME[name]).float()
    model = load(module)
    plain = one_encoding(model.architecture.stacks[0])
    chosen = scaling(kind, 4.0, plain, TRAINED)
    config = copy.deepcopy(module.config)
    setting = config_setting(model, plain, chosen)
    config.rope_parameters = setting["rope_parameters"]
    other = type(module)(config).float()
    other.load_state_dict(module.state_dict())
    before = logits(module)
    with scaled(model, plain, chosen):
        within = logits(module)
    assert torch.allclose(within, logits(other), atol=1e-5)
    assert not torch.allclose(within, before, atol=1e-4)
    assert torch.equal(logits(module), before)


def test_an_ntk_aware_base_of_a_lab_model_is_its_rotary_base():
    torch.manual_seed(0)
    module = OrbitForCausalLM(OrbitConfig(vocab_size=32, position="rotary")).float()
    model = load(module)
    plain = one_encoding(model.architecture.stacks[0])
    chosen = scaling("ntk", 2.0, plain, TRAINED)
    other = OrbitForCausalLM(
        OrbitConfig(vocab_size=32, position="rotary", **config_setting(model, plain, chosen))
    ).float()
    other.load_state_dict(module.state_dict())
    before = logits(module)
    with scaled(model, plain, chosen):
        assert torch.allclose(logits(module), logits(other), atol=1e-6)
    assert torch.equal(logits(module), before)
    assert config_setting(model, plain, scaling("yarn", 2.0, plain, TRAINED)) is None


def test_an_ntk_aware_base_slows_the_slowest_plane_by_its_factor_and_the_fastest_not():
    plain = one_encoding(load(build(BY_NAME["llama-grouped"])).architecture.stacks[0])
    grown = scaling("ntk", 4.0, plain, TRAINED)
    slowest = (plain.d_rotary - 2) / plain.d_rotary
    assert (grown.base / plain.base) ** slowest == pytest.approx(4.0)


def test_all_kinds_and_factors_are_tried_and_none_first():
    plain = one_encoding(load(build(BY_NAME["llama-grouped"])).architecture.stacks[0])
    tried = all_scalings(plain, TRAINED, (2.0, 4.0))
    assert [each.name for each in tried] == [
        "as it is", "linear 2", "linear 4", "ntk 2", "ntk 4", "yarn 2", "yarn 4",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "reason"),
    [("gpt2", "no layer is rotated"), ("llama-yarn", "stretched already"),
     ("deepseek_v2", "latent attention"), ("gemma3", "encodings of their own")],
)  # fmt: skip
def test_what_cannot_be_stretched_is_said(name, reason):
    with pytest.raises(InputError, match=reason):
        one_encoding(load(build(BY_NAME[name])).architecture.stacks[0])
