"""S1, S2, S3 in float64 on tiny models of every family, and the probes that guard them."""

import pytest
import torch

from orbitlens.errors import AuditError, InputError, UnknownFamilyError
from orbitlens.families.feed import Kind
from orbitlens.families.registry import FAMILIES, feed_of
from orbitlens.order.permutations import shuffles
from orbitlens.order.subject import Cell, make_subject, run, run_plain
from orbitlens.running.images import image_of_patches, patches_of_images
from symmetry_subjects import BY_NAME, TOWERS, faulty, probed, subject_of, without_positions
from tiny_models import BERT, Case, build, float64

EXACT = 1e-10
NOT_RUN = {"gemma3"}  # scan's name for the text part of a model that also sees images


def defect(subject, items, cell, generator, count=4):
    """Return the largest relative change of the prediction under shuffles."""
    start = run(subject, items, cell).prediction
    perms = shuffles(items.shape[1], subject.movable(items.shape[1]), count, generator)
    moved = [run(subject, items[:, perm], cell).prediction for perm in perms]
    return max(float((x - start).abs().max() / start.abs().max()) for x in moved)


def one_of_each_family():
    seen = {}
    for name, stack in TOWERS:
        seen.setdefault((BY_NAME[name].model, stack), (name, stack))
    return list(seen.values())


def test_every_family_that_scan_knows_is_audited_or_said_not_to_be():
    assert {name for name, family in FAMILIES.items() if family.feed is None} == NOT_RUN
    config = type("Config", (), {"model_type": "gemma3"})()
    with pytest.raises(UnknownFamilyError, match="not how it takes positions"):
        feed_of(config)


@pytest.mark.parametrize(("name", "stack"), TOWERS)
def test_s1_and_s3_without_encoding_and_mask_order_changes_nothing(name, stack, generator):
    subject, items = subject_of(name, stack)
    if subject.feed.obstacle_mask:
        assert subject.cells == (subject.own_cell,)
        with pytest.raises(InputError, match="not ablatable: a convolution"):
            run(subject, items, Cell.NOPE_FULL)
        return
    with float64():
        own = run(subject, items, subject.own_cell).prediction
        plain = run_plain(subject, items).prediction
        assert float((own - plain).abs().max()) <= EXACT
        assert defect(subject, items, Cell.NOPE_FULL, generator) <= EXACT
        # each mechanism alone brings order back: the check above can fail
        assert defect(subject, items, Cell.PE_FULL, generator) > 1e-3
        assert defect(subject, items, Cell.NOPE_CAUSAL, generator) > 1e-3


@pytest.mark.parametrize(
    ("name", "stack"), [(n, s) for n, s in one_of_each_family() if (n, s) != ("whisper", "encoder")]
)
def test_s2_one_causal_layer_without_encoding_is_order_blind_and_two_are_not(
    name, stack, generator
):
    if subject_of(name, stack)[0].feed.obstacle_encoding:
        pytest.skip("its encoding is not ablatable, which another test shows")
    with float64():
        one, items = subject_of(name, stack, n_layers=1)
        two, _ = subject_of(name, stack, n_layers=2)
        if one.feed.kind is Kind.SEQ2SEQ_ENCODER:
            # cross-attention reads every encoder state: it is the second layer
            assert defect(one, items, Cell.NOPE_CAUSAL, generator) > 1e-3
            return
        assert defect(one, items, Cell.NOPE_CAUSAL, generator) <= EXACT
        assert defect(two, items, Cell.NOPE_CAUSAL, generator) > 1e-4


def deberta(**changes):
    config = {**BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], **changes}
    model = build(Case("deberta", "DebertaV2ForMaskedLM", config))
    return make_subject(model), torch.randint(3, 39, (2, 11))


def test_relative_position_terms_are_switched_off_too(generator):
    subject, items = deberta(position_biased_input=False)
    with float64():
        assert defect(subject, items, Cell.NOPE_FULL, generator) <= EXACT
        assert defect(subject, items, Cell.PE_FULL, generator) > 1e-3
        assert all(check.passed for check in probed(subject, items, generator))


def test_a_convolution_over_tokens_is_not_ablatable(generator):
    subject, items = deberta(conv_kernel_size=3, conv_act="gelu")
    assert subject.cells == (Cell.PE_FULL,)
    assert all(check.passed for check in probed(subject, items, generator))
    assert "convolves neighbouring tokens" in subject.obstacle(Cell.NOPE_FULL)
    with pytest.raises(InputError, match="encoding not ablatable"):
        run(subject, items, Cell.NOPE_FULL)


def test_a_sliding_window_breaks_s2(generator):
    """Which tokens are within the window depends on order, so one layer is enough."""
    narrow, items = subject_of("mistral", n_layers=1, window=4)
    with float64():
        assert defect(narrow, items, Cell.NOPE_CAUSAL, generator) > 1e-3
        assert defect(narrow, items, Cell.NOPE_FULL, generator) <= EXACT


