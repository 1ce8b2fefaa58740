"""The limit between a prediction that other tokens move and one that they do not."""

import pytest
import torch

from orbitlens.order.api import audit
from orbitlens.order.checks import N_PROBED, STILL, relative
from orbitlens.order.options import AuditOptions
from orbitlens.order.subject import Cell, run
from symmetry_subjects import faulty, probed, subject_of
from tiny_models import float64


def with_weak_attention(size):
    """Return a GPT-2 whose attention writes `size` times what it did, and inputs."""
    subject, items = subject_of("gpt2")
    for name, parameter in subject.model.named_parameters():
        if "attn.c_proj" in name:
            parameter.data *= size
    return subject, items


def moved_by(size, places):
    """Return how much the prediction moves if the tokens at some places are others."""
    subject, items = with_weak_attention(size)
    changed = items[:N_PROBED].clone()
    changed[:, places] = 3 + (changed[:, places] + 1) % 36
    with float64():
        both = run(subject, torch.cat([items[:N_PROBED], changed]), Cell.PE_CAUSAL).prediction
    return relative(*both.split(N_PROBED))


def reach(size, generator):
    subject, items = with_weak_attention(size)
    with float64():
        checks = probed(subject, items, generator, stop=False)
    named = {check.name: check for check in checks}
    return named["pe_causal: other tokens move the prediction"]


@pytest.mark.parametrize(("of_limit", "passes"), [(0.1, False), (10.0, True)])
def test_planted_effects_on_either_side_of_the_limit_are_told_apart(of_limit, passes, generator):
    size = of_limit * STILL / (moved_by(1e-4, slice(0, -1)) / 1e-4)  # small effects are linear
    found = reach(size, generator)
    assert found.limit == STILL
    assert found.passed is passes
    assert found.value == pytest.approx(of_limit * STILL, rel=2.0)  # other tokens were drawn


def test_a_sound_model_passes_whose_single_tokens_move_less_than_the_limit(generator):
    alone = max(moved_by(1e-4, [place]) for place in (0, 5, 9))
    size = 0.9e-4 * STILL / alone
    assert max(moved_by(size, [place]) for place in (0, 5, 9)) < STILL
    assert moved_by(size, slice(0, -1)) > STILL
    assert reach(size, generator).passed


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2", "gpt_neox", "gemma"])
def test_float32_noise_of_what_sees_nothing_is_far_below_the_limit(name, generator):
    """Each token sees itself alone: what still moves is rounding."""

    def alone(arguments):
        n = arguments["input_ids"].shape[1]
        mask = torch.full((n, n), torch.finfo(torch.float32).min).fill_diagonal_(0.0)
        rows = len(arguments["input_ids"])
        return {**arguments, "attention_mask": mask.expand(rows, 1, n, n)}

    subject, items = faulty(name, alone)
    subject.model.float()
    checks = probed(subject, items, generator, stop=False)
    named = {check.name: check for check in checks}
    found = named["pe_causal: other tokens move the prediction"]
    assert not found.passed
    assert found.value < STILL / 10


@pytest.mark.parametrize("seed", range(6))
def test_a_sorter_of_three_digits_is_not_refused_for_what_a_probe_draws(seed, shared_model):
    """Other digits for each may be the same ones in another order, which it does not notice."""
    options = AuditOptions(samples=4, permutations=2, length=6, seed=seed, slices=False)
    found = audit(shared_model("gpt-nano-sort-hf"), options=options)
    assert all(check.passed for check in found.checks)
