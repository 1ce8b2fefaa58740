"""The verb `cut`: losses, choices, what is written and what is refused."""

import io
import itertools
import json
from dataclasses import replace

import pytest
import torch
import transformers
from rich.console import Console
from torch.nn import functional

import orbitlens as ol
from orbitlens.cutting.loss import LossKind, Task, loss_kind, losses, tasks
from orbitlens.cutting.measuring import Exam, greedy, loss_without, without_each
from orbitlens.cutting.options import part_kinds
from orbitlens.cutting.parts import Trunk, parts_of
from orbitlens.cutting.rankings import LayerRanking, token_rankings, weight_rankings
from orbitlens.cutting.recipes import mergekit_slices
from orbitlens.errors import InputError
from orbitlens.running.removal import Part, PartKind
from orbitlens.terminal.cut import cut_view
from small_llama import refused, run
from tiny_live import tiny_filler, tiny_llama

LAYERS = (PartKind.LAYER,)
OPTIONS = ol.CutOptions(kinds=LAYERS, max_tokens=256, context=32)


def rows_of(n, length=12, seed=0):
    return torch.randint(5, 30, (n, length), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="module")
def exam():
    model = ol.load(tiny_llama())
    given = [Task(batch={"input_ids": torch.tensor(rows_of(2, seed=k))}) for k in range(4)]
    return Exam(trunk=Trunk(model), tasks=given, kind=LossKind.NEXT)


# --- losses ----------------------------------------------------------------------------------


def test_the_loss_of_a_decoder_is_its_own():
    module = tiny_llama()
    ids = torch.tensor(rows_of(3))
    with torch.no_grad():
        output = module(input_ids=ids)
        expected = [module(input_ids=row[None], labels=row[None]).loss.item() for row in ids]
    found = losses(LossKind.NEXT, output, Task(batch={"input_ids": ids}), output)
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_masked_tokens_are_words_and_asked_for_by_their_own_ids():
    model = ol.load(tiny_filler())
    module = model.module
    ids = torch.tensor(rows_of(3, length=20))
    (task,) = tasks(model, [{"input_ids": ids}], loss_kind(model), seed=0)
    assert loss_kind(model) is LossKind.MASKED
    assert task.asked.sum(dim=1).tolist() == [3, 3, 3]
    hidden = task.batch["input_ids"]
    assert torch.equal(hidden[~task.asked], ids[~task.asked])
    assert len(set(hidden[task.asked].tolist())) == 1
    with torch.no_grad():
        output = module(**task.batch)
    row = output.logits[1][task.asked[1]].double()
    expected = functional.cross_entropy(row, ids[1][task.asked[1]]).item()
    assert losses(LossKind.MASKED, output, task, output)[1].item() == pytest.approx(expected)


@pytest.mark.parametrize("kind", [LossKind.CLASSES, LossKind.POOLED])
def test_distances_are_zero_for_the_whole_model_and_positive_for_another(kind):
    generator = torch.Generator().manual_seed(0)

    def output():
        states = torch.randn(2, 5, 4, generator=generator)
        return transformers.utils.ModelOutput(logits=states[:, 0], last_hidden_state=states)

    whole, other = output(), output()
    task = Task(batch={"input_ids": torch.zeros(2, 5)})
    assert losses(kind, whole, task, whole).abs().max() < 1e-12
    assert losses(kind, other, task, whole).min() > 1e-3


# --- choices ---------------------------------------------------------------------------------


def test_each_step_of_a_greedy_cut_is_the_best_single_one(exam):
    steps = greedy(exam, 2)
    removed = frozenset()
    for step in steps:
        left = [layer for layer in range(exam.trunk.n_layers) if layer not in removed]
        brute = {layer: float(loss_without(exam, removed | {layer}).mean()) for layer in left}
        assert step.loss == pytest.approx(min(brute.values()), abs=1e-6)
        removed |= {step.part.layer}


