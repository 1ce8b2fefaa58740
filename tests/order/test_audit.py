"""Whole audits: models whose answer is known, faults that must be reported for what they are."""

import json
from dataclasses import replace

import pytest
import torch

from orbitlens.errors import AuditError, InputError
from orbitlens.order.audit_result import Verdict
from orbitlens.order.blocks import by_position, find_blocks, horizon
from orbitlens.order.comparing import Bench, batches, compare
from orbitlens.order.divergence import js_bits
from orbitlens.order.measuring import measure_order
from orbitlens.order.options import AuditOptions
from orbitlens.order.packing import Pack, can_pack, packs
from orbitlens.order.permutations import neighbour_swaps, shuffles
from orbitlens.order.sensitivity import cell_values, read_cell
from orbitlens.order.subject import Cell, make_subject, run
from symmetry_subjects import faulty, subject_of, without_positions

QUICK = AuditOptions(permutations=4, slices=False)
CELLS = ["pe_causal", "pe_full", "nope_causal", "nope_full"]


def with_model(subject, model):
    return replace(subject, model=model)


def test_an_audit_of_a_sound_decoder_adds_up():
    subject, items = subject_of("llama", n_samples=8)
    found = measure_order(subject, items, options=AuditOptions(permutations=6))
    values = {name: found.cells[name].mean_js_bits for name in CELLS}
    assert found.verdict is Verdict.ORDERED
    assert values["nope_full"] == found.floor < 1e-9
    assert min(values["pe_causal"], values["pe_full"], values["nope_causal"]) > 1e-3
    alone = found.effects
    assert alone.encoding.mean == pytest.approx(values["pe_full"] - values["nope_full"])
    assert alone.mask.mean == pytest.approx(values["nope_causal"] - values["nope_full"])
    whole = alone.encoding.mean + alone.mask.mean + alone.interaction.mean
    assert whole == pytest.approx(values["pe_causal"] - values["nope_full"])
    assert (found.shapley is None) == (2 * alone.mask.mean < -alone.interaction.mean)
    for reading in found.cells.values():
        assert reading.low <= reading.mean_js_bits <= reading.high
    assert all(check.passed for check in found.checks)
    assert "sense of order" in found.summary() or "interaction" in found.summary()
    assert "causal mask; no position encoding acts" not in found.summary()
    assert "causal mask; no position encoding acts" in replace(found, encoding_effect=0.0).summary()


def test_its_json_has_every_field_the_documentation_names():
    subject, items = subject_of("gpt2", n_samples=8)
    data = json.loads(
        json.dumps(measure_order(subject, items, options=AuditOptions(permutations=3)).to_json())
    )
    assert list(data["cells"]) == CELLS
    for cell in data["cells"].values():
        assert {"mean_js_bits", "low", "high", "max_logit_difference"} <= set(cell)
    assert {"encoding", "mask", "interaction"} == set(data["effects"])
    wanted = {"floor", "layers", "swap_distance", "blocks", "slices", "checks", "cost"}
    assert wanted <= set(data)
    assert {"name", "value", "passed"} <= set(data["checks"][0])
    assert data["cost"]["forward_calls"] > 0


def test_the_same_seed_gives_the_same_audit():
    subject, items = subject_of("gpt2")
    first, second, other = (
        measure_order(subject, items, options=replace(QUICK, seed=seed)).to_json()
        for seed in (1, 1, 2)
    )
    for data in (first, second, other):
        data.pop("cost")
    assert first == second
    assert first["cells"] != other["cells"]


def test_an_order_blind_bag_of_words_is_reported_as_one():
    """One causal layer and no positions: the earlier tokens are a set (S2)."""
    subject, items = subject_of("gpt2", n_layers=1)
    found = measure_order(
        with_model(subject, without_positions(subject.model)), items, options=QUICK
    )
    assert found.verdict is Verdict.ONE_LAYER
    assert found.sensitivity < 1e-9
    assert "as a set" in found.summary()
    two, _ = subject_of("gpt2", n_layers=2)
    deep = measure_order(with_model(two, without_positions(two.model)), items, options=QUICK)
    assert deep.verdict is Verdict.ORDERED
    assert (deep.shapley.encoding, deep.shapley.mask) == pytest.approx((0.0, 1.0), abs=1e-6)


