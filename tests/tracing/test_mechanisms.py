"""Scores of heads on models: one built by hand that must score high, and many that must not."""

import json
import math
from dataclasses import fields, replace

import pytest
import torch

from orbitlens.checkpoint.zoo import zoo_path
from orbitlens.errors import InputError
from orbitlens.orbit.by_hand import induction_by_hand
from orbitlens.results.codec import encode
from orbitlens.running.batches import Limits, batches_of
from orbitlens.running.inputs import inputs_of
from orbitlens.running.loading import build_module
from orbitlens.running.model import load
from orbitlens.tracing.margins import SelectionSums
from orbitlens.tracing.mechanism_result import THRESHOLDS, HeadScores, findings, in_words
from orbitlens.tracing.mechanisms import MechanismOptions, mechanism_scores
from tiny_models import CASES

BY_NAME = {case.name: case for case in CASES}
QUICK = MechanismOptions(n_draws=2, half=12, batch=2)


subject = load


@pytest.fixture
def twin_of():
    """Return a function from a folder and a seed to an untrained model of its config."""
    return lambda folder, seed=0: load(folder).twin(seed)


def ids(n_contexts=4, n_tokens=12, least=3, most=39):
    rng = torch.Generator().manual_seed(0)
    return torch.randint(least, most, (n_contexts, n_tokens), generator=rng)


def batches(size=2):
    return [{"input_ids": block} for block in ids().split(size)]


def inputs(name):
    rng = torch.Generator().manual_seed(0)
    kind = BY_NAME[name].inputs
    if kind == "image":
        return [{"pixel_values": torch.randn(4, 1, 12, 12, generator=rng)}]
    if kind == "audio":
        sound = torch.randn(4, 6, 18, generator=rng)
        return [{"input_features": sound, "decoder_input_ids": ids(4)}]
    return batches()


# --- a model that has the mechanism, and the same without its first half ---------------------


@pytest.fixture
def by_hand(tmp_path):
    def build(*, copies):
        folder = tmp_path / f"copies-{copies}"
        induction_by_hand(copies=copies).save_pretrained(folder)
        return folder

    return build


def test_an_induction_head_built_by_hand_is_found_with_its_exact_score(by_hand, twin_of):
    folder = by_hand(copies=True)
    found = mechanism_scores(subject(folder), twin_of(folder), batches, options=QUICK)
    copier, matcher = found.heads
    # The second token's token in front is the first token, and so is the first's own: it looks at
    # both, half each; every other row is exact.
    assert matcher.repeated == pytest.approx(1 - 1 / 24, abs=1e-9)
    assert matcher.reordered == pytest.approx(0.0, abs=1e-9)
    assert matcher.induction_error == pytest.approx(0.0, abs=1e-9)
    assert copier.induction == pytest.approx(0.0, abs=1e-9)
    assert copier.previous > 0.8 > matcher.previous
    assert found.repetition.losses.repeated == pytest.approx(math.log(2) / 11, rel=1e-4)
    assert found.repetition.losses.drop > 3
    assert abs(found.repetition.twin_losses.drop) < 0.1
    assert found.finding("induction").heads == ("1.0",)
    assert found.finding("previous").heads == ("0.0",)
    assert copier.saturation == pytest.approx(1.0)
    assert copier.margin == pytest.approx(40.0, rel=1e-4)
    said = " ".join(in_words(found))
    assert "1 induction head (1.0)" in said
    assert found.max_attention_error < 1e-5


def test_without_the_copying_layer_no_induction_is_found(by_hand, twin_of):
    folder = by_hand(copies=False)
    found = mechanism_scores(subject(folder), twin_of(folder), batches, options=QUICK)
    assert found.heads[1].induction == pytest.approx(0.0, abs=1e-9)
    assert found.heads[1].repeated == pytest.approx(found.repetition.chance, rel=1e-6)
    assert found.finding("induction").heads == ()
    assert found.repetition.losses.drop == pytest.approx(0.0, abs=1e-5)
    assert found.heads[1].saturation is None  # all scores equal: nothing is chosen
    assert "in 1 of 2 heads" in found.reasons["saturation"]
    assert "No induction heads" in " ".join(in_words(found))


# --- models that have nothing ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-grouped", "bloom", "qwen3"])
def test_an_untrained_model_never_stands_out_from_its_twin(model_folder, twin_of, name):
    folder = model_folder(name)
    found = mechanism_scores(twin_of(folder, 1), twin_of(folder, 2), batches, options=QUICK)
    assert {result.score for result in found.findings} == set(THRESHOLDS)
    assert [result.heads for result in found.findings] == [()] * len(THRESHOLDS)
    assert max(head.induction for head in found.heads) < 0.1
    if name != "qwen3":  # its norm of queries and keys makes scores of size 1 from the start
        assert max(head.saturation for head in found.heads) < 0.2
    assert abs(found.repetition.losses.drop) < 0.2


FAMILIES = {  # with a part of what is in the way of induction
    "llama-grouped": None,
    "gpt2": None,
    "gpt_neox": None,
    "opt-post-norm": None,
    "bloom": None,
    "mistral": "a half of 5 tokens",  # its sliding window
    "gemma2": "a half of 4 tokens",
    "bert": "no causal mask",
    "albert": "no causal mask",
    "t5": "encoder",
    "whisper": "does not read tokens",
    "vit": "does not read tokens",
}


