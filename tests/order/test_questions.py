"""What is asked of a model: masks, places, special tokens that stay; planted answers and controls.

The planted models answer by hand-written attention in float64: `Shifter` names the token before the
mask, `Planted` sees all tokens as a set.
"""

import json

import pytest
import torch
import transformers

from orbitlens.errors import CheckpointError, InputError
from orbitlens.order.api import audit
from orbitlens.order.asked import Asked
from orbitlens.order.options import AuditOptions
from orbitlens.order.questions import subject_for
from orbitlens.order.subject import Cell, run
from orbitlens.reporting.gather import gather_report
from orbitlens.reporting.material import ReportInputs
from orbitlens.reporting.options import ReportOptions
from orbitlens.running.inputs import inputs_of
from orbitlens.running.model import load
from orbitlens.running.samples import samples_of
from orbitlens.running.special_tokens import special_tokens_of

PAD, CLS, SEP, MASK, UNK, FIRST = 0, 1, 2, 3, 4, 5
NAMES = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *(f"w{k}" for k in range(27))]
N_WORDS, N_POSITIONS = len(NAMES) - FIRST, 16
QUICK = AuditOptions(samples=6, permutations=6, slices=False)


def bert(kind="BertForMaskedLM", **changes):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **{
            "hidden_size": 16,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "intermediate_size": 16,
            "vocab_size": len(NAMES),
            "max_position_embeddings": N_POSITIONS,
            "initializer_range": 0.5,
            **changes,
        }
    )
    return getattr(transformers, kind)(config).eval()


