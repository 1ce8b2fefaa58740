"""Probes on states whose content is known, and residual connections that are really taken out."""

import pytest
import torch

from orbitlens.order.comparing import Bench
from orbitlens.order.probes import adjacency, classify, regress
from orbitlens.order.residuals import residual_layers, without_residuals
from orbitlens.order.slices import read_slices
from symmetry_subjects import subject_of


def test_a_probe_finds_what_is_there_and_not_what_is_not(generator):
    labels = torch.randint(5, (600,), generator=generator)
    told = torch.nn.functional.one_hot(labels, 5).double()
    told = told @ torch.randn(5, 8, generator=generator, dtype=torch.float64)
    noise = torch.randn(600, 8, generator=generator, dtype=torch.float64)
    args = (labels[:400], labels[400:])
    for states, expected in ((told, 1.0), (noise, 0.2)):
        found = classify(states[:400], args[0], states[400:], args[1], generator=generator)
        assert found.score == pytest.approx(expected, abs=0.12)
        assert found.control < 0.45
        assert found.chance < 0.35


def test_positions_are_regressed_and_a_shuffled_control_fails(generator):
    place = torch.arange(600, dtype=torch.float64) % 20
    states = torch.stack([place, torch.randn(600, generator=generator).double()], dim=1)
    found = regress(states[:400], place[:400], states[400:], place[400:], generator=generator)
    assert found.score > 0.99
    assert found.control < 0.1


def test_adjacency_is_one_on_a_line_and_a_half_on_noise(generator):
    angle = torch.linspace(0, 1.5, 12, dtype=torch.float64)
    line = torch.stack([angle.cos(), angle.sin()], dim=1)[None]
    assert adjacency(line) == 1.0
    noise = torch.randn(40, 12, 16, generator=generator, dtype=torch.float64)
    assert adjacency(noise) == pytest.approx(0.5, abs=0.02)
    assert adjacency(torch.ones(2, 6, 3)) == 0.5


CUTS = ["gpt2", "gpt_neo", "llama", "qwen2", "gemma2", "gemma3", "bert", "electra", "albert", "vit"]


@pytest.mark.parametrize("name", CUTS)
def test_without_residuals_a_layer_hands_on_its_branches_alone(name):
    """The layer is fed x and 2x in turn; what is left must not contain x as such."""
    subject, _ = subject_of(name)
    layer, branches = residual_layers(subject.model)[0]
    seen = {}

    def note(key):
        def hook(module, args, output):
            seen[key] = (output[0] if isinstance(output, tuple) else output).detach().clone()

        return hook

    # the branch's own output, noted before the cut, is what the stream must be after it
    handle = layer.get_submodule(branches.mlp.output).register_forward_hook(note("branch"))
    x = torch.randn(1, 5, 24, dtype=torch.float64)
    with torch.no_grad():
        kept = _call(subject, layer, x)
        with without_residuals(subject.model, attention=True, mlp=True):
            left = _call(subject, layer, x)
    handle.remove()
    expected = seen["branch"]
    if name in {"bert", "electra"}:
        expected = layer.output.LayerNorm(expected)
    if name == "albert":
        expected = layer.full_layer_layer_norm(expected)
    assert torch.allclose(left, expected, atol=1e-6)
    assert not torch.allclose(kept, left, atol=1e-2)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in subject.model.modules())


def _call(subject, layer, x):
    named = {}
    base = getattr(subject.model, "model", subject.model)
    if hasattr(base, "rotary_emb"):
        ids = torch.arange(x.shape[1])[None]
        kinds = {"layer_type": "sliding_attention"} if subject.family == "gemma3_text" else {}
        named["position_embeddings"] = base.rotary_emb(x, ids, **kinds)
    output = layer(x, **named)
    return output[0] if isinstance(output, tuple) else output


def test_slices_are_read_with_and_without_residuals(generator):
    subject, items = subject_of("gpt2", n_samples=60)
    bench = Bench(subject=subject, items=items, generator=generator)
    found = read_slices(bench)
    names = [variant.removed for variant in found.variants]
    assert names == ["none", "all", "attention", "mlp", "layer 0", "layer 1", "layer 2"]
    embedding = found.variants[0].layers[0]
    assert embedding.identity.score > 0.95  # token k is in slice k before any layer
    assert embedding.previous.score < 0.2  # and its neighbours are not
    assert embedding.identity.control < 0.2
    assert embedding.position.score > 0.7  # the table of positions was added
    assert embedding.position.control < 0.1


def test_a_parallel_layer_has_one_residual_sum_and_unknown_layers_are_said(generator):
    subject, items = subject_of("gptj", n_samples=6)
    found = read_slices(Bench(subject=subject, items=items, generator=generator))
    assert "share one residual sum" in found.notes[0]
    assert "attention" not in [variant.removed for variant in found.variants]
    subject, items = subject_of("bloom", n_samples=6)
    found = read_slices(Bench(subject=subject, items=items, generator=generator))
    assert [variant.removed for variant in found.variants] == ["none"]
    assert "cannot be taken out" in found.notes[0]
    few = read_slices(Bench(subject=subject, items=items[:3], generator=generator))
    assert few.variants == ()
    assert "at least 6 samples" in few.notes[0]
