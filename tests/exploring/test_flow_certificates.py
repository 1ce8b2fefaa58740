"""Badges of the page against the library's certificates: none is lit that the library would not."""

import itertools

import torch

from orbitlens.exploring.flow_data import MOST_TOKENS
from orbitlens.families.architecture import Pairing, RotarySpec
from orbitlens.flows.examples import EXAMPLES, example_system
from orbitlens.flows.prediction import predict
from orbitlens.flows.setup import alibi_slopes
from orbitlens.flows.system import Geometry, Mask, system_of_maps, with_settings

N_TOKENS = 6
CLOSE = {"T1", "T2", "N5", "N6"}  # equalities to rounding, for which the two leave different room


def states():
    kinds = itertools.product(EXAMPLES, (2, 3), ("full", "causal"), ("free", "sphere"))
    for k, (name, d, mask, norm) in enumerate(kinds):
        enc, heads = ("none", "rotary", "alibi", "none")[k % 4], ("1", "1", "2")[k % 3]
        yield {"system": name, "d": str(d), "mask": mask, "norm": norm, "enc": enc, "heads": heads,
               "n": str(N_TOKENS), "beta": "1", "v": "1"}  # fmt: skip
    yield {"system": "aligned", "d": "3", "mask": "full", "norm": "sphere", "enc": "none",
           "heads": "1", "n": str(N_TOKENS), "beta": "1", "v": "1"}  # fmt: skip


def of_the_library(state):
    d, heads = int(state["d"]), int(state["heads"])
    made = [example_system(state["system"], d_model=d, seed=k) for k in range(heads)]
    value = torch.stack([one.w_o[0].T for one in made]) / heads
    system = system_of_maps(torch.stack([one.w_q[0] for one in made]), value)
    settings = {"mask": Mask(state["mask"]), "geometry": Geometry(state["norm"])}
    if state["enc"] == "rotary":
        spec = RotarySpec(base=1e4, d_rotary=d - d % 2, d_head=d, pairing=Pairing.HALVES)
        settings["rotary"] = spec
    if state["enc"] == "alibi":
        settings["alibi_slopes"] = torch.tensor(alibi_slopes(heads), dtype=torch.float64)
    drawn = torch.Generator().manual_seed(0)
    tokens = torch.randn(MOST_TOKENS, d, generator=drawn, dtype=torch.float64)[:N_TOKENS]
    found = predict(with_settings(system, **settings), tokens).certificates
    return {one.name: one.holds for one in found}


def test_badges_say_what_the_library_says(visit, explorer_page):
    opened = visit(explorer_page)
    listed = list(states())
    shown = opened.page.evaluate("all => all.map(one => rooms.flow.certificates(one))", listed)
    lit = set()
    for state, badges in zip(listed, shown, strict=True):
        own = of_the_library(state)
        for badge in badges:
            name, holds = badge["name"], badge["holds"]
            expected = own.get(name, False)  # of several heads the library leaves some out
            assert not holds or expected, (state, badge)
            if name not in CLOSE:
                assert holds == expected, (state, badge)
            if holds:
                lit.add(name)
    assert lit >= {"T1", "T2", "T3", "T4", "T5", "N1", "N2", "N3", "N4", "N6"}


def test_badges_flip_as_hypotheses_break(visit, explorer_page):
    opened = visit(explorer_page)
    ask = "one => Object.fromEntries(rooms.flow.certificates(one).map(c => [c.name, c.holds]))"
    plain = {"system": "symmetric-nd", "norm": "free", "mask": "full", "n": "20"}
    assert opened.page.evaluate(ask, plain)["T1"] and opened.page.evaluate(ask, plain)["T2"]
    for change in ({"mask": "causal"}, {"enc": "rotary"}, {"heads": "2"}):
        assert not opened.page.evaluate(ask, plain | change)["T1"]
    assert opened.page.evaluate(ask, plain | {"enc": "reinjected"})["T5"] is None