def tokenizer():
    """Return a word tokenizer that writes [CLS] and [SEP] around a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel(dict(zip(NAMES, range(99), strict=False)), unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        pad_token="[PAD]",
        unk_token="[UNK]",
    )


def rows(n_rows=8, length=N_POSITIONS):
    """Return rows of ids as a tokenizer writes them: [CLS] words [SEP]."""
    generator = torch.Generator().manual_seed(1)
    inner = torch.randint(FIRST, len(NAMES), (n_rows, length - 2), generator=generator)
    ends = [torch.full((n_rows, 1), token) for token in (CLS, SEP)]
    return torch.cat([ends[0], inner, ends[1]], dim=1)


# --- planted ---------------------------------------------------------------------------------


class Planted(transformers.BertForMaskedLM):
    """A BERT whose answers are replaced: its states are what attention by hand makes of tokens."""

    offset = None  # which token before the mask is named; None: all of them, as a set

    def forward(self, input_ids=None, position_ids=None, attention_mask=None, **others):
        n_tokens = input_ids.shape[1]
        if position_ids is None:
            position_ids = torch.arange(n_tokens).expand_as(input_ids)
        visible = torch.ones(n_tokens, n_tokens, dtype=torch.bool)
        if attention_mask is not None:
            visible = attention_mask[:, 0] >= 0
        tokens = torch.nn.functional.one_hot(input_ids, len(NAMES)).double()
        scores = torch.zeros(len(input_ids), n_tokens, n_tokens, dtype=torch.float64)
        if self.offset is not None:
            there = position_ids[:, :, None] - self.offset == position_ids[:, None, :]
            tokens[:, :, 0] += 0.01 * position_ids  # it also sees where it is, as tables do
            scores = 5.0 * there.double()  # and a little of all others
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
        logits = 8.0 * weights @ tokens
        return transformers.modeling_outputs.MaskedLMOutput(
            logits=logits, hidden_states=(tokens, tokens + logits) if others else None
        )


class Shifter(Planted):
    """Names the token before the mask."""

    offset = 1


def planted(kind):
    model = kind(bert().config).double().eval()
    return load(model, tokenizer=tokenizer())


Shifter.__name__ = Planted.__name__ = "BertForMaskedLM"  # a class is known by its name


def test_a_model_that_names_the_token_before_the_mask_depends_on_order():
    """Another word there moves the answer by 0.972 bits; 12 of 13 shuffles put one there.

    Fewer where words repeat; over the 96 shuffles of a place the mean varies by 0.03.
    """
    options = AuditOptions(samples=8, permutations=36, slices=False, details=False)
    found = audit(planted(Shifter), rows(), options=options)
    assert found.settings.asked == Asked.MASKED
    assert found.settings.places == (4, 8, 11)
    assert all(0.75 < one.mean < 0.972 for one in found.cells["pe_full"].places)
    assert found.sensitivity == pytest.approx(
        sum(one.mean for one in found.cells["pe_full"].places) / 3
    )
    assert found.floor < 1e-12


def test_a_bag_of_words_behind_a_mask_does_not():
    found = audit(planted(Planted), rows(), options=QUICK)
    assert found.sensitivity < 1e-12
    assert "permutation-invariant" in found.summary()


def test_only_the_neighbour_before_the_mask_matters_to_it():
    """Details are read at the middle place; swaps that do not touch the token before are free."""
    found = audit(planted(Shifter), rows(), options=QUICK)
    matter = {(x.position, x.other) for x in found.positions if x.mean > 1e-9}
    assert matter == {(6, 7), (7, 9)}
    assert [(b.first, b.last, b.free) for b in found.blocks] == [(1, 6, True), (9, 14, True)]
    assert found.horizon == 1


# --- special tokens stay ---------------------------------------------------------------------


class Ends(Planted):
    """Answers by what stands at the two ends alone."""

    def forward(self, input_ids=None, **others):
        output = super().forward(input_ids=input_ids, **others)
        ends = torch.nn.functional.one_hot(input_ids[:, [0, -1]], len(NAMES)).double().sum(1)
        output.logits = output.logits * 1e-3 + 8.0 * ends[:, None]
        return output


Ends.__name__ = "BertForMaskedLM"


def test_special_tokens_are_not_permuted(generator):
    """This model would change its answer at once if [CLS] or [SEP] were moved."""
    model = planted(Ends)
    samples = samples_of(model, inputs_of(model, rows()), 6, generator=generator)
    assert samples.pinned == (0, N_POSITIONS - 1)
    subject = subject_for(model, model.module, samples)
    for one in subject.in_turn:
        assert set(one.movable(N_POSITIONS)) == set(range(1, 15)) - {one.query}
    before = run(subject, samples.items, Cell.PE_FULL).prediction
    moved = samples.items.roll(1, dims=1)  # the check of this check: moving them is seen
    assert (run(subject, moved, Cell.PE_FULL).prediction - before).abs().max() > 1.0
    found = audit(model, rows(), options=QUICK)
    assert found.sensitivity < 1e-6


def test_rows_are_cut_between_their_ends():
    model = load(bert(), tokenizer=tokenizer())
    found = audit(model, rows(), options=AuditOptions(samples=4, permutations=3, length=10))
    assert found.settings.length == 10
    assert found.settings.movable == (1, 8)


def test_rows_whose_special_tokens_stand_elsewhere_are_left_out(generator):
    model = load(bert(), tokenizer=tokenizer())
    given = rows()
    given[0, 7] = SEP  # two sentences in one row
    samples = samples_of(model, inputs_of(model, given), 8, generator=generator)
    assert len(samples.items) == 7
    assert samples.pinned == (0, 15)
    assert "1 of 8 inputs were left out" in " ".join(samples.notes)


def test_text_has_its_special_tokens_in_place(generator):
    model = load(bert(), tokenizer=tokenizer())
    text = " ".join(NAMES[FIRST + k % 27] for k in range(60))
    samples = samples_of(model, inputs_of(model, text), 5, length=12, generator=generator)
    assert samples.pinned == (0, 11)
    assert (samples.items[:, 0] == CLS).all() and (samples.items[:, -1] == SEP).all()


def test_ids_that_only_a_config_calls_special_stay_at_the_ends_alone(generator):
    """Configs have defaults: a toy model's words 1 and 2 are Llama's begin and end of text."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=6,
        max_position_embeddings=16,
    )
    model = load(transformers.LlamaForCausalLM(config).eval())
    ids = torch.randint(6, (20, 9), generator=generator)
    free = samples_of(model, inputs_of(model, ids), 8, generator=generator)
    assert (len(free.items), free.pinned) == (8, ())
    ids[:, 0] = 1
    held = samples_of(model, inputs_of(model, ids), 8, generator=generator)
    assert (len(held.items), held.pinned) == (8, (0,))
    found = audit(model, ids, options=QUICK)
    assert found.settings.movable == (1, 7)
    assert (found.settings.asked, found.settings.places) == (Asked.NEXT, (8,))


# --- finding the mask ------------------------------------------------------------------------


def saved(tmp_path, **files):
    """Write a BERT without a tokenizer, and files beside it."""
    folder = tmp_path / "bert"
    bert().save_pretrained(folder)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return load(folder)


