"""Orders of rows: what they do to rotated scores, whatever form the file keeps them in."""

import copy

import pytest
import torch

from orbitlens.checkpoint.live import checkpoint_of_module
from orbitlens.encodings.rows import coordinate_order, reordered_rows, row_orders
from orbitlens.errors import InputError
from orbitlens.families.architecture import Pairing, RotarySpec
from orbitlens.heads.rotary import resolve_rotary, rotate
from orbitlens.heads.scores import load_scores
from tiny_models import CASES, build

BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize("width", [6, 8])
@pytest.mark.parametrize("trained", Pairing)
def test_reordered_queries_score_under_the_other_pairing_as_before(trained, width, generator):
    other = next(p for p in Pairing if p is not trained)
    order = coordinate_order(trained, width, 8)
    q, k = (torch.randn(5, 8, generator=generator, dtype=torch.float64) for _ in range(2))

    def scores(pairing, q, k):
        spec = RotarySpec(base=30.0, d_rotary=width, d_head=8, pairing=pairing)
        rotation = resolve_rotary(spec, 5)
        return rotate(q, rotation) @ rotate(k, rotation).T

    assert torch.allclose(scores(trained, q, k), scores(other, q[:, order], k[:, order]))
    assert not torch.allclose(scores(trained, q, k), scores(other, q, k))


@pytest.mark.parametrize(
    "name", ["llama", "gpt_neox", "falcon-new", "qwen3", "olmo2", "gptj", "phi3"]
)
def test_rows_are_reordered_head_by_head_and_put_back(name):
    module = build(BY_NAME[name]).float()
    live = checkpoint_of_module(module)
    stack = live.architecture.stacks[0]
    width = stack.layers[1].rotary.d_rotary
    trained = next(p for p in Pairing if p is not stack.layers[1].rotary.pairing)
    order = coordinate_order(trained, width, stack.d_head)
    before = copy.deepcopy(load_scores(live, 1))
    state = {k: v.clone() for k, v in module.state_dict().items()}
    with reordered_rows(live, row_orders(stack, 1, trained, width)):
        after = load_scores(live, 1)
        assert torch.equal(after.w_q, before.w_q[..., order])
        assert torch.equal(after.w_k, before.w_k[..., order])
        moved = {k for k, v in module.state_dict().items() if not torch.equal(v, state[k])}
        assert moved
        assert all(".1." in key for key in moved)
    assert all(torch.equal(v, state[k]) for k, v in module.state_dict().items())


def test_latent_attention_is_reordered_in_its_rotated_rows_alone():
    halves = build(BY_NAME["deepseek_v3-halves"]).float().eval()
    config = copy.deepcopy(halves.config)
    config.rope_interleave = True
    neighbours = type(halves)(config).float().eval()
    neighbours.load_state_dict(halves.state_dict())
    ids = torch.tensor([[5, 17, 3, 8, 22, 9, 14]])
    expected = logits_of(neighbours, ids)
    live = checkpoint_of_module(halves)
    stack = live.architecture.stacks[0]
    assert not torch.allclose(logits_of(halves, ids), expected, atol=1e-4)
    orders = {}
    for layer in range(stack.n_layers):
        orders |= row_orders(stack, layer, Pairing.NEIGHBOURS, stack.latent.d_rotary)
    assert {name.split(".")[-2] for name in orders} == {"q_b_proj", "kv_a_proj_with_mqa"}
    with reordered_rows(live, orders):
        assert torch.allclose(logits_of(halves, ids), expected, atol=1e-6)


def logits_of(module, ids):
    with torch.no_grad():
        return module(input_ids=ids, use_cache=False).logits


def test_weights_kept_as_columns_are_refused():
    live = checkpoint_of_module(build(BY_NAME["gpt2"]).float())
    with pytest.raises(InputError, match="plain weights"):
        row_orders(live.architecture.stacks[0], 0, Pairing.HALVES, 2)
