"""Plastic attention: one rule, read token by token, all at once and from a cache."""

import json

import pytest
import torch
from transformers import DynamicCache

from orbit_models import tiny, token_ids
from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.errors import InputError
from orbitlens.lab.run import RunConfig, run_config, run_hash
from orbitlens.orbit import OrbitConfig, OrbitForCausalLM
from orbitlens.orbit.plastic import PlasticAttention, at_once, read, token_by_token, write, written
from orbitlens.scanning.api import scan
from small_llama import run

DECAYS = (1.0, 0.8)


def parts(seed=0, *, n_tokens=7):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, n_tokens, 5, dtype=torch.float64, generator=draw) for _ in range(3)]


def causal(n):
    return torch.ones(n, n, dtype=torch.bool).tril()[None, None]


# --- the rule --------------------------------------------------------------------------------


def test_one_pair_is_recalled_exactly():
    k = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64)
    v = torch.tensor([[[3.0, -2.0]]], dtype=torch.float64)
    state = write(torch.zeros(1, 1, 2, 2, dtype=torch.float64), k, v)
    assert torch.equal(state[0, 0] @ k[0, 0], v[0, 0])


@pytest.mark.parametrize("decay", DECAYS)
def test_token_by_token_and_all_at_once_agree(decay):
    q, k, v = parts()
    step_by_step, state = token_by_token(q, k, v, decay)
    together, _ = at_once(q, k, v, causal(7), decay=decay)
    assert (step_by_step - together).abs().max() < 1e-10
    assert (written(k, v, None, decay=decay) - state).abs().max() < 1e-10


def test_another_decay_is_another_answer():
    q, k, v = parts()
    assert (token_by_token(q, k, v)[0] - token_by_token(q, k, v, 0.8)[0]).abs().max() > 0.1


@pytest.mark.parametrize("decay", DECAYS)
def test_a_state_carries_over_to_the_tokens_after_it(decay):
    q, k, v = parts()
    whole, _ = token_by_token(q, k, v, decay)
    first = written(k[..., :4, :], v[..., :4, :], None, decay=decay)
    rest, _ = at_once(q[..., 4:, :], k[..., 4:, :], v[..., 4:, :], causal(3), decay=decay)
    rest = rest + read(first, q[..., 4:, :], decay=decay)
    assert (rest - whole[..., 4:, :]).abs().max() < 1e-10


# --- in a model ------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("position", ["none", "rotary"])
def test_a_model_fed_one_token_at_a_time_says_what_it_says_of_all(decay, position):
    model = tiny(attention="plastic", decay=decay, position=position)
    ids, cache = token_ids(), DynamicCache()
    with torch.no_grad():
        whole = model(ids).logits
        one_by_one = [model(ids[:, t : t + 1], past_key_values=cache).logits for t in range(11)]
    assert (torch.cat(one_by_one, dim=1) - whole).abs().max() < 1e-10
    assert cache.get_seq_length() == 11
    assert cache.layers[0].keys.shape == (2, 4, 6, 6)  # a matrix a head, whatever the length


def test_generation_with_a_cache_is_generation_without():
    model = tiny(attention="plastic", decay=0.9)
    ids = token_ids(4)
    padded = torch.cat([torch.zeros(2, 2, dtype=torch.long), ids], dim=1)
    mask = (torch.arange(6) >= 2).long().expand(2, 6)
    for options in ({}, {"num_beams": 3}):
        settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, **options}
        plain = model.generate(ids, use_cache=False, **settings)
        assert torch.equal(model.generate(ids, **settings), plain)
        behind = model.generate(padded, attention_mask=mask, **settings)
        assert torch.equal(behind[:, 2:], plain)


def test_with_a_full_mask_every_token_reads_the_whole_sum():
    model = tiny(attention="plastic", mask="full", position="none", num_hidden_layers=1)
    ids = token_ids()
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        moved = model(ids[:, order]).logits - model(ids).logits[:, order]
        halved = model(ids).logits[:, :5] - model(ids[:, :5]).logits
    assert moved.abs().max() < 1e-12
    assert halved.abs().max() > 0.1  # later tokens are read too


def test_weights_are_signed_and_sum_to_anything():
    with torch.no_grad():
        pattern = tiny(attention="plastic")(token_ids(), output_attentions=True).attentions[0]
    assert pattern.min() < 0
    assert (pattern.sum(-1) - 1).abs().max() > 0.1
    assert pattern.triu(1).abs().max() == 0


def test_a_cache_that_holds_keys_is_refused():
    cache, ids = DynamicCache(), token_ids()
    with torch.no_grad():
        tiny()(ids, past_key_values=cache)
        with pytest.raises(InputError, match="DynamicLayer"):
            tiny(attention="plastic")(ids, past_key_values=cache)


@pytest.mark.parametrize(
    ("switches", "says"),
    [
        ({"attention": "linear"}, "attention 'linear' is unknown. Choose one of: softmax, plastic"),
        ({"attention": "plastic", "position": "alibi"}, "inside a softmax"),
        ({"attention": "plastic", "refinement": "guard"}, "needs softmax attention"),
        ({"attention": "plastic", "decay": 0.0}, "above 0"),
        ({"attention": "plastic", "decay": 0.5, "mask": "full"}, "one after another"),
        ({"decay": 0.5}, "belongs to attention 'plastic'"),
    ],
)
def test_switches_that_mean_nothing_together_are_refused(switches, says):
    with pytest.raises(InputError, match=says):
        OrbitConfig(**switches)


# --- runs, files, scans ----------------------------------------------------------------------


def test_a_default_run_keeps_the_hash_it_had_before_there_was_a_switch():
    assert run_hash(RunConfig()) == "103e32346afba198"
    plastic = run_config({"attention": "plastic"})
    assert len({run_hash(RunConfig()), run_hash(plastic)}) == 2
    assert run_hash(plastic) != run_hash(run_config({"attention": "plastic", "decay": 0.9}))


def test_it_trains_from_the_command_line_is_read_back_and_scanned(tmp_path):
    shown = run(
        "train", "copy", "--attention", "plastic", "--steps", "3", "--width", "16", "--heads", "2",
        "--layers", "1", "--set", "decay=0.9", "--set", "judged=64", "--set", "batch=8",
        "--out", tmp_path, "--json", tmp_path / "run.json",
    )  # fmt: skip
    assert shown.code == 0, shown.err
    folder = next(tmp_path.glob("*/model"))
    model = OrbitForCausalLM.from_pretrained(folder)
    assert isinstance(model.model.layers[0].self_attn, PlasticAttention)
    assert model.model.layers[0].self_attn.decay == 0.9
    text = run("scan", folder)
    assert text.code == 0
    assert "no softmax" in " ".join(text.out.split())


def test_a_scan_reads_the_maps_of_the_same_weights_and_says_that_there_is_no_softmax(tmp_path):
    tiny(attention="plastic").save_pretrained(tmp_path / "plastic")
    config = json.loads((tmp_path / "plastic" / "config.json").read_text())
    (tmp_path / "soft").mkdir()
    (tmp_path / "soft/config.json").write_text(json.dumps({**config, "attention": "softmax"}))
    weights = (tmp_path / "plastic/model.safetensors").read_bytes()
    (tmp_path / "soft/model.safetensors").write_bytes(weights)
    plastic, soft = (scan(load_checkpoint(tmp_path / kind)) for kind in ("plastic", "soft"))
    assert plastic.layers == soft.layers
    assert any("no softmax" in flag for flag in plastic.flags)
    assert not any("no softmax" in flag for flag in soft.flags)
