"""One training loop: it is torch's own by hand, and it stops, clips, schedules and refuses."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from orbitlens.errors import InputError, TrainingError
from orbitlens.lab.fitting import NormalizedDescent, fit, rate_at, seeded


def problem():
    with seeded(3):
        return torch.nn.Linear(4, 2), torch.randn(40, 4), torch.randn(40, 2)


def test_fit_is_the_loop_written_by_hand_to_the_last_bit():
    def by_hand(model, x, y):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        schedule = CosineAnnealingLR(optimizer, 20)
        generator = torch.Generator().manual_seed(1)
        losses = []
        for _ in range(20):
            batch = torch.randint(40, (8,), generator=generator)
            loss = (model(x[batch]) - y[batch]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        return losses

    model, x, y = problem()
    generator = torch.Generator().manual_seed(1)

    def loss_at(step):
        batch = torch.randint(40, (8,), generator=generator)
        return (model(x[batch]) - y[batch]).square().mean()

    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    losses = fit(loss_at, optimizer, steps=20, schedule=CosineAnnealingLR(optimizer, 20), clip=0.5)
    again, x, y = problem()
    assert losses.tolist() == by_hand(again, x, y)
    assert torch.equal(model.weight, again.weight)


def test_rates_by_step_are_those_of_the_steps_taken():
    x = torch.zeros(1, requires_grad=True)
    fit(
        lambda step: x.sum(),
        torch.optim.SGD([x], lr=9.0),
        steps=3,
        schedule=lambda step: 10.0**-step,
    )
    assert x.item() == pytest.approx(-1.11)


def test_a_run_ends_where_after_says_so_and_leaves_no_gradient():
    x = torch.ones(1, requires_grad=True)
    counts = []

    def after(step):
        counts.append(step)
        return step == 4

    losses = fit(lambda step: x.square().sum(), torch.optim.SGD([x], lr=0.1), steps=9, after=after)
    assert counts == [1, 2, 3, 4] and len(losses) == 4
    assert x.grad is None


def test_no_steps_leave_everything_as_it_was():
    x = torch.ones(1, requires_grad=True)
    assert len(fit(lambda step: x.sum(), torch.optim.SGD([x], lr=0.1), steps=0)) == 0
    assert x.item() == 1.0


def test_a_loss_that_is_not_finite_is_refused_with_its_step():
    x = torch.ones(1, requires_grad=True)
    losses = [x.sum(), x.sum() * math.nan]
    with pytest.raises(TrainingError, match="step 1 is nan"):
        fit(lambda step: losses[step], torch.optim.SGD([x], lr=0.1), steps=2)


@pytest.mark.parametrize("shape", ["cosine", "linear"])
def test_the_rate_goes_up_in_a_line_and_down_to_nothing(shape):
    rates = [rate_at(t, peak=2e-3, steps=100, warmup=10, shape=shape) for t in range(1, 101)]
    assert max(rates) == rates[9] == 2e-3
    assert rates[:10] == sorted(rates[:10]) and rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0)


def test_a_rate_without_warmup_starts_at_its_peak():
    assert rate_at(0, peak=1.0, steps=10) == 1.0


def test_a_seed_is_for_the_block_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    with seeded(7):
        first = torch.rand(1)
    assert torch.equal(torch.rand(1), expected)
    with seeded(7):
        assert torch.equal(torch.rand(1), first)


# --- steps of one length ---------------------------------------------------------------------


def parameter(values, gradient):
    made = torch.tensor(values, dtype=torch.float64)
    made.grad = torch.tensor(gradient, dtype=torch.float64)
    return made


def test_a_step_has_one_length_over_all_parameters():
    a, b = parameter([0.0], [3.0]), parameter([[1.0]], [[-4.0]])
    NormalizedDescent([a, b], 0.5).step()
    assert (a.item(), b.item()) == pytest.approx((-0.3, 1.4))


def test_separate_problems_have_their_own_length():
    a, b = parameter([[0.0], [0.0]], [[3.0], [1e-8]]), parameter([[0.0], [0.0]], [[4.0], [0.0]])
    NormalizedDescent([a, b], 1.0, separate=True).step()
    assert a.flatten().tolist() == pytest.approx([-0.6, -1.0])
    assert b.flatten().tolist() == pytest.approx([-0.8, 0.0])


def test_gradients_too_small_to_be_squared_still_give_a_whole_step():
    a = parameter([0.0, 0.0], [3e-290, 4e-290])
    NormalizedDescent([a], 1.0).step()
    assert a.tolist() == pytest.approx([-0.6, -0.8])


def test_nothing_moves_at_a_gradient_of_zero():
    a = parameter([1.0, 2.0], [0.0, 0.0])
    NormalizedDescent([a], 1.0).step()
    assert a.tolist() == [1.0, 2.0]


def test_a_parameter_without_a_gradient_is_refused():
    with pytest.raises(InputError, match="0 of 1 parameters"):
        NormalizedDescent([torch.zeros(2)], 0.1).step()
