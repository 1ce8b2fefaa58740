"""Which token attention selects: hard and saturated attention."""

import math

import torch

from orbitlens_papers.saturated.selection import hard, saturated


def test_saturated_attention_is_the_limit_of_sharper_and_sharper_softmax(generator):
    scores = torch.randint(-3, 4, (50, 9), generator=generator)
    sharp = torch.softmax(60.0 * scores.double(), dim=-1)
    assert (sharp - saturated(scores)).abs().max() < 1e-12
    assert (sharp - hard(scores)).abs().max() > 0.4


def test_hard_attention_takes_the_leftmost_of_equals():
    scores = torch.tensor([[2.0, 5.0, 5.0], [7.0, 7.0, 7.0]])
    assert hard(scores).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert hard(scores, dim=0).argmax(dim=0).tolist() == [1, 1, 1]


def test_without_ties_hard_and_saturated_agree(generator):
    scores = torch.randn(20, 7, generator=generator)
    assert torch.equal(hard(scores), saturated(scores))
    assert saturated(scores).dtype is torch.float32


def test_masked_tokens_get_nothing():
    scores = torch.tensor([-math.inf, 0.0, 0.0])
    assert saturated(scores).tolist() == [0.0, 0.5, 0.5]
