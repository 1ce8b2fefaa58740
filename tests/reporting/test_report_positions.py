"""The section on positions: what a decoder's heads do over distance, and how far it reaches."""

from dataclasses import replace

import pytest

from orbitlens.encodings.reach_result import ReachPoint
from orbitlens.reporting.reach import LayerReach, ReachReport
from orbitlens.reporting.sections import positions
from orbitlens.reporting.sections.section import Place


def place(model):
    drawn = {chart.key: f"<i>{chart.key}</i>" for chart in positions.charts(model)}
    return Place(k=0, charts=drawn, scale=1.0, weights_scale=1.0)


def report(**changed):
    layer = LayerReach(
        layer=0,
        periods=(6.3, 60.0),
        shares=(0.25, 0.75),
        unfinished=0.75,
        attention=(0.5, 0.25),
        sharpness=(0.3, 0.2),
    )
    point = ReachPoint(
        ratio=2.0,
        length=64,
        predicted=0.5,
        predicted_error=0.1,
        measured=None,
        measured_error=None,
    )
    whole = ReachReport(
        trained=32,
        offsets=(0, 1),
        lengths=(32, 64),
        layers=(layer,),
        points=(point,),
        sentences="It <fails>.",
        notes=("a note",),
    )
    return replace(whole, **changed)


def test_a_decoder_has_charts_of_losses_planes_and_attention(report_data):
    decoder = report_data.models[0]
    assert decoder.reach is not None, decoder.missing
    keys = {chart.key for chart in positions.charts(decoder)}
    assert keys == {"reach", "planes", "kernel"}
    html = positions.positions_section(decoder, place(decoder))
    assert all(f"<i>{key}</i>" in html for key in keys)
    assert "trained context" in html


def test_a_vision_model_says_why_it_has_none(report_data):
    images = report_data.models[1]
    assert images.reach is None
    assert "decoders" in positions.positions_section(images, place(images))


def test_what_is_said_is_escaped(report_data):
    model = replace(report_data.models[0], reach=report())
    assert "It &lt;fails&gt;." in positions.positions_section(model, place(model))


def test_without_planes_or_losses_only_attention_is_drawn(report_data):
    plain = replace(report().layers[0], periods=(), shares=(), unfinished=None)
    model = replace(report_data.models[0], reach=report(layers=(plain,), points=()))
    assert [chart.key for chart in positions.charts(model)] == ["kernel"]


@pytest.mark.parametrize("n_layers", [1, 6, 30])
def test_at_most_six_layers_are_drawn_and_tables_have_all(report_data, n_layers):
    layers = tuple(replace(report().layers[0], layer=k) for k in range(n_layers))
    model = replace(report_data.models[0], reach=report(layers=layers))
    kernel = next(chart for chart in positions.charts(model) if chart.key == "kernel")
    assert len(kernel.panel.layers) == min(6, n_layers)
    assert len(kernel.table.columns) == n_layers + 1


def test_layers_with_other_planes_share_a_table(report_data):
    other = replace(report().layers[0], layer=1, periods=(6.3,), shares=(1.0,))
    model = replace(report_data.models[0], reach=report(layers=(report().layers[0], other)))
    table = positions.planes_table(model.reach)
    assert table.rows[1] == ["1", 60.0, 0.75, None]
