"""Readings of a live module equal what the slow way says, and leave training as it was."""

import math

import pytest
import torch
import transformers

import tiny_models
from orbitlens.errors import InputError, UnknownFamilyError
from orbitlens.heads.attention import attention_pattern
from orbitlens.heads.head import normalised
from orbitlens.running.model import load
from orbitlens.theory.clouds import mean_cosine
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.sharpness import entropy_floor, score_spread
from orbitlens.watching.api import Watch
from orbitlens.watching.growth import GrowthSeries, steps_until
from orbitlens.watching.record import read_record

CASES = {case.name: case for case in tiny_models.CASES}
READ_ALIKE = (
    "gpt2",
    "bloom",
    "mpt-clip-6-heads",
    "phi-qk-norm",
    "olmo2",
    "stablelm-qk-norm",
    "deepseek_v3-halves",
    "albert",
    "t5",
)


def gpt2(**changes):
    torch.manual_seed(0)
    sizes = {**tiny_models.GPT2, "bos_token_id": 0, "eos_token_id": 0, **changes}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).train()


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**tiny_models.LLAMA, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config).train()


def ids_at(step):
    return torch.randint(0, 40, (3, 12), generator=torch.Generator().manual_seed(step))


def close(read, exact):
    return math.isclose(read, exact, rel_tol=2e-5, abs_tol=1e-6)


@pytest.mark.parametrize("name", READ_ALIKE)
def test_numbers_of_heads_are_those_of_each_head_read_alone(name):
    module = tiny_models.build(CASES[name]).float()
    reading = Watch()(module, 0)
    n = reading.n_tokens
    for row, layer in enumerate(load(module).layers()):
        for h, head in enumerate(layer):
            maps = HeadMaps.of(head)
            found = {key: rows[row][h] for key, rows in reading.heads.items()}
            assert close(found["norm_q"], head.w_q.norm().item())
            assert close(found["top_k"], torch.linalg.matrix_norm(head.w_k, 2).item())
            assert close(found["top_o"], torch.linalg.matrix_norm(head.value_factors[1], 2).item())
            assert close(found["score_norm"], maps.score_norm)
            assert close(found["alignment"], maps.alignment)
            shift = head.score_shift.norm().item()
            assert close(found["score_spread"], math.hypot(maps.score_norm, shift))
            assert close(found["freezing"], found["score_spread"] / math.sqrt(2 * math.log(n)))
            exact = torch.linalg.svdvals(maps.left @ maps.right.T)
            assert close(found["stable_rank_qk"], (exact.square().sum() / exact[0] ** 2).item())
            bound = score_spread(head, maps, length=math.sqrt(head.d_model), n_tokens=n)
            if bound is None:
                assert found["score_bound"] == math.inf
            else:
                assert close(found["score_bound"], bound)
                assert close(found["entropy_floor"], entropy_floor(bound, n) / math.log(n))


def test_spread_on_tokens_is_the_standard_deviation_of_their_scores():
    module, ids = gpt2().eval(), ids_at(0)
    reading = Watch()(module, 0, {"input_ids": ids})
    states = module(ids, output_hidden_states=True).hidden_states
    layer = load(module).layer(1)
    seen = layer.normalise(states[1].double().flatten(0, 1))
    for h, head in enumerate(layer):
        scores = (seen @ head.w_q + head.b_q) @ (seen @ head.w_k + head.b_k).T * head.scale
        exact = scores.var(dim=1).mean().sqrt().item()
        assert close(reading.heads["score_spread"][1][h], exact)


def test_readings_with_tokens_are_the_models_own():
    module, ids = gpt2(attn_implementation="eager").eval(), ids_at(0)
    tokens = Watch()(module, 0, {"input_ids": ids}).tokens
    out = module(ids, output_hidden_states=True, output_attentions=True)
    for k in (0, 1, 2):
        x = out.hidden_states[k].double()
        cosines = [mean_cosine(c - c.mean(dim=-1, keepdim=True)) for c in x]
        assert close(tokens.cosine[k], sum(cosines) / 3)
        assert close(tokens.log_spread[k], math.log(1 - tokens.cosine[k]))
        pattern = out.attentions[k][0, :, 6:]
        for h, exact in enumerate(pattern.square().sum(dim=-1).mean(dim=-1).tolist()):
            assert math.isclose(tokens.sharpness[k][h], exact, rel_tol=1e-4)
    moved = out.hidden_states[1] - out.hidden_states[0]
    assert close(tokens.block_update[0], (moved.norm() / out.hidden_states[0].norm()).item())