@pytest.mark.parametrize(("name", "stack"), one_of_each_family())
def test_every_probe_passes_on_a_sound_model(name, stack, generator):
    subject, items = subject_of(name, stack)
    if subject.feed.obstacle_mask:
        pytest.skip(f"not ablatable: {subject.feed.obstacle_mask}")
    with float64():
        checks = probed(subject, items, generator)
    assert len(checks) >= 2 + 2 * len(subject.compared) + 1
    assert all(check.passed for check in checks)
    assert next(c for c in checks if c.name.startswith("without encoding")).value <= EXACT


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2", "mistral", "gpt_neox", "phi", "gemma"])
def test_the_naive_ablation_is_caught(name, generator):
    """Constant position ids without a mask: transformers 5 lets each token see itself alone."""

    def naive(arguments):
        ids = arguments.get("position_ids")
        constant = ids is not None and bool((ids == ids[:, :1]).all())
        return {**arguments, "attention_mask": None} if constant else arguments

    sound, items = subject_of(name)
    subject, _ = faulty(name, naive)
    with float64():
        assert defect(subject, items, Cell.NOPE_CAUSAL, generator) == 0.0  # "no sense of order"
        assert defect(sound, items, Cell.NOPE_CAUSAL, generator) > 1e-3  # which is wrong
        with pytest.raises(AuditError, match="packed sequences"):
            probed(subject, items, generator)


def leaky(mask):
    """Return a copy of an additive 4-D mask in which each token sees the next one, too."""
    mask = mask.clone()
    steps = torch.arange(mask.shape[-1] - 1)
    mask[..., steps, steps + 1] = 0.0
    return mask


def test_a_model_whose_mask_leaks_by_one_token_is_told_so(generator):
    def leak(arguments):
        ids = arguments["input_ids"]
        plain = torch.full((1, 1, ids.shape[1], ids.shape[1]), -1e300, dtype=torch.float64).triu(1)
        mask = arguments.get("attention_mask", plain.expand(len(ids), -1, -1, -1))
        return {**arguments, "attention_mask": leaky(mask)}

    subject, items = faulty("llama", leak)
    checks = probed(subject, items, generator, stop=False)
    failed = {check.name for check in checks if not check.passed}
    assert failed == {
        "pe_causal: a changed token moves earlier outputs",
        "nope_causal: a changed token moves earlier outputs",
    }
    with pytest.raises(AuditError, match="The mask leaks: tokens see the future"):
        probed(subject, items, generator)


def test_a_mask_that_only_the_audit_would_get_wrong_is_caught(generator):
    def leak(arguments):
        if "attention_mask" not in arguments:  # a plain call is sound
            return arguments
        return {**arguments, "attention_mask": leaky(arguments["attention_mask"])}

    subject, items = faulty("llama", leak)
    with pytest.raises(AuditError, match="do not reproduce a plain call"):
        probed(subject, items, generator)


def test_an_encoding_that_is_not_removed_is_caught(generator):
    def ignore_ids(arguments):
        return {key: value for key, value in arguments.items() if key != "position_ids"}

    subject, items = faulty("gpt2", ignore_ids)
    checks = probed(subject, items, generator, stop=False)
    last = checks[-1]
    assert not last.passed
    assert last.value > 0.01
    with pytest.raises(AuditError, match="An encoding was not removed"):
        probed(subject, items, generator)


def test_dropout_that_was_left_on_is_noticed(generator):
    subject, items = subject_of("gpt2")
    subject.model.train()
    with pytest.raises(AuditError, match=r"dropout.*model\.eval\(\)"):
        probed(subject, items, generator)


def test_weights_that_are_no_numbers_are_said_to_be_that(generator):
    subject, items = subject_of("gpt2")
    subject.model.transformer.wpe.weight.data[3] = float("nan")
    with pytest.raises(AuditError, match="not finite"):
        probed(subject, items, generator)


def test_switches_leave_no_trace(generator):
    for name in ("gpt_neo", "bloom", "vit", "t5"):
        subject, items = subject_of(name)
        before = run_plain(subject, items).prediction
        for cell in Cell:
            run(subject, items, cell)
        assert torch.equal(run_plain(subject, items).prediction, before)
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in subject.model.modules())


def test_a_model_without_positions_passes_as_one(generator):
    subject, items = subject_of("gpt2")
    blind = type(subject)(**{**vars(subject), "model": without_positions(subject.model)})
    names = [check.name for check in probed(blind, items, generator)]
    assert not any("shifted" in name for name in names)  # nothing there to shift


def test_images_and_their_patches_are_inverse(generator):
    images = torch.randn(2, 3, 8, 8, generator=generator)
    patches = patches_of_images(images, 4)
    assert patches.shape == (2, 4, 3, 4, 4)
    assert torch.equal(image_of_patches(patches), images)
    assert torch.equal(patches[:, 1], images[:, :, :4, 4:])
