"""The kernels that studies share: which token attention selects, and steps of one length."""

import math

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens_papers.descent import normalised_step
from orbitlens_papers.selection import hard, saturated


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


def parameter(values, gradient):
    made = torch.tensor(values, dtype=torch.float64)
    made.grad = torch.tensor(gradient, dtype=torch.float64)
    return made


def test_a_step_has_one_length_over_all_parameters():
    a, b = parameter([0.0], [3.0]), parameter([[1.0]], [[-4.0]])
    assert normalised_step([a, b], 0.5).tolist() == [5.0]
    assert (a.item(), b.item()) == pytest.approx((-0.3, 1.4))


def test_separate_problems_have_their_own_length():
    a, b = parameter([[0.0], [0.0]], [[3.0], [1e-8]]), parameter([[0.0], [0.0]], [[4.0], [0.0]])
    normalised_step([a, b], 1.0, separate=True)
    assert a.flatten().tolist() == pytest.approx([-0.6, -1.0])
    assert b.flatten().tolist() == pytest.approx([-0.8, 0.0])


def test_gradients_too_small_to_be_squared_still_give_a_whole_step():
    a = parameter([0.0, 0.0], [3e-290, 4e-290])
    normalised_step([a], 1.0)
    assert a.tolist() == pytest.approx([-0.6, -0.8])


def test_nothing_moves_at_a_gradient_of_zero():
    a = parameter([1.0, 2.0], [0.0, 0.0])
    normalised_step([a], 1.0)
    assert a.tolist() == [1.0, 2.0]


def test_a_parameter_without_a_gradient_is_refused():
    with pytest.raises(InputError, match="0 of 1 parameters"):
        normalised_step([torch.zeros(2)], 0.1)
