"""Random tokens run twice: what is drawn, and what is read off hand-made attention on it."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.tracing.induction import (
    TokenPool,
    behind_earlier,
    derangement,
    draw_sequences,
    even_share,
    half_length,
    half_losses,
    material,
    met_in_text,
    obstacle,
    previous_token,
)

GIVEN = TokenPool(ids=tuple(range(5, 60)), prefix=(1, 2), positions=64)


@pytest.fixture
def stack(model_folder):
    """Return a function: sliding windows, one a layer, to a stack that has them."""
    real = load_checkpoint(model_folder("gpt2")).stack()

    def make(*windows, causal=True):
        layers = tuple(replace(real.layers[0], window=window) for window in windows)
        return replace(real, layers=layers, causal=causal)

    return make


def one_hot(targets, n):
    """Return one head that looks from row t at targets[t], and at itself elsewhere."""
    p = torch.eye(n, dtype=torch.float64)
    for row, column in targets.items():
        p[row] = 0
        p[row, column] = 1
    return p[None]


def even(n):
    counts = torch.arange(1, n + 1)
    p = torch.ones(n, n, dtype=torch.float64).tril() / counts[:, None]
    return p[None], counts[None]


def test_a_second_half_repeats_the_first_or_moves_every_token(generator):
    drawn = draw_sequences(GIVEN, half=12, n_draws=9, generator=generator)
    assert drawn.repeated.shape == drawn.reordered.shape == (9, 26)
    for kind in (drawn.repeated, drawn.reordered):
        assert kind[:, :2].tolist() == [[1, 2]] * 9
        assert kind[:, 2:].min() >= 5
        assert all(len(set(row.tolist())) == 12 for row in kind[:, 2:14])
    assert bool((drawn.repeated[:, 2:14] == drawn.repeated[:, 14:]).all())
    first, second = drawn.reordered[:, 2:14], drawn.reordered[:, 14:]
    assert bool((first == drawn.repeated[:, 2:14]).all())
    assert not bool((first == second).any())
    assert bool((first.sort().values == second.sort().values).all())
    assert len({tuple(row) for row in drawn.repeated.tolist()}) == 9
    assert derangement(2, generator=generator).tolist() == [1, 0]


def test_an_induction_head_scores_one_and_an_even_head_its_chance():
    prefix, half = 3, 5
    n = prefix + 2 * half
    looks = {prefix + half + i: prefix + i + 1 for i in range(half)}
    where = {"prefix": prefix, "half": half}
    assert behind_earlier(one_hot(looks, n), **where).item() == 1.0
    one_off = {row: column - 1 for row, column in looks.items()}  # the same token, not the next
    assert behind_earlier(one_hot(one_off, n), **where).item() == 0.0
    p, counts = even(n)
    chance = sum(1 / (prefix + half + i + 1) for i in range(half)) / half
    assert behind_earlier(p, **where).item() == pytest.approx(chance)
    assert even_share(counts, **where).item() == pytest.approx(chance)


def test_the_token_in_front_counts_above_an_even_share():
    n = 8
    p, counts = even(n)
    assert previous_token(p, counts).item() == pytest.approx(0.0, abs=1e-15)
    looks = {row: row - 1 for row in range(1, n)}
    expected = 1 - sum(1 / k for k in range(3, n + 1)) / (n - 2)
    assert previous_token(one_hot(looks, n), counts).item() == pytest.approx(expected)
    assert previous_token(one_hot({}, n), counts).item() < 0


def test_losses_of_the_halves_are_apart(generator):
    drawn = draw_sequences(GIVEN, half=10, n_draws=3, generator=generator)
    ids = drawn.repeated
    logits = torch.zeros(3, 22, 60)
    knows = logits.clone()
    for t in range(12, 21):  # from the second half's first token on, the next one is known
        knows[:, t].scatter_(1, ids[:, t + 1 : t + 2], 50.0)
    first, second = half_losses(knows, ids, 10)
    assert first == pytest.approx(math.log(60), rel=1e-6)
    assert second == pytest.approx(0.0, abs=1e-6)
    assert half_losses(logits, ids, 10) == pytest.approx((math.log(60),) * 2, rel=1e-6)


def test_a_half_is_as_long_as_vocabulary_positions_and_windows_allow(stack):
    small = TokenPool(ids=tuple(range(11)), prefix=(), positions=None)
    assert half_length([stack(None)], GIVEN, 32) == (64 - 2) // 2
    assert half_length([stack(None, 20)], GIVEN, 32) == 20
    assert half_length([stack(None)], small, 32) == 11
    assert half_length([stack(None)], small, 9) == 9


def test_what_cannot_be_measured_is_said(stack):
    model = SimpleNamespace(main_input_name="input_ids")
    assert obstacle(model, [stack(None)], GIVEN, 32) is None
    assert "no causal mask" in obstacle(model, [stack(None, causal=False)], GIVEN, 32)
    assert "encoder" in obstacle(model, [stack(None), stack(None)], GIVEN, 32)
    assert "does not read tokens" in obstacle(
        SimpleNamespace(main_input_name="pixel_values"), [stack(None)], GIVEN, 32
    )
    short = obstacle(model, [stack(4)], GIVEN, 32)
    assert "a half of 4 tokens" in short
    assert "at least 8" in short


class _Words:
    """A tokenizer with <s> in front and 20 tokens, three of them special."""

    all_special_ids = (0, 1, 7)

    def __len__(self):
        return 20

    def __call__(self, text, add_special_tokens=True):
        ids = [3, 4]
        return {"input_ids": [1, *ids] if add_special_tokens else ids}


def config(**fields):
    made = SimpleNamespace(**fields)
    made.get_text_config = lambda: made
    return SimpleNamespace(config=made)


def test_special_tokens_are_not_drawn_and_stand_in_front_as_the_model_knows_them():
    model = config(vocab_size=32, max_position_embeddings=64)
    given = material(model, _Words())
    assert given.prefix == (1,)
    assert given.ids == tuple(i for i in range(20) if i not in {0, 1, 7})
    assert given.positions == 64
    bare = config(vocab_size=8, bos_token_id=0, eos_token_id=[2, 3], pad_token_id=None)
    assert material(bare, None) == TokenPool(ids=(1, 4, 5, 6, 7), prefix=(), positions=None)


def test_tokens_of_the_text_are_drawn_where_there_are_enough():
    assert met_in_text(GIVEN, set(range(20)), 12).ids == tuple(range(5, 20))
    assert met_in_text(GIVEN, set(range(20)), 12).from_text
    assert met_in_text(GIVEN, set(range(20)), 16) == GIVEN
