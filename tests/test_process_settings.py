"""No verb leaves a setting of the process, or of a module it was given, other than it found it."""

import os
import warnings

import pytest
import torch
import transformers

import orbitlens as ol
from orbitlens.flows.setup import SimulateOptions
from orbitlens.flows.simulation import simulate
from tiny_live import tiny_filler, tiny_llama

IDS = [[5, 17, 3, 8, 11, 2, 30, 21], [9, 4, 30, 21, 7, 6, 12, 13]]


VERBS = {
    "load": lambda model: ol.load(model).layer(0),
    "twin": lambda model: ol.load(model).twin(3),
    "scan": ol.scan,
    "trace": lambda model: ol.trace(
        model, IDS, options=ol.TraceOptions(twin=True, mechanisms=True, shuffle=True)
    ),
    "audit": lambda model: ol.audit(
        model, IDS, options=ol.AuditOptions(samples=2, permutations=2, length=6)
    ),
    "positions": lambda model: ol.positions(model, IDS),
    "explain": lambda model: ol.explain(model, IDS[0]),
    "report": lambda model: ol.report(
        model,
        tokens=IDS,
        options=ol.ReportOptions(
            max_tokens=32, context=8, samples=2, permutations=1, flows=1, controls=1
        ),
    ),
    "simulate": lambda model: simulate(
        ol.load(model).head(0, 0), SimulateOptions(n_tokens=4, until=0.5)
    ),
}


def settings():
    """Return what a verb might change behind its caller's back."""
    logging = transformers.utils.logging
    return {
        "threads": torch.get_num_threads(),
        "environment": dict(os.environ),
        "warnings": list(warnings.filters),
        "verbosity": logging.get_verbosity(),
        "bars": logging.is_progress_bar_enabled(),
        "random": torch.get_rng_state().tolist(),
        "dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def state(module):
    """Return modes, gradients, hooks and attention of a live module."""
    return {
        "modes": [part.training for part in module.modules()],
        "hooks": [  # transformers leaves hooks of its own
            hook.__module__
            for part in module.modules()
            for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
            if hook.__module__.startswith("orbitlens")
        ],
        "wanted": [parameter.requires_grad for parameter in module.parameters()],
        "gradients": [parameter.grad is None for parameter in module.parameters()],
        "attention": module.config._attn_implementation,
        "weights": [float(parameter.detach().sum()) for parameter in module.parameters()],
    }


@pytest.fixture
def unusual():
    """Settings that are not the defaults, so that a reset to the defaults shows."""
    logging = transformers.utils.logging
    threads, verbosity = torch.get_num_threads(), logging.get_verbosity()
    torch.set_num_threads(2)
    logging.set_verbosity_info()
    yield
    torch.set_num_threads(threads)
    logging.set_verbosity(verbosity)


@pytest.mark.usefixtures("unusual")
@pytest.mark.parametrize("name", VERBS)
def test_a_verb_leaves_the_process_as_it_was(name, tmp_path):
    (tiny_filler() if name == "explain" else tiny_llama()).save_pretrained(tmp_path)
    before = settings()
    VERBS[name](tmp_path)
    assert settings() == before


@pytest.mark.usefixtures("unusual")
@pytest.mark.parametrize("name", VERBS)
def test_a_verb_leaves_a_module_in_training_as_it_was(name):
    module = tiny_filler() if name == "explain" else tiny_llama()
    module.train()
    next(module.children()).eval()  # some parts are often frozen
    next(module.parameters()).requires_grad_(False)
    ids = torch.tensor(IDS)
    module(ids, labels=ids).loss.backward()
    before = settings(), state(module)
    VERBS[name](module)
    assert (settings(), state(module)) == before