@pytest.mark.parametrize(
    "files",
    [
        {"vocab__txt": "\n".join(NAMES)},
        {"vocab__json": json.dumps({name: k for k, name in enumerate(NAMES)})},
        {
            "vocab__txt": "\n".join(NAMES).replace("[MASK]", "hidden"),
            "special_tokens_map__json": json.dumps({"mask_token": {"content": "hidden"}}),
        },
    ],
)
def test_the_mask_is_found_in_a_vocabulary_without_a_tokenizer(tmp_path, files):
    model = saved(tmp_path, **files)
    special = special_tokens_of(model)
    assert special.mask == MASK
    assert {PAD, CLS, SEP, MASK} <= special.named
    assert UNK not in special.named  # an unknown word is a word
    found = audit(model, rows(), options=QUICK)
    assert found.settings.asked == Asked.MASKED
    assert found.settings.movable == (1, 14)


def test_the_mask_is_found_in_a_config(tmp_path):
    model = bert(mask_token_id=MASK)
    assert audit(model, rows(), options=QUICK).settings.asked == Asked.MASKED


def test_a_mask_that_nobody_names_is_not_asked_for(tmp_path):
    with pytest.raises(InputError, match="not asked: this model fills masks, and no mask token"):
        audit(saved(tmp_path), rows(), options=QUICK)


@pytest.mark.parametrize("text", ["[]", "{", '{"mask_token": 5}', "\xff"])
def test_odd_files_are_refused_or_passed_over(tmp_path, text):
    model = saved(tmp_path, vocab__txt="\n".join(NAMES))
    file = tmp_path / "bert" / "special_tokens_map.json"
    file.write_bytes(text.encode("latin-1"))
    if text.endswith("5}"):
        assert special_tokens_of(model).mask == MASK
        return
    with pytest.raises(CheckpointError, match=r"special_tokens_map\.json"):
        special_tokens_of(model)


# --- other models ----------------------------------------------------------------------------


def test_an_encoder_without_a_head_is_asked_for_its_pooled_states():
    model = load(bert("BertModel"), tokenizer=tokenizer())
    found = audit(model, rows(), options=QUICK)
    assert (found.settings.asked, found.settings.places) == (Asked.POOLED, ())
    assert found.cells["pe_full"].mean_relative_change > 1e-3
    assert found.floor < 1e-5
    assert "mean over tokens" in found.summary()
    blind = bert("BertModel")
    blind.embeddings.position_embeddings.weight.data.zero_()
    found = audit(load(blind, tokenizer=tokenizer()), rows(), options=QUICK)
    assert found.sensitivity < 1e-5


def test_a_classifier_is_asked_for_the_class_and_a_score_for_its_change():
    classes = load(bert("BertForSequenceClassification", num_labels=3), tokenizer=tokenizer())
    found = audit(classes, rows(), options=QUICK)
    assert found.settings.asked == Asked.CLASS
    assert found.sensitivity > 1e-6 and found.model.has_head
    score = load(bert("BertForSequenceClassification", num_labels=1), tokenizer=tokenizer())
    found = audit(score, rows(), options=QUICK)
    assert not found.model.has_head  # of one number no distribution can be made
    assert found.sensitivity > 1e-6


@pytest.mark.parametrize("kind", ["BertForTokenClassification", "BertForQuestionAnswering"])
def test_what_has_no_single_prediction_is_not_asked(kind):
    with pytest.raises(InputError, match=f"not asked: {kind} makes no single prediction"):
        audit(load(bert(kind), tokenizer=tokenizer()), rows(), options=QUICK)


def test_a_discriminator_is_not_asked_to_fill_masks():
    torch.manual_seed(0)
    config = transformers.ElectraConfig(
        hidden_size=16,
        embedding_size=16,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=16,
        vocab_size=len(NAMES),
    )
    model = transformers.ElectraForPreTraining(config).eval()
    with pytest.raises(InputError, match="replaced tokens"):
        audit(load(model, tokenizer=tokenizer()), rows(), options=QUICK)


# --- one number ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertModel"])
def test_a_report_has_the_numbers_of_the_audit(kind):
    """Whatever the context of the trace is, the same inputs give the same audit."""
    model = load(bert(kind), tokenizer=tokenizer())
    mine = audit(model, rows(), options=AuditOptions(samples=6, permutations=3))
    options = ReportOptions(
        samples=6, permutations=3, context=8, max_tokens=32, controls=0, flows=0
    )
    theirs = gather_report([model], options, given=ReportInputs(tokens=rows())).models[0].audit
    assert theirs.settings == mine.settings
    assert theirs.sensitivity == pytest.approx(mine.sensitivity, rel=1e-5)  # reports are rounded
    for mechanism in ("pe_full", "nope_full"):
        assert theirs.cells[mechanism].high == pytest.approx(mine.cells[mechanism].high, rel=1e-5)


def test_reports_and_audits_measure_equally_much_by_default():
    report, alone = ReportOptions(), AuditOptions()
    assert (report.samples, report.permutations) == (alone.samples, alone.permutations)