def test_a_model_of_sets_is_certified_permutation_invariant():
    subject, items = subject_of("roberta")
    found = measure_order(
        with_model(subject, without_positions(subject.model)), items, options=QUICK
    )
    assert found.verdict is Verdict.INVARIANT
    assert "permutation-invariant" in found.summary()
    assert measure_order(subject, items, options=QUICK).verdict is Verdict.ORDERED


def test_an_encoder_owes_its_order_to_the_encoding_alone():
    subject, items = subject_of("roberta")
    found = measure_order(subject, items, options=QUICK)
    assert found.model.own_cell == "pe_full"
    assert found.shapley is None and found.effects is None
    assert "by construction" in found.summary()
    assert found.cells["pe_causal"] is None and found.cells["nope_causal"] is None
    assert "no mask" in found.not_ablatable["nope_causal"]


def test_a_model_without_a_head_is_measured_by_its_vector():
    subject, items = subject_of("bert")
    found = measure_order(subject, items, options=QUICK)
    assert found.cells["pe_full"].mean_js_bits is None
    assert found.cells["pe_full"].mean_relative_change > 1e-3
    assert "% of the output" in found.summary()


def test_patches_of_an_image_are_audited_like_tokens():
    subject, items = subject_of("vit", n_samples=8)
    found = measure_order(subject, items, options=AuditOptions(permutations=4))
    assert found.verdict is Verdict.ORDERED
    assert found.settings.movable == (0, 8)
    assert found.floor < 1e-9
    assert found.slices.variants[0].layers[0].identity is None


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_both_towers_of_an_encoder_decoder_are_audited(stack):
    subject, items = subject_of("t5", stack)
    assert measure_order(subject, items, options=QUICK).verdict is Verdict.ORDERED


def test_what_cannot_be_switched_off_is_said_with_its_reason():
    subject, items = subject_of("falcon-multi-head-alibi")
    eager = subject.model
    eager.config._attn_implementation = "eager"
    found = measure_order(make_subject(eager), items, options=QUICK)
    assert [name for name in CELLS if found.cells[name] is None] == CELLS[1:]
    assert "eager Falcon adds ALiBi twice" in found.not_ablatable["nope_full"]
    assert found.shapley is None
    assert "cannot be told apart" in found.summary()


def test_a_leak_stops_the_audit_before_any_number():
    def leak(arguments):
        if "attention_mask" not in arguments:
            return arguments
        return {**arguments, "attention_mask": torch.zeros_like(arguments["attention_mask"])}

    subject, items = faulty("llama", leak)
    with pytest.raises(AuditError, match="self-check failed"):
        measure_order(subject, items, options=QUICK)


@pytest.mark.parametrize(("n_items", "n_samples"), [(2, 3), (11, 1)])
def test_inputs_that_are_too_short_or_too_few_are_refused(n_items, n_samples):
    subject, items = subject_of("gpt2")
    with pytest.raises(InputError, match="an audit needs at least"):
        measure_order(subject, items[:n_samples, :n_items], options=QUICK)


# --- how it is measured ----------------------------------------------------------------------


def test_batches_and_repeated_inputs_change_no_number(generator):
    subject, items = subject_of("gpt2")
    items = items % 3 + 3  # few different tokens: many permutations leave an input as it was
    bench = Bench(subject=subject, items=items, generator=generator)
    perms = shuffles(11, bench.movable, 20, generator)
    perms[0] = torch.arange(11)
    found = compare(bench, Cell.PE_CAUSAL, perms)
    for row, item in enumerate(items):
        start = run(subject, item[None], Cell.PE_CAUSAL).prediction
        for column, perm in enumerate(perms):
            alone = run(subject, item[None][:, perm], Cell.PE_CAUSAL).prediction
            expected = float(js_bits(start, alone))
            assert float(found.values[row, column]) == pytest.approx(expected, abs=1e-9)
    assert (found.values[:, 0] <= 1e-15).all()  # the identity
    assert (found.moved[:, 0] == 0.0).all()
    assert bench.cost.sequences < bench.cost.asked


def test_batches_hold_every_row_once():
    rows = torch.arange(3000 * 2).reshape(3000, 2)
    assert torch.equal(torch.cat(list(batches(rows))), rows)


def test_a_window_of_attention_makes_a_free_block_of_what_lies_beyond(generator):
    """One layer that sees four tokens back: earlier ones can be swapped freely, exactly."""
    subject, items = subject_of("mistral", n_layers=1, window=4)
    bench = Bench(subject=subject, items=items, generator=generator)
    positions = by_position(bench)
    blocks = find_blocks(bench, positions, 1e-12)
    assert [(block.first, block.last, block.free) for block in blocks] == [(0, 6, True)]
    assert horizon(positions, 1e-12) == 3  # the last swap that matters: positions 6 and 7
    assert horizon(positions, -1.0) is None


