"""Verdicts on training, maps of them, and several forecasts side by side."""

import json
import math

import pytest
import torch

import orbitlens as ol
from orbitlens.errors import InputError
from orbitlens.forecasting.built import built_stack
from orbitlens.forecasting.comparison import compared
from orbitlens.forecasting.forecast_result import TrainingVerdict
from orbitlens.forecasting.mapping import ForecastMap, MapAxis, forecast_map
from orbitlens.forecasting.trainability import Threshold, learnt, verdict_of
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
    assert known.n_learnt >= 145
    assert set(known.thresholds) == {"erasure", "faintness", "sensitivity", "collapse"}
    assert all(each.trains_to <= each.fails_from for each in known.thresholds.values())


@pytest.mark.parametrize("norm", ["pre", "none"])
def test_what_is_kept_of_the_first_stream_is_its_size_beside_the_last(norm):
    found = ol.forecast(ol.Blueprint(layers=6, norm=norm, init=0.1, **SMALL), advise=False)
    for each in found.depths:
        share = math.log(found.depths[0].size / each.size)
        assert each.log_kept == pytest.approx(share, abs=1e-6)


def kept_in(model, ids):
    """Return what sums with branches leave of the stream, measured."""
    sizes = []
    for block in model.layers:
        for branch, norm in (
            (block.self_attn.o_proj, block.attn_post_norm),
            (block.mlp.down_proj, block.mlp_post_norm),
        ):
            branch.register_forward_hook(lambda module, args, out: sizes.append([out]))
            norm.register_forward_pre_hook(lambda module, args: sizes[-1].append(args[0]))
    with torch.no_grad():
        model(input_ids=ids)
    return sum(math.log((total - added).norm() / total.norm()) for added, total in sizes)


def test_what_is_kept_behind_post_norms_is_that_of_models_that_are_built():
    plan = ol.Blueprint(layers=4, norm="post", init=0.1, **SMALL)
    ids = torch.randint(65, (1, 16), generator=torch.Generator().manual_seed(0))
    measured = [kept_in(built_stack(plan, seed), ids) for seed in range(4)]
    found = ol.forecast(plan, advise=False).last.log_kept
    assert found == pytest.approx(sum(measured) / 4, rel=0.1)
    assert found < -1


EXPLOSIVE = {"layers": 48, "norm": "none", "init": 0.3, "activation": "swiglu"}


@pytest.mark.parametrize(
    ("reading", "shape"),
    [
        ("erasure", {"layers": 32, "norm": "post", "init": 0.3}),  # directions collapse
        ("erasure", {"layers": 12, "norm": "post", "init": 0.3, "activation": "swiglu"}),  # chaos
        ("sensitivity", {"layers": 12, "norm": "post", "init": 0.2, "activation": "swiglu"}),
        ("erasure", EXPLOSIVE),
        ("faintness", {"layers": 6, "norm": "none", "init": 1e-3, "activation": "swiglu"}),
    ],
)
def test_readings_see_each_way_to_fail(reading, shape):
    found = ol.forecast(ol.Blueprint(**shape, **SMALL))
    assert found.readings[reading] > learnt().thresholds[reading].fails_from
    assert all(math.isfinite(each) for each in found.readings.values())
    assert found.verdict is TrainingVerdict.FAILS
    assert "not trainable (" in found.summary()
    assert all(each.verdict is TrainingVerdict.TRAINS for each in found.remedies)


def test_a_calm_stack_trains_and_deeper_explosions_read_higher():
    calm = ol.forecast(ol.Blueprint(layers=4, norm="pre", init=0.02, **SMALL))
    assert calm.verdict is TrainingVerdict.TRAINS
    readings = [
        ol.forecast(ol.Blueprint(**EXPLOSIVE | {"layers": n}, **SMALL), advise=False).readings
        for n in (24, 48)
    ]
    assert readings[1]["erasure"] > readings[0]["erasure"] + 10  # no bound is in its way


def test_the_command_shows_what_is_left_of_embeddings():
    shown = run("forecast", "--layers", "4", "--width", "64", "--heads", "4", "--norm", "post").out
    assert "kept" in shown
    assert "share of the embeddings" in shown


def test_a_plain_mlp_is_never_too_faint():
    plain = ol.Blueprint(layers=2, norm="none", init=1e-3, activation="gelu", **SMALL)
    assert ol.forecast(plain, advise=False).readings["faintness"] == 0


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
