"""A live module is read as the files that it would be saved in, in place and at any time."""

import pytest
import torch
from torch import nn

from orbit_models import tiny as orbit_model
from orbitlens.checkpoint.live import LiveSource, checkpoint_of_module
from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.errors import CheckpointError, InputError
from orbitlens.heads.layers import load_layer
from tiny_models import CASES, build

BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Return a function from a case's name to (module, live checkpoint, saved checkpoint)."""
    known = {}

    def get(name):
        if name not in known:
            module = build(BY_NAME[name])
            folder = tmp_path_factory.mktemp(name)
            module.save_pretrained(folder)
            known[name] = module, checkpoint_of_module(module), load_checkpoint(folder)
        return known[name]

    return get


@pytest.mark.parametrize("name", BY_NAME)
def test_a_module_has_the_architecture_and_the_tensors_of_its_files(both, name):
    _, live, saved = both(name)
    assert live.architecture == saved.architecture
    assert dict(live.source.tensors) == dict(saved.source.tensors)
    assert live.n_parameters == saved.n_parameters
    assert {**live.config, "transformers_version": 0} == {**saved.config, "transformers_version": 0}


def same(one, two):
    if isinstance(two, tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return torch.equal(one, two) if isinstance(two, torch.Tensor) else one == two


@pytest.mark.parametrize("name", BY_NAME)
def test_every_layer_of_a_module_equals_that_of_its_files(both, name):
    _, live, saved = both(name)
    for stack in saved.architecture.stacks:
        for index in range(stack.n_layers):
            ours = load_layer(live, index, stack=stack.name)
            theirs = load_layer(saved, index, stack=stack.name)
            for field, value in vars(theirs).items():
                assert same(getattr(ours, field), value), field
        for tensor in stack.shared_tensors.values():
            assert torch.equal(live.read(tensor), saved.read(tensor))


def test_all_tensors_equal_those_of_files_where_files_split_them(both):
    _, live, saved = both("mixtral")
    for tensor in saved.source.tensors:
        assert torch.equal(live.read(tensor), saved.read(tensor))


def test_reading_is_in_place_and_follows_training():
    module = build(BY_NAME["llama"])
    live = checkpoint_of_module(module)
    name = "model.layers.0.self_attn.q_proj.weight"
    weight = module.get_submodule("model.layers.0.self_attn.q_proj").weight
    first = live.read(name)
    assert first.data_ptr() == weight.data_ptr()
    assert not first.requires_grad
    with torch.no_grad():
        weight.add_(1.0)
    assert torch.equal(live.read(name), weight)
    weight.data = torch.zeros_like(weight)  # a new tensor behind the same parameter
    assert torch.equal(live.read(name), weight)


def test_the_header_pins_names_and_shapes_and_not_values():
    module = build(BY_NAME["llama"])
    before = dict(LiveSource(module).header_sha256)
    with torch.no_grad():
        next(module.parameters()).add_(1.0)
    assert dict(LiveSource(module).header_sha256) == before
    assert dict(LiveSource(build(BY_NAME["qwen3"])).header_sha256) != before


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch.compile's imports
def test_wrappers_are_looked_through():
    module = build(BY_NAME["gpt2"])
    plain = checkpoint_of_module(module)
    for wrapped in (nn.DataParallel(module), torch.compile(module)):
        live = checkpoint_of_module(wrapped)
        assert live.architecture == plain.architecture
        assert dict(live.source.tensors) == dict(plain.source.tensors)


def test_models_of_the_lab_are_read_live(tmp_path):
    module = orbit_model()
    module.save_pretrained(tmp_path)
    live, saved = checkpoint_of_module(module), load_checkpoint(tmp_path)
    assert live.architecture == saved.architecture
    assert dict(live.source.tensors) == dict(saved.source.tensors)


def test_a_module_without_a_config_is_refused():
    with pytest.raises(InputError, match="no transformers config"):
        checkpoint_of_module(nn.Linear(2, 2))


def test_tensors_without_numbers_are_refused():
    module = build(BY_NAME["llama"]).to("meta")
    name = "model.layers.0.self_attn.q_proj.weight"
    with pytest.raises(CheckpointError, match="has no data"):
        checkpoint_of_module(module).read(name)
    quantised = build(BY_NAME["llama"])
    layer = quantised.get_submodule("model.layers.0.self_attn.q_proj")
    layer.weight = nn.Parameter(layer.weight.detach().char(), requires_grad=False)
    with pytest.raises(CheckpointError, match="not floating point"):
        checkpoint_of_module(quantised).read(name)


def test_the_name_is_the_configs_the_callers_or_the_classs():
    module = build(BY_NAME["gpt2"])
    assert checkpoint_of_module(module).path == "GPT2LMHeadModel"
    assert checkpoint_of_module(module, name="mine").path == "mine"
    module.config.name_or_path = "owner/small"
    assert checkpoint_of_module(module).path == "owner/small"
