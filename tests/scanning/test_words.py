"""What a scan says of its strongest heads: none is called a spreader that does not spread."""

import re
from dataclasses import replace

import pytest

from orbitlens.scanning.api import scan
from orbitlens.scanning.scan_result import Tendency


@pytest.fixture(scope="module")
def scanned(model_folder):
    return scan(model_folder("gpt2"))


def with_heads(result, index, tendency):
    """Return the scan with other indices and tendencies, by functions of a head's number."""
    layers = []
    for layer in result.layers:
        heads = [
            replace(head, expansion_index=index(k), tendency=tendency(k))
            for k, head in enumerate(layer.heads)
        ]
        layers.append(replace(layer, heads=tuple(heads)))
    return replace(result, layers=tuple(layers))


def test_where_none_spreads_none_is_the_strongest_spreader(scanned):
    only = with_heads(scanned, lambda k: -0.11 - k / 10, lambda k: Tendency.GATHERS)
    words = only.summary()
    assert "spreader" not in words and "0 spread tokens apart" in words
    assert (
        "no head spreads tokens, and the largest index is that of layer 0 head 0 (-0.11)" in words
    )
    assert re.search(r"The strongest gatherer is layer \d head \d \(index -0\.[2-9]", words)


def test_where_none_gathers_none_is_the_strongest_gatherer(scanned):
    words = with_heads(scanned, lambda k: 0.11 + k / 10, lambda k: Tendency.SPREADS).summary()
    assert "gatherer" not in words and "The strongest spreader is" in words
    assert "no head gathers tokens, and the smallest index is that of" in words


def test_heads_within_chance_are_neither(scanned):
    words = with_heads(scanned, lambda k: k / 100 - 0.01, lambda k: Tendency.NEUTRAL).summary()
    assert "spreader" not in words and "gatherer" not in words
    assert "the largest index is that of" in words


def test_both_are_named_where_both_are(scanned):
    kinds = [Tendency.SPREADS, Tendency.GATHERS]
    words = with_heads(scanned, lambda k: 0.3 * (-1) ** k, lambda k: kinds[k % 2]).summary()
    assert "The strongest spreader is layer 0 head 0 (index +0.30), the strongest gatherer" in words


def test_a_scan_of_no_heads_says_so(scanned):
    empty = replace(scanned, layers=())
    assert empty.summary() == "No head was scanned."
    assert empty._repr_html_()