def test_dropping_losers_measures_less_and_keeps_the_best(exam):
    generator = torch.Generator().manual_seed(1)
    from orbitlens.cutting import measuring

    parts = [Part(kind=PartKind.LAYER, layer=layer) for layer in range(5)]
    noise = {part: 0.01 * torch.randn(8, generator=generator) for part in parts}
    found = {part: [part.layer * 0.5 + noise[part]] for part in parts}
    assert measuring._still_likely(parts, found, 2) == parts[:2]
    alike = {part: [noise[part]] for part in parts}
    assert measuring._still_likely(parts, alike, 2) == parts
    few = {part: [value[:2] for value in found[part]] for part in parts}
    assert measuring._still_likely(parts, few, 2) == parts


def test_heads_drop_no_layer(exam):
    from orbitlens.cutting import measuring

    parts = [Part(kind=PartKind.LAYER, layer=0), Part(kind=PartKind.HEAD, layer=0, head=0)]
    found = {part: [torch.full((8,), float(part.kind is PartKind.LAYER))] for part in parts}
    assert measuring._still_likely(parts, found, 1) == parts


@pytest.mark.parametrize("removed", [frozenset(), frozenset({1})])
def test_layers_cost_no_more_passes_than_they_may(removed):
    """Blocks are counted as they run, so that what is promised is what is paid."""
    n = 5
    module = tiny_llama(n)
    given = [Task(batch={"input_ids": torch.tensor(rows_of(1, seed=k))}) for k in range(8)]
    exam = Exam(trunk=Trunk(ol.load(module)), tasks=given, kind=LossKind.NEXT)
    calls = []
    for block in module.model.layers:
        block.self_attn.register_forward_hook(lambda *_: calls.append(1))
    layers = [part for part in parts_of(exam.trunk.stack, LAYERS) if part.layer not in removed]
    without_each(replace(exam, tasks=given[:1]), layers, removed=removed)
    a_context = len(calls) / n / len(given)
    for most in (0.33 * n, 0.5 * n):
        calls.clear()
        base, rows = without_each(exam, layers, removed=removed, most_passes=most)
        paid = len(calls) / n / len(given)
        assert paid <= most < paid + a_context
        assert {row.n_contexts for row in rows} == {base.n_batches}
        assert base.n_batches < len(given)


def test_a_part_that_is_dropped_says_on_how_much_it_was_measured(exam):
    parts = list(parts_of(exam.trunk.stack, LAYERS))
    _, whole = without_each(exam, parts)
    _, fast = without_each(exam, parts, keep_best=1)
    assert {row.n_contexts for row in whole} == {8}
    best = min(whole, key=lambda row: row.loss)
    assert next(row for row in fast if row.part == best.part).n_contexts == 8


# --- rankings --------------------------------------------------------------------------------


def test_block_influence_is_one_less_the_cosine_around_a_layer(exam):
    module = exam.trunk.model.module
    ids = torch.cat([task.batch["input_ids"] for task in exam.tasks])
    with torch.no_grad():
        states = module(input_ids=ids, output_hidden_states=True).hidden_states
    found = {ranking.method: ranking for ranking in token_rankings(exam)}
    before, after = states[0], states[1]
    expected = (1 - functional.cosine_similarity(before, after, dim=-1)).mean().item()
    assert found["block influence"].scores[0] == pytest.approx(expected, abs=1e-6)
    size = ((after - before).norm(dim=-1) / before.norm(dim=-1)).mean().item()
    assert found["update size"].scores[0] == pytest.approx(size, rel=1e-5)


def test_a_layer_made_small_is_the_first_to_go_by_weights():
    module = tiny_llama()
    layer = module.model.layers[1]
    layer.self_attn.o_proj.weight.data *= 1e-3
    layer.mlp.down_proj.weight.data *= 1e-3
    for ranking in weight_rankings(ol.load(module).checkpoint):
        assert ranking.lowest(1) == {1}, ranking.method


def test_the_size_of_heads_is_that_of_their_value_maps():
    model = ol.load("orbit-nano-rotary")
    from orbitlens.cutting.rankings import _attention_size

    heads = list(model.layer(1))
    expected = sum(float((head.w_v @ head.w_o).square().sum()) for head in heads)
    assert _attention_size(model.checkpoint, 1) == pytest.approx(expected)


