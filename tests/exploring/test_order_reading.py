"""What the room Order says of a reordering is what the model makes of the reordered tokens."""

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.exploring.order_data import read_order, read_swaps, read_usual
from orbitlens.exploring.passes import explored_of
from orbitlens.exploring.sentence import Prompt
from orbitlens.order.divergence import js_bits

WORDS = Prompt(text="To be, or not")
N = 13


@pytest.fixture(scope="module")
def nano():
    return explored_of("orbit-nano-rotary")


def swapped(first, second):
    order = list(range(N))
    order[first], order[second] = second, first
    return order


def by_hand(nano, order):
    ids = torch.tensor([nano.model.tokenizer(WORDS.text)["input_ids"]])
    with nano.model.evaluating() as module:
        before, after = (module(input_ids=x).logits[0, -1] for x in (ids, ids[:, order]))
    return float(js_bits(before, after))


@pytest.mark.parametrize("order", [swapped(0, 1), swapped(3, 11), [*range(11, -1, -1), 12]])
def test_the_change_is_that_of_the_models_own_predictions(nano, order):
    cells = {cell.cell: cell.change for cell in read_order(nano, WORDS, order).cells}
    assert cells["pe_causal"] == pytest.approx(by_hand(nano, order), rel=1e-3)


def test_without_positions_and_mask_no_order_can_be_told(nano):
    reading = read_order(nano, WORDS, [*range(11, -1, -1), 12])
    cells = {cell.cell: cell.change for cell in reading.cells}
    assert cells["nope_full"] < 1e-9 < 1e-3 < min(cells["pe_causal"], cells["pe_full"])
    assert cells["nope_causal"] > 1e-9  # the mask alone tells something of it, in four layers


def test_as_written_nothing_changes(nano):
    reading = read_order(nano, WORDS)
    assert all(cell.change < 1e-9 for cell in reading.cells)
    assert reading.before == reading.after and reading.place == N - 1


def test_a_map_holds_what_single_swaps_do(nano):
    swaps = {(s.first, s.second): s for s in read_swaps(nano, WORDS).swaps}
    assert len(swaps) == (N - 1) * (N - 2) // 2
    for pair in [(0, 1), (2, 9), (10, 11)]:
        assert swaps[pair].change == pytest.approx(by_hand(nano, swapped(*pair)), rel=1e-3)
    near = read_swaps(nano, WORDS, which="neighbours").swaps
    assert {(s.first, s.second): s.change for s in near} == pytest.approx(
        {(k, k + 1): swaps[k, k + 1].change for k in range(N - 2)}, rel=1e-3
    )


def test_equal_tokens_are_no_swap_and_blind_cells_tell_none_apart(nano):
    own, blind = read_swaps(nano, WORDS), read_swaps(nano, WORDS, cell="nope_full")
    same = [(s.first, s.second) for s in own.swaps if s.same]
    assert (2, 6) in same and (0, 1) not in same  # two blanks; T and o
    assert all(s.change <= blind.rounding for s in blind.swaps)
    assert any(s.change > own.threshold for s in own.swaps)
    assert own.threshold == blind.threshold  # one per cent of what order is worth in the model


def test_the_threshold_is_a_share_of_what_random_orders_do(nano):
    usual = {cell.cell: cell.change for cell in read_usual(nano, WORDS).cells}
    assert read_swaps(nano, WORDS).threshold == pytest.approx(0.01 * usual["pe_causal"], rel=1e-4)
    assert usual["nope_full"] < 1e-9


@pytest.mark.parametrize("order", [[0, 0], [0, 1, 2], [*range(1, N), 0], [*range(N - 1), 99]])
def test_what_is_no_order_of_the_movable_tokens_is_refused(nano, order):
    with pytest.raises(InputError, match=r"no order of|stays where it is"):
        read_order(nano, WORDS, order)


def test_cells_that_are_not_there_are_refused_with_the_reason(nano, model_folder):
    with pytest.raises(InputError, match="there is no cell"):
        read_swaps(nano, WORDS, cell="else")
    with pytest.raises(InputError, match="expected all or neighbours"):
        read_swaps(nano, WORDS, which="some")
    bert = explored_of(model_folder("bert"))
    cells = {c.cell: c for c in read_order(bert, Prompt(ids="5 17 3 8")).cells}
    assert cells["pe_causal"].change is None and "no mask" in cells["pe_causal"].why
    assert cells["pe_full"].change < 1e-9


def test_patches_of_an_image_are_reordered(model_folder):
    vit = explored_of(model_folder("vit"))
    start = read_order(vit, Prompt(sample=0))
    order = [*reversed(range(len(start.tokens)))]
    reading = read_order(vit, Prompt(sample=0), order)
    cells = {c.cell: c.change for c in reading.cells if c.change is not None}
    assert start.place == -1 and cells["nope_full"] < 1e-5 < cells["pe_full"]


@pytest.mark.parametrize("ask", ["order", "swaps", "usual"])
def test_python_that_is_copied_gives_the_same_numbers(nano, ask):
    shown = {
        "order": lambda: read_order(nano, WORDS, swapped(2, 5)),
        "swaps": lambda: read_swaps(nano, WORDS, cell="nope_causal"),
        "usual": lambda: read_usual(nano, WORDS),
    }[ask]()
    found = {}
    exec(shown.python, found)
    same = found["reading"]
    if ask == "swaps":
        assert [s.change for s in same.swaps] == pytest.approx(
            [s.change for s in shown.swaps], rel=1e-4, abs=1e-12
        )
    else:
        assert [c.change for c in same.cells] == pytest.approx(
            [c.change for c in shown.cells], rel=1e-4, abs=1e-12
        )
