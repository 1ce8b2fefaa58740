"""The tokenization study: its source, its dictionaries, unigram models, and one training arm."""

import math
import sys
from dataclasses import replace
from itertools import product

import pytest
import torch

from orbitlens.errors import InputError, MissingPackageError
from orbitlens_papers.bench import Bench, Scale, Settings
from orbitlens_papers.jobs import Job
from orbitlens_papers.tokenization import dictionaries, regimes, source, training, unigram
from orbitlens_papers.tokenization.source import ENTROPY, SWITCH, UNIGRAM
from orbitlens_papers.tokenization.training import LetterSetup


@pytest.fixture
def bench(tmp_path):
    return Bench(Settings(scale=Scale.SMOKE, seeds=1), tmp_path)


@pytest.fixture
def text(generator):
    return source.text_of(source.switching(2, 30_000, generator))


# --- the source ------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2, 5])
def test_symbols_switch_against_the_one_k_places_back_and_no_other(order, generator):
    x = source.switching(order, 60_000, generator)
    for lag in range(1, 7):
        switched = float((x[lag:] != x[:-lag]).double().mean())
        # At multiples of the order the chain is seen through; elsewhere symbols are independent.
        expected = 0.5 * (1 - (1 - 2 * SWITCH) ** (lag // order)) if lag % order == 0 else 0.5
        assert switched == pytest.approx(expected, abs=0.012)


def test_the_source_has_as_many_symbols_as_asked_and_needs_one_a_chain(generator):
    assert len(source.switching(3, 10, generator)) == 10
    with pytest.raises(InputError, match="order 4 and 3"):
        source.switching(4, 3, generator)


def test_shuffling_keeps_the_letters_and_loses_the_order(generator):
    x = source.switching(1, 20_000, generator)
    y = source.shuffled(x, generator)
    assert int(y.sum()) == int(x.sum())
    assert float((y[1:] != y[:-1]).double().mean()) == pytest.approx(0.5, abs=0.02)


def block_entropy(order, length):
    """The entropy of a block by enumeration, nats a character."""
    total = 0.0
    for x in product((0, 1), repeat=length):
        p = 1.0
        for k, symbol in enumerate(x):
            if k < order:
                p *= 0.5
            else:
                p *= SWITCH if symbol != x[k - order] else 1 - SWITCH
        total -= p * math.log(p)
    return total / length


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_the_loss_over_blocks_is_what_enumeration_gives(order, length):
    assert source.block_loss(order, length) == pytest.approx(
        block_entropy(order, length), abs=1e-12
    )


def test_of_a_first_order_source_it_is_the_formula_of_the_paper():
    for r in range(1, 9):
        assert source.block_loss(1, r) == pytest.approx(ENTROPY + (UNIGRAM - ENTROPY) / r)


# --- dictionaries ----------------------------------------------------------------------------


def test_lzw_finds_the_phrases_of_a_known_text():
    found = dictionaries.lzw("abababab", 6)
    assert found.tokens == ("a", "b", "ab", "ba", "aba", "abab")


def test_the_longest_phrase_is_taken():
    found = dictionaries.lzw("aabaabab", 5)
    assert [found.tokens[k] for k in found.encode("aabab")] == ["aa", "ba", "b"]


@pytest.mark.parametrize(
    "make",
    [
        lambda text: dictionaries.characters(),
        lambda text: dictionaries.lzw(text, 50),
        lambda text: dictionaries.byte_pairs(text, 10),
        lambda text: dictionaries.blocks(4),
    ],
)
def test_tokens_joined_are_the_text(make, text):
    dictionary = make(text)
    sample = text[:4_000]
    assert "".join(dictionary.tokens[k] for k in dictionary.encode(sample)) == sample


def test_byte_pairs_merge_the_most_frequent_pair_first():
    found = dictionaries.byte_pairs("aaab" * 100, 3)
    assert set(found.tokens) == {"a", "b", "aa"}


def test_dictionaries_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="at least the two letters"):
        dictionaries.lzw("ab", 1)
    with pytest.raises(InputError, match="at least the two letters"):
        dictionaries.byte_pairs("ab", 1)
    with pytest.raises(InputError, match="has 3 phrases; expected 9"):
        dictionaries.lzw("aaa", 9)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingPackageError, match="pip install tokenizers"):
        dictionaries.byte_pairs("ab", 3)


# --- unigram models --------------------------------------------------------------------------


def test_a_unigram_model_over_letters_costs_a_coin(text):
    loss, length = unigram.unigram_loss(dictionaries.characters(), text, text)
    assert loss == pytest.approx(UNIGRAM, abs=1e-3)
    assert length == 1.0


def test_blocks_of_two_cost_their_entropy(text):
    """At order 2 the symbols of a block of two are independent coins."""
    loss, length = unigram.unigram_loss(dictionaries.blocks(2), text, text)
    assert (loss, length) == (pytest.approx(UNIGRAM, abs=2e-3), 2.0)


def test_the_largest_rise_is_that_of_the_means():
    found = [[{"loss": x} for x in row] for row in ([0.6, 0.7, 0.5], [0.6, 0.68, 0.5])]
    assert unigram._worst_rise(found).value == pytest.approx(0.09)