def test_sensitivity_needs_a_mechanism(generator):
    subject, items = subject_of("llama")
    bench = Bench(subject=subject, items=items, generator=generator)
    perms = [bench.each(shuffles(11, bench.movable, 3 * 5, generator))]
    none, some = (
        read_cell(bench, cell_values(bench, cell, perms)) for cell in (Cell.NOPE_FULL, Cell.PE_FULL)
    )
    assert none.mean_js_bits < 1e-9
    assert some.mean_js_bits > 1e-3


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped", "opt", "gptj", "gpt_neox", "phi"])
def test_packed_ends_change_no_number_and_run_fewer_tokens(name, generator):
    subject, items = subject_of(name, n_samples=8)
    assert can_pack(subject, subject.own_cell)
    bench = Bench(subject=subject, items=items, generator=generator)
    swaps = neighbour_swaps(11, bench.movable)
    found = compare(bench, subject.own_cell, swaps)
    start = run(subject, items, subject.own_cell).prediction
    for k, swap in enumerate(swaps):
        alone = run(subject, items[:, swap], subject.own_cell).prediction
        assert torch.allclose(found.values[:, k], js_bits(start, alone), rtol=1e-4, atol=1e-9)
        assert torch.equal(found.moved[:, k].bool(), (items[:, swap] != items).any(1))
    assert bench.cost.tokens < 0.8 * items.numel() * (len(swaps) + 1)


def test_mixed_rows_come_back_in_their_order(generator):
    """Long prefixes, short ones, none, rows that are the same, and equal ones, in one call."""
    subject, items = subject_of("llama", n_samples=3)
    items[1, 3] = items[1, 4]
    swaps = neighbour_swaps(11, subject.movable(11))
    mixed = torch.cat([swaps, swaps[:4], shuffles(11, subject.movable(11), 6, generator)])
    mixed = mixed[torch.randperm(len(mixed), generator=generator)]
    bench = Bench(subject=subject, items=items, generator=generator)
    before = run(subject, items, subject.own_cell).prediction
    found = compare(bench, subject.own_cell, mixed)
    for k, order in enumerate(mixed):
        after = run(subject, items[:, order], subject.own_cell).prediction
        assert torch.allclose(found.values[:, k], js_bits(before, after), rtol=1e-4, atol=1e-9)


def test_an_end_sees_its_own_tokens_and_what_it_shares():
    pack = Pack(rows=(1, 0), shared=(2, 1), n_items=3)
    rows = torch.tensor([[5, 8, 9], [5, 6, 7]])
    assert pack.tokens(rows).tolist() == [5, 6, 7, 8, 9]
    assert pack.positions().tolist() == [0, 1, 2, 1, 2]
    assert pack.ends == [2, 4]
    seen = [row.nonzero()[:, 0].tolist() for row in pack.visible()]
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 3], [0, 3, 4]]


def test_packs_hold_every_row_once_and_rows_of_one_input_only(generator):
    owners = torch.randint(3, (50,), generator=generator)
    shared = torch.randint(11, (50,), generator=generator)
    found = packs(owners, shared, 11)
    assert sorted(row for pack in found for row in pack.rows) == list(range(50))
    assert all(len(owners[list(pack.rows)].unique()) == 1 for pack in found)
    assert all(len(pack) == len(pack.positions()) <= 8 * 11 for pack in found)


def test_states_kept_from_the_cells_are_those_of_inputs_as_they_are(generator):
    subject, items = subject_of("llama", n_samples=5)
    bench = Bench(subject=subject, items=items, generator=generator, n_states=3)
    perms = bench.each(shuffles(11, bench.movable, 10, generator))
    for cell in subject.compared:
        compare(bench, cell, perms)
        alone = run(subject, items[:3], cell, hidden=True)
        assert len(bench.states[cell]) == len(alone.hidden)
        for kept, own in zip(bench.states[cell], alone.hidden, strict=True):
            assert torch.allclose(kept, own, atol=1e-6)


@pytest.mark.parametrize("name", ["mistral", "bloom", "roberta", "gpt_neo", "gemma3"])
def test_ends_are_not_packed_where_that_would_be_wrong(name):
    subject, _ = subject_of(name)
    assert not can_pack(subject, subject.own_cell)
