"""What a scan says: maps are aligned or opposed, and only tokens that were measured gather."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from orbitlens.cli.demo_model import write_demo_model
from orbitlens.scanning.api import scan
from orbitlens.scanning.scan_result import Orientation, TextInfo, TokenEffect
from orbitlens.scanning.words import PROPERTY, count_sentence, effect_kind, text_sentences
from orbitlens.terminal.scan import head_view, scan_view

OF_TOKENS = re.compile(r"gather|spread|together|drives? ", re.IGNORECASE)
INFO = TextInfo(n_tokens=64, n_contexts=2, context=32, closure="three-points")


@pytest.fixture(scope="module")
def scanned(model_folder):
    return scan(model_folder("gpt2"))


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return scan(write_demo_model(tmp_path_factory.mktemp("demo")))


def with_heads(result, index, orientation):
    """Return the scan with other indices and orientations, by functions of a head's number."""
    layers = []
    for layer in result.layers:
        heads = [
            replace(head, expansion_index=index(k), orientation=orientation(k))
            for k, head in enumerate(layer.heads)
        ]
        layers.append(replace(layer, heads=tuple(heads)))
    return replace(result, layers=tuple(layers))


def with_effects(result, change, raw=lambda k: 0.1):
    """Return the scan as if heads had done this to the tokens of a text."""

    def effect(k):
        return TokenEffect(log_change=change(k), predicted=0.5 * change(k), raw_log_change=raw(k))

    layers = []
    for layer in result.layers:
        heads = [replace(head, on_text=effect(k)) for k, head in enumerate(layer.heads)]
        layers.append(replace(layer, heads=tuple(heads), on_text=effect(0)))
    return replace(result, layers=tuple(layers), text=INFO)


def printed(parts):
    console = Console(file=io.StringIO(), width=100, highlight=False)
    for part in parts:
        console.print(part)
    return console.file.getvalue()


def on_terminal(result):
    return printed(scan_view(result, Console(width=100)))


# --- weights alone ---------------------------------------------------------------------------


def all_that_is_shown(result):
    """Yield everything a reader meets of a scan: words, terminal, notebook, figure."""
    yield result.summary()
    yield repr(result)
    yield on_terminal(result)
    yield printed(head_view(result.layers[-1], result.layers[-1].heads[-1]))
    yield result._repr_html_()
    yield result.plot().layout.title.text
    yield count_sentence(result, {})


@pytest.mark.parametrize("which", ["demo", "scanned"])
def test_a_scan_of_weights_never_says_what_happens_to_tokens(which, request):
    for text in all_that_is_shown(request.getfixturevalue(which)):
        assert not OF_TOKENS.search(text), text


def test_the_first_lines_say_what_a_scan_is_and_the_last_ones_what_is_next(demo):
    words = demo.summary()
    assert words.startswith("From the weights alone: of 48 heads, ")
    assert PROPERTY in words and "scan(model, text=...) or trace(model, text)" in words
    shown = " ".join(on_terminal(demo).split())
    assert shown.index("From the weights alone") < shown.index("layer index")
    assert "orbitlens scan MODEL --text FILE" in shown
    assert "orbitlens trace MODEL --text FILE" in shown


def test_counts_in_words_are_those_of_the_table(demo):
    counts = [sum(head.orientation is kind for _, head in demo.heads()) for kind in Orientation]
    numbers = re.search(r"heads, (\d+) have .* map, (\d+) one opposed .* and (\d+)", demo.summary())
    assert list(map(int, numbers.groups())) == counts
    assert min(counts) > 0


def test_where_none_is_aligned_none_is_the_most_aligned(scanned):
    only = with_heads(scanned, lambda k: -0.11 - k / 10, lambda k: Orientation.OPPOSED)
    words = only.summary()
    assert "The most aligned" not in words and "0 have a value map aligned" in words
    assert "None is aligned: the largest index is that of layer 0 head 0 (-0.11)" in words
    assert re.search(r"the most opposed is layer \d head \d \(-0\.[2-9]", words)


def test_where_none_is_opposed_none_is_the_most_opposed(scanned):
    words = with_heads(scanned, lambda k: 0.11 + k / 10, lambda k: Orientation.ALIGNED).summary()
    assert "the most opposed" not in words and "The most aligned is" in words
    assert "none is opposed: the smallest index is that of" in words


def test_heads_within_chance_are_neither(scanned):
    words = with_heads(scanned, lambda k: k / 100 - 0.01, lambda k: Orientation.NEUTRAL).summary()
    assert "The most aligned" not in words and "the most opposed" not in words
    assert "the largest index is that of" in words


def test_both_are_named_where_both_are(scanned):
    kinds = [Orientation.ALIGNED, Orientation.OPPOSED]
    words = with_heads(scanned, lambda k: 0.3 * (-1) ** k, lambda k: kinds[k % 2]).summary()
    assert "The most aligned is layer 0 head 0 (+0.30); the most opposed is layer" in words


def test_a_scan_of_no_heads_says_so(scanned):
    empty = replace(scanned, layers=())
    assert empty.summary() == "No head was scanned."
    assert empty._repr_html_()


# --- on text ---------------------------------------------------------------------------------


def test_on_text_counts_and_signs_are_those_of_the_numbers(scanned):
    changes = [-0.2, 0.03, 0.004, -0.05]
    found = with_effects(scanned, lambda k: changes[k])
    n = len(found.layers)
    first, second, _ = text_sentences(found)
    assert first.startswith(
        f"Measured on 64 tokens, {2 * n} of {4 * n} heads gather directions and {n} spread them; "
        f"{n} change ln(1 − C) by 0.01 or less."
    )
    assert "layer 0 head 0, gathers directions (-0.200; three-points predicts -0.100)" in second
    opposite = with_effects(scanned, lambda k: -changes[k])
    assert (
        f"{n} of {4 * n} heads gather directions and {2 * n} spread" in text_sentences(opposite)[0]
    )
    assert "spreads directions (+0.200" in text_sentences(opposite)[1]


def test_the_index_is_set_beside_raw_distances_and_not_called_right(scanned):
    along = with_heads(scanned, lambda k: 0.2, lambda k: Orientation.ALIGNED)
    grow, shrink = (with_effects(along, lambda k: 0.1, raw=lambda k, r=r: r) for r in (0.1, -0.1))
    n = sum(1 for _ in along.heads())
    assert f"raw distances in {n} of {n}" in text_sentences(grow)[-1]
    assert f"raw distances in 0 of {n}" in text_sentences(shrink)[-1]


def test_what_is_too_small_to_tell_is_not_called_gathering(scanned):
    kinds = {
        change: effect_kind(TokenEffect(log_change=change, predicted=0.0, raw_log_change=0.0))
        for change in (-0.011, -0.01, 0.0, 0.01, 0.011)
    }
    assert list(kinds.values()) == ["gathers", "neither", "neither", "neither", "spreads"]
    assert text_sentences(scanned) == []


def test_a_text_comes_first_and_weights_keep_their_words(scanned):
    found = with_effects(scanned, lambda k: -0.2)
    words = found.summary()
    measured, weights = words.split("From the weights alone:")
    assert "gather directions" in measured and not OF_TOKENS.search(weights)
    assert PROPERTY not in words and "text=..." not in words
    shown = on_terminal(found)
    assert "ΔS on text" in shown and "--text FILE" not in shown
    assert shown.index("text: what each head does") < shown.index("weights: the two maps")
    assert "gathers directions" in printed(head_view(found.layers[0], found.layers[0].heads[0]))
    assert found.plot().data[0].z[0][0] == -0.2