def test_the_bound_falls_to_the_entropy_and_says_nothing_of_tiny_dictionaries():
    values = [unigram.bound(d) for d in (10, 100, 10**6, 10**60)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(ENTROPY, rel=0.02)
    assert math.isinf(unigram.bound(4))


# --- training --------------------------------------------------------------------------------

TINY = LetterSetup(context=16, steps=4, look_every=2, n_characters=3_000, n_judged=4)


def trained(setup):
    return training.train(Job(setup=setup, seed=7))


def test_an_untrained_model_costs_a_coin_over_letters():
    row = trained(TINY)
    assert row["losses"][0] == pytest.approx(UNIGRAM, abs=0.03)
    assert row["steps"] == [0, 2, 4]
    assert row["length"] == 1.0
    assert trained(TINY) == row


def test_losses_over_tokens_are_those_of_their_characters():
    """With equal logits every one of d tokens costs ln d, spread over its characters."""

    class Equal(torch.nn.Module):
        def forward(self, input_ids, targets):
            from types import SimpleNamespace

            logits = torch.zeros(targets.numel(), 3)
            return SimpleNamespace(
                loss=torch.nn.functional.cross_entropy(logits, targets.flatten())
            )

    windows, lengths = torch.tensor([[0, 1, 2, 2]]), torch.tensor([1, 1, 4])
    found = training.held_out(Equal(), windows, lengths)
    assert found == pytest.approx(3 * math.log(3) / 9)


def test_the_two_starts_are_what_they_say():
    torch.manual_seed(0)
    small, own = (
        training.build_model(LetterSetup(width=64, start=start), 10)
        for start in ("small", "default")
    )
    table = small.model.embed_tokens.weight.detach()
    assert table.data_ptr() == small.lm_head.weight.data_ptr()
    assert float(table.std()) == pytest.approx(0.02, rel=0.15)
    assert own.model.embed_tokens.weight.data_ptr() != own.lm_head.weight.data_ptr()
    assert float(own.model.embed_tokens.weight.detach().std()) == pytest.approx(1.0, rel=0.1)
    assert float(own.lm_head.weight.detach().abs().max()) <= 1 / 8  # uniform within 1 / sqrt(64)


def test_a_run_ends_early_only_where_it_may():
    assert trained(replace(TINY, stop_at=-1.0))["steps"] == [0, 2]


def row(*losses):
    return {"steps": [0, 50, 100][: len(losses)], "losses": list(losses)}


def test_half_way_is_the_first_look_below_the_middle():
    middle = (UNIGRAM + ENTROPY) / 2
    assert training.half_way(row(UNIGRAM, middle + 1e-6, middle - 1e-6), 700) == 100
    assert training.half_way(row(UNIGRAM, UNIGRAM), 700) == 700
    assert training.closed_by(row(UNIGRAM, ENTROPY, UNIGRAM), 50) == pytest.approx(1.0)
    assert training.closed_by(row(UNIGRAM, ENTROPY, UNIGRAM), 49) == 0.0


def test_the_regime_is_put_into_words_by_the_numbers():
    slow, quick, just, late = (
        {"16 small": [700], "64 default": x} for x in ([700], [150], [300, 700], [301])
    )
    for cells, dependent in ((slow, False), (quick, True), (just, True), (late, False)):
        words = regimes.regime(cells, 700)
        assert words.startswith("regime-dependent") is dependent
        assert ("64 default" in words) is dependent
    assert "regime-dependent" not in regimes.regime({"16 small": [6]}, 6)  # it ended there


# --- the ratio of steps ----------------------------------------------------------------------


def curve(*shares, every=50):
    gap = UNIGRAM - ENTROPY
    steps = [every * k for k in range(len(shares))]
    return {"steps": steps, "losses": [UNIGRAM - share * gap for share in shares]}


def test_a_share_is_reached_between_two_looks_or_never():
    run = curve(0.0, 0.5, 0.95)
    assert training.reached(run, 0.9) == (50, 100)
    assert training.reached(run, 0.97) == (100, math.inf)


def test_a_ratio_of_steps_is_rounded_against_the_claim():
    letters, pairs = curve(0.0, 0.1, 0.95), curve(0.3, 0.6, 0.92, every=10)
    assert training.ratio(letters, pairs, 0.9) == (50 / 20, 100 / 11)


def test_a_slow_run_that_never_gets_there_counts_as_its_whole_budget_at_least():
    never, pairs = curve(0.0, 0.1, 0.2), curve(0.3, 0.6, 0.92, every=10)
    assert training.ratio(never, pairs, 0.9) == (100 / 20, math.inf)


def test_a_quick_run_that_never_gets_there_shows_no_ratio():
    letters, never = curve(0.0, 0.1, 0.95), curve(0.3, 0.6, 0.7, every=10)
    assert training.ratio(letters, never, 0.9) == (0.0, 100 / 21)


def test_pairs_that_are_there_before_training_count_a_step():
    letters, pairs = curve(0.0, 0.1, 0.7), curve(0.65, 0.7, every=10)
    assert training.ratio(letters, pairs, 0.6) == (50.0, 100.0)


def test_equally_quick_runs_do_not_pass_for_slow_ones():
    runs = [curve(0.0, 0.5, 0.95) for _ in range(12)]
    found, data = regimes._ratios({"letters": runs, "pairs": runs}, 0.9)
    assert found.high < 4.0
    assert data["note"].startswith("0 of 12 runs over letters and 0 of 12")


def test_slow_runs_are_found_though_they_are_censored():
    slow = [curve(0.0, *[0.1] * 20) for _ in range(12)]
    quick = [curve(0.3, 0.6, 0.92, every=10) for _ in range(12)]
    found, data = regimes._ratios({"letters": slow, "pairs": quick}, 0.9)
    assert (found.value, found.low, found.high, found.n) == (50.0, 50.0, math.inf, 12)
    assert data["steps"]["letters"] == [None] * 12