def test_what_a_head_writes_is_the_length_of_its_part_of_the_output():
    module, ids = llama().eval(), ids_at(0)[:1]
    tokens = Watch()(module, 0, {"input_ids": ids}).tokens
    before = module(ids, output_hidden_states=True).hidden_states[0][0].double()
    layer = load(module).layer(0)
    seen = normalised(before, layer.stack.norm, layer.stack.norm_epsilon)
    for h, (head, p) in enumerate(zip(layer, attention_pattern(layer, seen), strict=True)):
        part = p @ (seen @ head.w_v) @ head.w_o
        assert close(tokens.written[0][h], (part.norm() / before.norm()).item())


def trained(module, watch, steps=24):
    torch.manual_seed(1)  # dropout draws from it
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        ids = ids_at(step)
        loss = module(input_ids=ids, labels=ids).loss
        loss.backward()
        if watch is not None:  # between backward and step: gradients are there to be spoiled
            watch(module, step, {"input_ids": ids, "labels": ids}, loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("build", [gpt2, llama])
def test_losses_are_the_same_bits_with_and_without(build, tmp_path):
    plain, seen = build(), build()
    seen.get_submodule("model.layers.1" if build is llama else "transformer.h.1").eval()
    plain.get_submodule("model.layers.1" if build is llama else "transformer.h.1").eval()
    modes = [part.training for part in seen.modules()]
    watch = Watch(every=3, tokens_every=6, path=tmp_path)
    assert trained(plain, None) == trained(seen, watch)
    assert [part.training for part in seen.modules()] == modes
    strides = [p.stride() for p in plain.parameters()]
    assert [p.stride() for p in seen.parameters()] == strides
    header, readings = read_record(tmp_path / "watch.jsonl")
    assert [r.step for r in readings] == list(range(0, 24, 3))
    assert [r.step for r in readings if r.tokens is not None] == [0, 6, 12, 18]
    assert [layer.n_heads for layer in header.layers] == [4, 4, 4]


def test_fused_attention_reads_as_the_other_one_does():
    fused, plain = gpt2(attn_implementation="sdpa"), gpt2(attn_implementation="eager")
    one, other = (Watch()(m, 0, ids_at(0)) for m in (fused, plain))
    assert one.heads["score_bound"] == other.heads["score_bound"]
    for a, b in zip(one.tokens.cosine, other.tokens.cosine, strict=True):
        assert close(a, b)


def test_a_module_that_cannot_be_read_is_refused_at_the_start():
    with pytest.raises(InputError, match="transformers config"):
        Watch().attach(torch.nn.Linear(3, 3))
    with pytest.raises(InputError, match="expected a live module"):
        Watch()("gpt2", 0)
    mamba = transformers.MambaModel(
        transformers.MambaConfig(hidden_size=8, num_hidden_layers=1, vocab_size=9)
    )
    with pytest.raises(UnknownFamilyError):
        Watch()(mamba, 0)


def test_a_batch_without_the_models_input_is_refused_at_the_start():
    with pytest.raises(InputError, match="no 'input_ids'"):
        Watch()(gpt2(), 0, {"tokens": ids_at(0)})


def test_weights_that_are_not_finite_are_named_and_the_rest_is_read():
    module = gpt2()
    with torch.no_grad():
        module.transformer.h[1].attn.c_attn.weight[0, 0] = math.nan
    reading = Watch()(module, 0, ids_at(0))
    assert reading.broken == (1,)
    assert all(map(math.isnan, reading.heads["norm_q"][1]))
    assert all(map(math.isfinite, reading.heads["norm_q"][0]))


def test_growth_of_an_exponential_is_its_rate():
    growth = GrowthSeries()
    for step in (0, 10, 30):
        values = torch.tensor([math.exp(0.02 * step), math.exp(-0.01 * step), 1.0]).double()
        growth.add(step, dict.fromkeys(growth_names(), values))
    rates = growth.rates()["freezing"].tolist()
    assert rates == pytest.approx([0.02, -0.01, 0.0], abs=1e-9)
    assert steps_until(math.exp(0.6), rates[0], math.exp(1.0)) == pytest.approx(20.0)


def growth_names():
    from orbitlens.watching.growth import GROWING

    return GROWING