def test_the_lowest_scores_go_first_and_of_equal_ones_the_later():
    ranking = LayerRanking(method="", scores=(2.0, 1.0, 1.0, 0.5), passes=0.0)
    assert [sorted(ranking.lowest(n)) for n in (1, 2, 3)] == [[3], [2, 3], [1, 2, 3]]


def test_greedy_goes_on_from_losses_that_were_measured(exam, monkeypatch):
    layers = list(parts_of(exam.trunk.stack, LAYERS))
    _, rows = without_each(exam, layers)
    anew = greedy(exam, 2)
    calls = []

    def counted(*args, **kwargs):
        calls.append(kwargs["removed"])
        return without_each(*args, **kwargs)

    monkeypatch.setattr("orbitlens.cutting.measuring.without_each", counted)
    assert greedy(exam, 2, first=rows) == anew
    assert calls == [frozenset({anew[0].part.layer})]


# --- the verb --------------------------------------------------------------------------------


def test_the_summary_names_what_goes_and_judges_on_other_contexts():
    found = ol.cut("orbit-nano-rotary", keep=0.5, options=OPTIONS)
    assert len(found.chosen.layers) == 2
    assert 0 not in found.chosen.layers  # without the first layer the loss is that of noise
    assert found.chosen.n_held_out == found.n_contexts == 4
    assert "contexts that had no part in the choice" in found.summary()
    least = min(found.of_kind(PartKind.LAYER), key=lambda row: row.difference)
    assert found.chosen.order[0] == least.part.layer
    again = ol.Cut.from_json(found.to_json())
    assert again.to_json() == found.to_json()
    assert list(found.to_pandas()["block influence"]) == list(found.rankings[0].scores)


def test_the_command_prints_what_the_verb_returns(tmp_path):
    tokens = tmp_path / "ids.txt"
    tokens.write_text("\n".join(" ".join(map(str, row)) for row in rows_of(4)))
    tiny_llama().save_pretrained(tmp_path / "model")
    out = run("cut", tmp_path / "model", "--tokens", tokens, "--json", "-", "--keep", "0.5")
    found = json.loads(out.out)
    expected = ol.cut(tmp_path / "model", rows_of(4), keep=0.5).to_json()
    for data in (found, expected):
        del data["cost"], data["model"]
    assert found == expected


def test_a_sample_is_smaller_and_says_so():
    asked = ("cut", "orbit-nano-rotary", "--keep", "0.75", "--parts", "layer", "--no-cache")
    whole, sample = (run(*asked, *more).out for more in ((), ("--fast",)))
    assert "in 8 contexts" in whole
    assert "in 4 contexts" in sample  # 4 of 8, each 2.5 of 4 passes: 1.25, and 4 / 3 are allowed
    assert all("no layer      ±" in out for out in (whole, sample))


def test_layers_that_were_dropped_say_on_how_many_contexts_they_were_measured():
    found = ol.cut("orbit-nano-rotary", options=OPTIONS)
    first = replace(found.parts[0], n_contexts=4)
    shown = replace(found, parts=(first, *found.parts[1:]))
    tables = [_drawn(each) for each in cut_view(shown, Console(width=100))]
    (table,) = [text for text in tables if "no layer" in text]
    assert "contexts" in table


def _drawn(shown):
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(shown)
    return console.export_text()


WRITTEN = {
    "llama": lambda: tiny_llama(),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=24, n_head=4, n_layer=4, vocab_size=40, n_positions=32)
    ),
    "smollm3": lambda: transformers.SmolLM3ForCausalLM(  # every fourth layer is not rotated
        transformers.SmolLM3Config(
            hidden_size=24,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_hidden_layers=5,
            vocab_size=40,
            intermediate_size=32,
            pad_token_id=0,
        )
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_model_loads_and_loses_as_much(name, tmp_path):
    torch.manual_seed(0)
    module = WRITTEN[name]()
    module.save_pretrained(tmp_path / "whole", max_shard_size="20KB")
    rows = rows_of(6, seed=3)
    found = ol.cut(tmp_path / "whole", rows, keep=0.6, write_to=tmp_path / "cut")
    shorter = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "cut").eval()
    ids = torch.tensor(rows[1::2])
    with torch.no_grad():
        loss = shorter(input_ids=ids, labels=ids).loss.item()
    assert loss == pytest.approx(found.chosen.loss, abs=1e-6)
    assert shorter.config.num_hidden_layers == module.config.num_hidden_layers - len(
        found.chosen.layers
    )
    assert found.chosen.difference != 0