@pytest.mark.parametrize(("name", "why"), FAMILIES.items())
def test_every_kind_of_model_is_scored_or_told_why_not(model_folder, name, why):
    one = subject(model_folder(name))
    found = mechanism_scores(one, one, lambda: inputs(name), options=QUICK)
    stacks = one.checkpoint.architecture.stacks
    assert len(found.heads) == sum(spec.n_heads for stack in stacks for spec in stack.layers)
    assert found.max_attention_error < 1e-4
    assert all(0 <= head.saturation <= 1 and head.margin > 0 for head in found.heads)
    assert all(0 <= head.margin_share <= 1 for head in found.heads)
    measured = {head.induction is not None for head in found.heads}
    assert measured == {why is None}
    assert (why or "nothing") in found.reasons.get("induction", "nothing")
    json.dumps(encode(found), allow_nan=False)
    # A model beside itself has nothing that the "twin" has not.
    assert all(result.heads == () for result in found.findings)
    for head in found.heads:
        assert head.twin == HeadScores(**{f.name: getattr(head, f.name) for f in fields(head.twin)})


# --- how it is measured ----------------------------------------------------------------------


def test_scores_equal_those_of_the_models_own_attention(model_folder):
    folder = model_folder("llama-grouped")
    eager = build_module(folder, attention="eager")
    found = mechanism_scores(subject(folder), subject(folder), batches, options=QUICK)
    with torch.no_grad():
        patterns = eager(ids(), output_attentions=True).attentions
    for layer, pattern in enumerate(patterns):
        sums = SelectionSums.empty(4)
        for p in pattern.double():
            sums.add(p.log())  # scores but for a number a row, which changes nothing
        heads = [head for head in found.heads if head.layer == layer]
        for head in heads:
            own = (head.saturation, head.margin, head.margin_share)
            assert own == pytest.approx(sums.means(head.head), abs=2e-5)


def test_batch_size_and_padding_change_nothing(model_folder):
    one = subject(model_folder("llama-grouped"))
    single = mechanism_scores(one, one, lambda: batches(1), options=QUICK)
    many = mechanism_scores(one, one, lambda: batches(4), options=replace(QUICK, batch=1))

    def padded():
        block = torch.cat([ids(), torch.full((4, 5), 2)], dim=1)
        mask = torch.cat([torch.ones(4, 12), torch.zeros(4, 5)], dim=1).long()
        return [{"input_ids": block, "attention_mask": mask}]

    behind = mechanism_scores(one, one, padded, options=QUICK)
    assert single.n_contexts == many.n_contexts == behind.n_contexts == 4
    for a, b, c in zip(single.heads, many.heads, behind.heads, strict=True):
        for score in THRESHOLDS:
            assert getattr(a, score) == pytest.approx(getattr(b, score), abs=1e-5)
            assert getattr(a, score) == pytest.approx(getattr(c, score), abs=1e-5)


def test_half_precision_scores_are_near_those_of_float32(model_folder):
    folder = model_folder("llama-grouped")
    half = load(folder, dtype=torch.bfloat16)
    rough = mechanism_scores(half, half, batches, options=QUICK)
    whole = subject(folder)
    exact = mechanism_scores(whole, whole, batches, options=QUICK)
    for a, b in zip(rough.heads, exact.heads, strict=True):
        assert a.saturation == pytest.approx(b.saturation, abs=0.05)
        assert a.induction == pytest.approx(b.induction, abs=0.05)


def test_text_without_a_context_is_refused(model_folder):
    one = subject(model_folder("gpt2"))
    with pytest.raises(InputError, match="too short"):
        mechanism_scores(one, one, lambda: [])


def test_a_head_is_found_only_above_the_twins_largest_by_the_threshold(by_hand, twin_of):
    folder = by_hand(copies=True)
    heads = mechanism_scores(subject(folder), twin_of(folder), batches, options=QUICK).heads
    step = THRESHOLDS["induction"]
    at = [replace(h, twin=replace(h.twin, induction=heads[1].induction - step)) for h in heads]
    above = [
        replace(h, twin=replace(h.twin, induction=heads[1].induction - step + 1e-6)) for h in heads
    ]
    assert findings(at)[0].heads == ("1.0",)
    assert findings(above)[0].heads == ()


# --- real weights ----------------------------------------------------------------------------


def on_passage(folder, twin_of):
    model = load(folder)
    limits = Limits(context=64, batch=8, max_tokens=1000)

    def texts():
        return batches_of(model, inputs_of(model, None), limits)

    return mechanism_scores(model, twin_of(folder), texts, options=QUICK)


def test_the_untrained_twin_of_a_zoo_model_scores_low(twin_of):
    found = on_passage(zoo_path("orbit-nano-rotary"), twin_of)
    assert max(head.twin.induction for head in found.heads) < 0.1
    assert abs(found.repetition.twin_losses.drop) < 0.3
    assert max(head.saturation for head in found.heads) > max(
        head.twin.saturation for head in found.heads
    )


def test_a_trained_model_of_stories_beside_its_twin(shared_model, twin_of):
    found = on_passage(shared_model("stories260K-llama-hf"), twin_of)
    assert found.max_attention_error < 1e-4
    assert found.repetition.prefix == 1  # <s>
    assert max(head.twin.induction for head in found.heads) < 0.05
    assert max(head.twin.saturation for head in found.heads) < 0.1
    assert found.finding("saturation").heads
    assert found.finding("margin").heads
