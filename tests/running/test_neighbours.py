"""Models of PEFT, nnsight and TransformerLens: read exactly, or refused with the way around."""

import copy
from types import SimpleNamespace

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.running.model import load
from orbitlens.scanning.api import scan
from orbitlens.tracing.api import trace
from orbitlens.tracing.options import TraceOptions
from tiny_models import CASES, build

BY_NAME = {case.name: case for case in CASES}
IDS = torch.tensor([[5, 17, 3, 8, 11, 2], [9, 4, 30, 21, 7, 6]])
TARGETS = {"llama-grouped": ["q_proj", "v_proj", "o_proj"], "gpt2": ["c_attn", "c_proj"]}


def fresh(name):
    torch.manual_seed(0)
    return build(BY_NAME[name]).float()


def alignments(result):
    return torch.tensor([head.alignment for _, head in result.heads()])


@pytest.fixture
def peft():
    return pytest.importorskip("peft", reason="peft is not installed")


def adapted(peft, name, **options):
    """A tiny model with adapters that change what it computes."""
    config = peft.LoraConfig(
        r=2,
        target_modules=TARGETS[name],
        init_lora_weights=False,
        fan_in_fan_out=name == "gpt2",
        **options,
    )
    return peft.get_peft_model(fresh(name), config).eval()


@pytest.mark.parametrize("name", TARGETS)
def test_adapters_are_read_as_the_merged_weights_and_left_alone(peft, name):
    model = adapted(peft, name)
    with torch.no_grad():
        before = model(IDS).logits
    read = scan(load(model))
    merged = scan(load(copy.deepcopy(model).merge_and_unload()))
    assert torch.allclose(alignments(read), alignments(merged), atol=1e-6)
    assert not torch.allclose(alignments(read), alignments(scan(load(fresh(name)))), atol=1e-3)
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, before)


def test_a_model_with_adapters_runs_as_its_merged_copy(peft):
    model = adapted(peft, "llama-grouped")
    quick = TraceOptions(closures=("plain",), closure="plain", flow_steps=1, n_kept=12)
    own = trace(load(model), IDS, options=quick)
    merged = trace(load(copy.deepcopy(model).merge_and_unload()), IDS, options=quick)
    changes = [
        [layer.attention.measured_log_change for layer in result.layers] for result in (own, merged)
    ]
    assert changes[0] == pytest.approx(changes[1], abs=1e-5)
    assert own.self_check.max_head_sum_error < 1e-4


def test_disabled_merged_and_several_adapters_are_read_as_they_run(peft):
    model = adapted(peft, "llama-grouped")
    plain = alignments(scan(load(fresh("llama-grouped"))))
    with model.disable_adapter():
        assert torch.allclose(alignments(scan(load(model))), plain, atol=1e-6)
    own = alignments(scan(load(model)))
    model.merge_adapter()
    assert torch.allclose(alignments(scan(load(model))), own, atol=1e-6)
    model.unmerge_adapter()
    model.add_adapter("second", model.peft_config["default"])
    model.base_model.set_adapter(["default", "second"])
    both = alignments(scan(load(model)))
    merged = alignments(scan(load(copy.deepcopy(model).merge_and_unload())))
    assert torch.allclose(both, merged, atol=1e-6)
    assert not torch.allclose(both, own, atol=1e-3)


def test_layers_that_an_adapter_trains_whole_are_read_from_their_copy(peft):
    model = adapted(peft, "llama-grouped", modules_to_save=["k_proj"])
    for name, parameter in model.named_parameters():
        if "modules_to_save" in name:
            parameter.data += 0.3
    merged = scan(load(copy.deepcopy(model).merge_and_unload()))
    assert torch.allclose(alignments(scan(load(model))), alignments(merged), atol=1e-6)


@pytest.mark.parametrize("options", [{"use_dora": True}, {"lora_bias": True, "bias": "none"}])
def test_adapters_that_are_more_than_an_added_matrix_are_refused(peft, options):
    torch.manual_seed(0)
    name = "gpt2" if "lora_bias" in options else "llama-grouped"
    with pytest.raises(InputError, match="merge_and_unload"):
        load(adapted(peft, name, **options))


def test_trained_prompts_are_refused(peft):
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(InputError, match="get_base_model"):
        load(peft.get_peft_model(fresh("gpt2"), config))


# --- stand-ins with the attributes of the other two ------------------------------------------


def stand_in(package, name, **attributes):
    kind = type(name, (SimpleNamespace,), {"__module__": f"{package}.models"})
    return kind(**attributes)


def test_the_module_and_the_tokenizer_inside_a_model_of_nnsight_are_taken():
    module, tokenizer = fresh("gpt2"), object()
    model = load(stand_in("nnsight", "LanguageModel", _module=module, tokenizer=tokenizer))
    assert model.module is module
    assert model.tokenizer is tokenizer
    assert torch.equal(alignments(scan(model)), alignments(scan(load(module))))


def test_a_model_of_nnsight_without_weights_is_asked_for_with_dispatch():
    module = fresh("gpt2").to("meta")
    with pytest.raises(InputError, match="dispatch=True"):
        load(stand_in("nnsight", "LanguageModel", _module=module, tokenizer=None))
    with pytest.raises(InputError, match="the model that it wraps"):
        load(stand_in("nnsight", "NNsight", _module=None))


def test_a_real_model_of_nnsight_is_read_as_the_module_inside():
    nnsight = pytest.importorskip("nnsight", reason="nnsight is not installed")
    module = fresh("gpt2")
    wrapped = nnsight.NNsight(module)
    assert torch.equal(alignments(scan(load(wrapped))), alignments(scan(load(module))))


@pytest.mark.parametrize("name", ["HookedTransformer", "TransformerBridge"])
def test_a_model_of_transformer_lens_is_refused_with_the_name_of_the_original(name):
    settings = SimpleNamespace(tokenizer_name="gpt2", model_name="gpt2-small")
    with pytest.raises(InputError, match=r"folded norms.*load\('gpt2'\)"):
        load(stand_in("transformer_lens", name, cfg=settings))
