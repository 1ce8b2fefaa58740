"""The section on cuts: losses by layer and by head, shown where they were asked for."""

from dataclasses import replace

import pytest

import orbitlens as ol
from orbitlens.cutting.options import CutOptions, part_kinds
from orbitlens.reporting.cuts import brief_cut
from orbitlens.reporting.sections import cuts
from orbitlens.reporting.sections.section import Place


@pytest.fixture(scope="module")
def brief():
    options = CutOptions(kinds=part_kinds("layer,head"), max_tokens=128, context=32)
    return brief_cut(ol.cut("orbit-nano-rotary", options=options))


def test_maps_of_heads_stand_beside_what_heads_do(report_data, brief):
    model = replace(report_data.models[0], cut=brief)
    charts = cuts.charts(model)
    assert charts[0].key == "cut-layers"
    assert charts[1].key == "cut-heads"
    drawn = {chart.key: f"<i>{chart.key}</i>" for chart in charts}
    html = cuts.cuts_section(model, Place(k=0, charts=drawn, scale=1.0, weights_scale=1.0))
    assert all(f"<i>{key}</i>" in html for key in drawn)
    assert len(cuts.layers_table(brief).rows) == len(brief.layers) == 4
    assert len(cuts.heads_table(model).rows) == len(brief.heads) == 16
    assert brief.layers[0].difference > 1  # without its first layer the model is lost


def test_a_report_that_was_not_asked_has_no_such_section(report_data):
    model = report_data.models[0]
    assert model.cut is None
    assert not cuts.is_shown(model)
    assert cuts.charts(model) == []
    assert cuts.is_shown(replace(model, missing={"cut": "two towers"}))
