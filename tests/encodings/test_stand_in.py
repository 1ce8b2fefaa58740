"""A short context that stands in for a long one: exact where it must be, else refused."""

import pytest
import torch

from orbitlens.encodings.stand_in import (
    StandIns,
    StandInShape,
    far_positions,
    log_counts,
    stand_in_losses,
    stand_ins,
    why_no_stand_in,
)
from orbitlens.errors import InputError
from orbitlens.families.registry import feed_of
from orbitlens.orbit import OrbitForCausalLM
from orbitlens.orbit.config import OrbitConfig
from orbitlens.running.model import load
from orbitlens.running.surprise import next_token_losses
from tiny_models import CASES, build

BY_NAME = {case.name: case for case in CASES}


def orbit(**switches):
    torch.manual_seed(0)
    config = OrbitConfig(vocab_size=32, initializer_range=0.2, **switches)
    return OrbitForCausalLM(config).double().eval()


def contexts(generator, n=32, count=6):
    return torch.randint(0, 32, (count, n + 1), generator=generator)


def test_rows_are_as_long_as_contexts_and_end_with_their_own_text(generator):
    rows = contexts(generator)
    made = stand_ins(rows, generator)
    assert made.rows.shape == rows.shape
    assert made.n_tokens == len(made.block) == 32
    near = made.n_near + 1  # the last token is only predicted
    assert (made.rows[:, -near:] == rows[:, -near:]).all()
    assert (made.rows[:, 0] == rows[:, 0]).all()
    assert made.block.tolist() == sorted(made.block.tolist())


@pytest.mark.parametrize("length", [33, 64, 128, 1000])
def test_positions_rise_within_the_length_and_counts_sum_to_it(length, generator):
    made = stand_ins(contexts(generator), generator)
    ids = far_positions(made, length, generator)
    assert (ids[:, 0] == 0).all()
    assert (ids[:, -1] == length - 1).all()
    assert (ids.diff(dim=1) >= 0).all()
    assert log_counts(made, length)[-1].exp().sum() == pytest.approx(length)


def test_where_they_are_rows_lose_what_the_model_loses_on_them(generator):
    model = load(orbit(position="rotary"))
    made = stand_ins(contexts(generator), generator)
    with model.evaluating() as module:
        found = stand_in_losses(model, made, None, generator)
        plain = module(input_ids=made.rows[:, :-1]).logits
    expected = next_token_losses(plain, made.rows)[:, -made.n_judged :].mean(dim=1)
    assert torch.allclose(found, expected, atol=1e-9)


def test_a_token_that_counts_for_five_is_five_copies_of_it(generator):
    # One layer without positions: the last token sees the others as a set.
    model = load(orbit(position="none", num_hidden_layers=1))
    first, far, near = torch.tensor([3]), torch.tensor([7, 11, 7, 2]), torch.tensor([5, 9, 1])
    made = StandIns(
        rows=torch.cat([first, far, near, torch.tensor([4])])[None],
        block=torch.tensor([-1, 0, 0, 0, 0, 1, 1, 1]),
        n_judged=1,
    )
    length = 1 + 5 * len(far) + len(near)
    whole = torch.cat([first, far.repeat(5), near, torch.tensor([4])])[None]
    with model.evaluating() as module:
        found = stand_in_losses(model, made, length, generator)
        expected = next_token_losses(module(input_ids=whole[:, :-1]).logits, whole)[:, -1]
        once = stand_in_losses(model, made, None, generator)
    assert found.item() == pytest.approx(expected.item(), abs=1e-9)
    assert abs(found.item() - once.item()) > 1e-4


def test_a_stand_in_for_the_trained_length_at_close_quarters_changes_little(generator):
    # At a length of its own number of tokens nothing counts for more than one.
    made = stand_ins(contexts(generator), generator)
    assert log_counts(made, made.n_tokens)[-1].max() < 0.3


def test_attention_that_writes_nothing_makes_every_length_alike(generator):
    module = orbit(position="rotary")
    for layer in module.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
    model = load(module)
    made = stand_ins(contexts(generator), generator)
    with model.evaluating():
        base = stand_in_losses(model, made, None, generator)
        far = stand_in_losses(model, made, 128, generator)
    assert torch.allclose(base, far, atol=1e-12)


def test_keys_outside_a_window_are_hidden_by_their_place(generator):
    model = load(build(BY_NAME["mistral"]))
    made = stand_ins(contexts(generator, n=64), generator)
    assert model.feed.window < made.n_near - made.n_judged
    with model.evaluating():
        near, far = (stand_in_losses(model, made, length, generator) for length in (None, 5000))
    assert torch.allclose(near, far, atol=1e-6)


def test_too_few_contexts_are_refused_with_what_is_needed(generator):
    with pytest.raises(InputError, match="2 or more of at least 24 tokens"):
        stand_ins(contexts(generator, count=1), generator)
    with pytest.raises(InputError, match="contexts of 4 tokens"):
        stand_ins(contexts(generator, n=4), generator, StandInShape())


@pytest.mark.parametrize(
    ("name", "reason"), [("bloom", "no mask of numbers"), ("bert", "no causal decoder")]
)
def test_families_that_cannot_be_run_so_are_refused_with_the_reason(name, reason, generator):
    module = build(BY_NAME[name])
    assert reason in why_no_stand_in(feed_of(module.config))
    with pytest.raises(InputError, match=reason):
        stand_in_losses(load(module), stand_ins(contexts(generator), generator), 64, generator)
