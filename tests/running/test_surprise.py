"""Cross-entropies of tokens: by hand, with and without the last token run, and refused."""

import math
from types import SimpleNamespace

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.running.surprise import logits_of, next_token_losses, token_surprise


def test_surprise_is_minus_the_logarithm_of_the_softmax():
    logits = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]]))
    expected = torch.tensor([[math.log(4), math.log(10)]], dtype=torch.float64)
    assert torch.allclose(token_surprise(logits, torch.tensor([[1, 0]])), expected, atol=1e-6)


def test_the_last_token_of_a_row_may_be_run_or_only_predicted(generator):
    logits = torch.randn(2, 5, 7, generator=generator)
    rows = torch.randint(0, 7, (2, 6), generator=generator)
    beyond = next_token_losses(logits, rows)
    assert beyond.shape == (2, 5)
    assert torch.equal(next_token_losses(logits, rows[:, :5]), beyond[:, :4])
    by_hand = -logits.double().log_softmax(-1).gather(2, rows[:, 1:, None])[..., 0]
    assert torch.allclose(beyond, by_hand)


def test_an_output_without_logits_is_refused_by_its_name():
    assert logits_of(SimpleNamespace(prediction_logits=torch.ones(1))) == 1
    with pytest.raises(InputError, match="SimpleNamespace, with no logits"):
        logits_of(SimpleNamespace(last_hidden_state=torch.ones(1)))
