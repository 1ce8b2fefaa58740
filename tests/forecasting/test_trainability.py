"""Verdicts on training, maps of them, and several forecasts side by side."""

import json

import pytest

import orbitlens as ol
from orbitlens.errors import InputError
from orbitlens.forecasting.comparison import compared
from orbitlens.forecasting.forecast_result import TrainingVerdict
from orbitlens.forecasting.mapping import ForecastMap, MapAxis, forecast_map
from orbitlens.forecasting.trainability import Threshold, learnt, readings_of, verdict_of
from small_llama import refused, run

SMALL = {"width": 64, "heads": 4, "context": 16, "vocabulary": 65}
ONE = {"collapse": Threshold(trains_to=1.0, fails_from=2.0)}


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (0.5, TrainingVerdict.TRAINS),
        (1.0, TrainingVerdict.TRAINS),
        (1.5, TrainingVerdict.UNCLEAR),
        (2.0, TrainingVerdict.FAILS),
    ],
)
def test_a_verdict_is_told_by_two_thresholds(value, verdict):
    assert verdict_of({"collapse": value}, ONE) is verdict


def test_the_thresholds_of_the_package_are_learnt_ones():
    known = learnt()
    assert known.n_learnt >= 75
    assert set(known.thresholds) == {"collapse", "sensitivity", "faintness"}
    assert all(each.trains_to <= each.fails_from for each in known.thresholds.values())


def test_readings_see_collapse_chaos_and_faintness():
    calm = ol.forecast(ol.Blueprint(layers=4, norm="pre", init=0.02, **SMALL))
    assert calm.verdict is TrainingVerdict.TRAINS
    collapsed = ol.forecast(ol.Blueprint(layers=32, norm="post", init=0.3, **SMALL))
    assert collapsed.readings["collapse"] > calm.readings["collapse"] + 3
    chaotic = ol.forecast(
        ol.Blueprint(layers=12, norm="post", init=0.3, activation="swiglu", **SMALL)
    )
    assert chaotic.readings["sensitivity"] > 1
    faint = ol.Blueprint(layers=2, norm="none", init=1e-3, **SMALL)
    assert readings_of(faint, ol.forecast(faint).depths)["faintness"] > 2
    for found in (collapsed, chaotic):
        assert found.verdict is TrainingVerdict.FAILS
        assert "not trainable (" in found.summary()
        assert all(each.verdict is TrainingVerdict.TRAINS for each in found.remedies)


def test_a_map_has_a_frontier():
    found = forecast_map(
        ol.Blueprint(norm="post", **SMALL),
        MapAxis(name="init", values=(0.02, 0.3)),
        MapAxis(name="layers", values=(2.0, 24.0)),
    )
    assert found.frontier()[0] == 24
    assert found.frontier()[1] in {None, 2}
    assert found.rows()[0][0].y == 24
    assert "combinations of init and layers" in found.summary()
    assert ForecastMap.from_json(found.to_json()).to_json() == found.to_json()
    assert len(found.to_pandas()) == 4


def test_axes_that_no_blueprint_has_are_refused():
    with pytest.raises(InputError, match="cannot be swept"):
        MapAxis(name="norm", values=(1.0,))
    axis = MapAxis(name="init", values=(0.1,))
    with pytest.raises(InputError, match="both axes"):
        forecast_map(ol.Blueprint(), axis, axis)


def test_forecasts_stand_beside_built_models():
    plans = {"calm": ol.Blueprint(layers=2, init=0.02, **SMALL)}
    row = compared(plans, built=3).rows[0]
    assert row.largest_error < 0.1
    assert row.built_gradient == pytest.approx(row.gradient, rel=0.3)
    assert compared(plans).rows[0].built_cosine is None


def test_the_command_draws_maps_and_reads_runs_and_sweeps(tmp_path):
    sizes = ("--layers", "2", "--width", "32", "--heads", "4", "--context", "16")
    axes = ("--x", "init=0.02,0.3", "--y", "layers=2,3")
    for kind in ("png", "html"):
        shown = run("forecast", *sizes, *axes, "-o", tmp_path / f"map.{kind}").out
        assert "layers (upwards) against init (across)" in shown
        assert (tmp_path / f"map.{kind}").stat().st_size > 1000
    refused("forecast", *sizes, *axes, "-o", tmp_path / "map.gif", says=".html or .png")
    refused("forecast", *sizes, "--x", "init=0.1", says="two parameters")
    refused("forecast", *sizes, "-o", tmp_path / "map.png", says="--x and --y")
    sweep = tmp_path / "sweep.toml"
    sweep.write_text('[base]\ntask="copy"\nlayers=2\nwidth=32\n[grid]\nnorm=["pre","post"]\n')
    found = json.loads(run("forecast", sweep, "--built", "1", "--json", "-").out)
    assert [row["name"] for row in found["rows"]] == ["pre", "post"]
    run_file = tmp_path / "config.json"
    run_file.write_text(
        json.dumps({"task": "copy", "layers": 3, "width": 32, "heads": 4, "init": 0.1})
    )
    assert "3 layers, width 32" in run("forecast", run_file).out
    run_file.write_text(json.dumps({"task": "copy", "layers": 3, "residual": "none"}))
    refused("forecast", run_file, says="all residual sums")