def test_layers_that_share_their_weights_are_fewer_rounds(tmp_path):
    torch.manual_seed(0)
    config = transformers.AlbertConfig(
        hidden_size=24,
        num_attention_heads=4,
        num_hidden_layers=4,
        vocab_size=40,
        embedding_size=8,
        intermediate_size=32,
    )
    transformers.AlbertForMaskedLM(config).save_pretrained(tmp_path / "whole")
    (tmp_path / "whole" / "vocab.txt").write_text("\n".join(["[PAD]", "[CLS]", "[SEP]", "[MASK]"]))
    found = ol.cut(tmp_path / "whole", rows_of(4), keep=0.5, write_to=tmp_path / "cut")
    assert "have one set of weights" in found.summary()
    assert json.loads((tmp_path / "cut" / "config.json").read_text())["num_hidden_layers"] == 2


def test_a_model_that_would_lose_something_else_is_not_written(tmp_path):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=24,
        n_head=4,
        n_layer=4,
        vocab_size=40,
        n_positions=32,
        scale_attn_by_inverse_layer_idx=True,  # layers know their number
        initializer_range=0.5,
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "whole")
    exam = Exam(
        trunk=Trunk(ol.load(tmp_path / "whole")),
        tasks=[Task(batch={"input_ids": torch.tensor(rows_of(2))})],
        kind=LossKind.NEXT,
    )
    from orbitlens.cutting.api import _write

    promised = loss_without(exam, frozenset({0}))
    with pytest.raises(InputError, match="depends on a layer's number"):
        _write(exam, (0,), promised, tmp_path / "cut")
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


@pytest.mark.parametrize(
    ("keep", "says"),
    [(0.05, "nothing would be left"), (0.95, "nothing would go"), (1.5, "between 0 and 1")],
)
def test_a_cut_of_everything_or_nothing_is_refused(keep, says):
    with pytest.raises(InputError, match=says):
        ol.cut("orbit-nano-rotary", keep=keep)


def test_one_context_is_too_few_to_choose_by():
    with pytest.raises(InputError, match="single context"):
        ol.cut(tiny_llama(), rows_of(1), keep=0.5)
    found = ol.cut(tiny_llama(), rows_of(1), options=ol.CutOptions(kinds=LAYERS))
    assert found.chosen is None
    assert all(row.deviation is None for row in found.parts)


def test_writing_needs_a_share_to_keep(tmp_path):
    with pytest.raises(InputError, match="needs keep, the share"):
        ol.cut(tiny_llama(), rows_of(2), write_to=tmp_path / "cut")


def test_a_live_module_is_not_written(tmp_path):
    with pytest.raises(InputError, match="only a folder of safetensors"):
        ol.cut(tiny_llama(), rows_of(4), keep=0.5, write_to=tmp_path / "cut")


def test_kinds_that_are_not_known_are_refused():
    refused("cut", "orbit-nano-rotary", "--parts", "layer,nose", says="'nose' is no kind of part")
    assert part_kinds("mlp") == (PartKind.MLP,)


# --- other tools -----------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [(), (0,), (1, 2), (5,), (0, 2, 4)])
def test_slices_are_the_layers_that_stay(cut):
    text = mergekit_slices('a "name": [x]\n- y', 6, cut)
    lines = text.splitlines()
    assert lines[0] == "slices:"
    assert lines[-1] == "merge_method: passthrough"
    ranges = [json.loads(line.split(": ", 1)[1]) for line in lines if "layer_range" in line]
    kept = list(itertools.chain.from_iterable(range(*each) for each in ranges))
    assert kept == [layer for layer in range(6) if layer not in cut]
    names = {json.loads(line.split(": ", 1)[1]) for line in lines if "- model" in line}
    assert names == {'a "name": [x]\n- y'}
