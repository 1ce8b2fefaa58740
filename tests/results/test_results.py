"""Every result: read again exactly, tidy as a table, drawn, shown, and short as a repr."""

import dataclasses
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import orbitlens as ol
from json_places import changed, places, value_at
from orbitlens.cli.app import app
from orbitlens.cutting.cut_result import Cut
from orbitlens.cutting.options import CutOptions
from orbitlens.encodings.positions_result import Positions
from orbitlens.errors import ResultError
from orbitlens.explaining.explanation import Explanation
from orbitlens.explaining.graph import CausalGraph, Edge, Mark
from orbitlens.forecasting.forecast_result import ArchitectureForecast
from orbitlens.order.audit_result import Audit
from orbitlens.results.codec import dumps
from orbitlens.scanning.scan_result import Scan
from orbitlens.tracing.mechanism_result import Mechanisms
from orbitlens.tracing.trace_result import DirectionTrace, Trace
from orbitlens.trajectory import Event, Status, Trajectory

KINDS = (Scan, Trace, Mechanisms, Audit, Explanation, Trajectory, Cut, Positions,
         ArchitectureForecast)  # fmt: skip
CONFIG = {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 99}
HEADER = ("orbitlens", "kind", "format")


def written(model, folder, command, *arguments):
    """Run a command and return the file of its result."""
    file = folder / f"{command}.json"
    outcome = CliRunner().invoke(app, [command, model, "--json", str(file), *arguments])
    assert outcome.exit_code == 0, outcome.output
    return file


@pytest.fixture(scope="module")
def files(model_folder, tmp_path_factory):
    model, folder = model_folder("gpt2"), tmp_path_factory.mktemp("results")
    ids = folder / "ids.txt"
    rows = torch.randint(3, 39, (8, 12), generator=torch.Generator().manual_seed(0))
    ids.write_text("\n".join(" ".join(map(str, row)) for row in rows.tolist()))
    audit = ("--samples", "6", "--permutations", "2", "--length", "8")
    return {
        Scan: written(model, folder, "scan"),
        Trace: written(model, folder, "trace", "--tokens", str(ids), "--twin", "--mechanisms"),
        Audit: written(model, folder, "audit", *audit),
    }


@pytest.fixture(scope="module")
def results(files):
    """Return one result of each kind."""
    loaded = {kind: kind.load(file) for kind, file in files.items()}
    return loaded | {
        Mechanisms: loaded[Trace].mechanisms,
        Explanation: an_explanation(),
        Trajectory: a_trajectory(),
        Cut: ol.cut("orbit-nano-none", options=CutOptions(max_tokens=512)),
        Positions: ol.positions("orbit-nano-rotary"),
        ArchitectureForecast: ol.forecast(CONFIG),
    }


def an_explanation():
    edge = Edge(first=0, second=2, at_first=Mark.CIRCLE, at_second=Mark.ARROW)
    return Explanation(
        prediction=4,
        target=2,
        graphs={1: CausalGraph(nodes=(0, 2, 3), edges=(edge,)), 3: CausalGraph((0, 2), ())},
        tokens=(0, 3),
        changed_to=5,
        calls=7,
        samples=32,
        alpha=0.01,
        caveats=("<b>One</b>",),
    )


def a_trajectory(d_model=3, **changes):
    generator = torch.Generator().manual_seed(0)
    values = {
        "times": torch.linspace(0, 2, 5, dtype=torch.float64),
        "unit_tokens": torch.randn(5, 4, d_model, generator=generator, dtype=torch.float64),
        "log_scale": torch.tensor([0, 0, 1, 2, math.inf], dtype=torch.float64),
        "status": Status.DIVERGED,
        "status_time": 1.5,
        "n_clusters": 4,
        "n_evaluations": 20,
        "n_steps": 4,
        "events": (Event(time=1.0, what="left"),),
    }
    return Trajectory(**(values | changes))


# --- files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Scan, Trace, Audit])
def test_what_a_command_writes_is_loaded_exactly(kind, files):
    data = json.loads(files[kind].read_text(encoding="utf-8"))
    result = kind.load(files[kind])
    assert json.loads(dumps(result.to_json())) == data
    assert type(result) is kind


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_of_a_model_is_saved_and_loaded_exactly(kind, results, tmp_path):
    result = results[kind]
    again = kind.load(result.save(tmp_path / "result.json"))
    assert dumps(again.to_json()) == dumps(result.to_json())
    if kind is not Trajectory:  # tensors have no truth value
        assert again == result
    for other in KINDS:
        if other is not kind:
            with pytest.raises(ResultError, match=f"expected '{other.KIND}'"):
                other.load(tmp_path / "result.json")


SAME = {
    float: st.floats(),
    int: st.integers(-(2**53), 2**53),
    str: st.text(max_size=9),
    bool: st.booleans(),
}
ANY = st.none() | st.one_of(*SAME.values()) | st.just([]) | st.just({}) | st.just([{}])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_other_values_are_read_exactly_or_refused(kind, results, data):
    whole = {k: v for k, v in results[kind].to_json().items() if k not in kind.DERIVED}
    paths = [path for path in places(whole) if path and path[0] not in HEADER]
    path = data.draw(st.sampled_from(paths))
    value = data.draw(SAME.get(type(value_at(whole, path)), ANY) | ANY)
    other = changed(whole, path, value)
    try:
        again = kind.from_json(json.loads(dumps(other)))
    except ResultError as error:
        assert "is damaged" in str(error)
        assert str(path[0]) in str(error) or "do not fit each other" in str(error)
        return
    again.to_pandas()
    again._repr_html_()
    if value == {}:  # fields that have a default may be missing
        return
    kept = {k: v for k, v in again.to_json().items() if k not in kind.DERIVED}
    assert read_from(json.loads(dumps(kept))) == read_from(json.loads(dumps(other)))


def read_from(data):
    """Return the data without what is computed anew when directions are read."""
    if isinstance(data, list):
        return [read_from(value) for value in data]
    if not isinstance(data, dict):
        return data
    computed = DirectionTrace.DERIVED if "points" in data and "attributed" in data else ()
    return {key: read_from(value) for key, value in data.items() if key not in computed}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data", [{}, [], None, 3, {"kind": "scan"}, {"kind": ["scan"]}])
def test_other_json_is_refused_kindly(kind, data):
    with pytest.raises(ResultError, match=r"no saved result|expected '|has format None"):
        kind.from_json(data)


# --- words, tables, figures ------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_describes_itself_briefly(kind, results):
    result = results[kind]
    lines = repr(result).splitlines()
    assert len(lines) <= 3 and lines[0].startswith(kind.__name__)
    assert result.summary().rstrip().endswith(".")
    page = result._repr_html_()
    assert page.startswith("<iframe") and "<script" not in page and "<b>One" not in page
    assert result.plot().layout.template is not None


def test_a_scan_is_a_row_a_head(results):
    scan, frame = results[Scan], results[Scan].to_pandas()
    heads = [(layer, head) for layer, head in scan.heads()]
    assert len(frame) == len(heads)
    first = ["stack", "layer", "head", "orientation", "index", "log_change"]
    assert list(frame.columns[:6]) == first
    assert frame["index"].tolist() == [head.expansion_index for _, head in heads]
    assert frame["layer"].tolist() == [layer.layer for layer, _ in heads]
    assert frame["N2"].tolist() == [head.certificates[1].holds for _, head in heads]
    assert frame["context_index"].isna().all() and frame["context_index"].dtype == float


def test_a_trace_is_a_row_a_part(results):
    trace, frame = results[Trace], results[Trace].to_pandas()
    n_heads = len(trace.layers[0].heads)
    parts = ["attention", "mlp", "norm", *(f"head {k}" for k in range(n_heads))]
    assert frame["part"].tolist() == parts * len(trace.layers)
    whole = frame[frame["part"] == "attention"]
    for name in ("measured_log_change", "predicted_log_change", "simulated_log_change"):
        wanted = [getattr(layer.attention, name) for layer in trace.layers]
        assert whole[name].tolist() == wanted
    assert whole["mean_cosine"].tolist() == [layer.metrics["mean_cosine"] for layer in trace.layers]
    last = frame[frame["part"] == f"head {n_heads - 1}"]
    assert last["sharpness"].tolist() == [layer.heads[-1].sharpness for layer in trace.layers]
    untrained = [layer.attention.measured_log_change for layer in trace.twin.layers]
    assert whole["twin_measured_log_change"].tolist() == untrained
    assert frame[frame["part"] == "mlp"]["predicted_log_change"].isna().all()


def test_mechanisms_are_a_row_a_head_with_the_twin_beside_it(results):
    found, frame = results[Mechanisms], results[Mechanisms].to_pandas()
    assert list(frame.columns[:3]) == ["stack", "layer", "head"]
    assert frame["saturation"].tolist() == [head.saturation for head in found.heads]
    assert frame["twin_margin"].tolist() == [head.twin.margin for head in found.heads]


def test_an_audit_is_a_row_a_reading(results):
    audit, frame = results[Audit], results[Audit].to_pandas()
    cells = frame[frame["quantity"] == "order sensitivity"].set_index("cell")
    assert cells["value"][audit.model.own_cell] == audit.sensitivity
    assert cells["low"][audit.model.own_cell] == audit.cells[audit.model.own_cell].low
    defects = frame[frame["quantity"] == "equivariance defect"]
    own = defects[defects["cell"] == audit.model.own_cell]
    wanted = [layer.defects[audit.model.own_cell] for layer in audit.layers]
    assert own["value"].tolist() == wanted
    assert own["layer"].tolist() == list(range(-1, len(wanted) - 1))


def test_an_explanation_is_a_row_an_edge_and_says_what_changes_it():
    result = an_explanation()
    assert result.to_pandas().values.tolist() == [[1, 0, 2, "o", ">"]]
    assert "masking tokens 0, 3 changes it to 5" in result.summary()
    none = dataclasses.replace(result, tokens=(), changed_to=None)
    assert "no set of tokens that was tried changes that" in none.summary()
    assert list(result.plot().data[0].z[0]) == [None, 1, 0]


def test_a_trajectory_is_a_row_a_token_and_time():
    result = a_trajectory()
    frame = result.to_pandas()
    assert len(frame) == 5 * 4 and list(frame.columns) == [
        "time", "token", "log_scale", "x0", "x1", "x2",
    ]  # fmt: skip
    assert frame["x1"].tolist() == result.tokens[..., 1].flatten().tolist()


@pytest.mark.parametrize("d_model", [1, 2, 3, 7])
@pytest.mark.parametrize("scale", [0.0, 2000.0])
def test_a_trajectory_moves_in_its_figure(d_model, scale):
    log_scale = torch.linspace(0, scale, 5, dtype=torch.float64)
    drawn = a_trajectory(d_model, log_scale=log_scale).plot()
    assert len(drawn.frames) == 5
    low, high = drawn.layout.xaxis.range
    assert all(low <= x <= high for frame in drawn.frames for x in frame.data[0].x)


def test_a_trajectory_without_finite_tokens_cannot_be_drawn():
    nothing = torch.full((5, 4, 2), math.nan, dtype=torch.float64)
    with pytest.raises(Exception, match="no moment of this trajectory has finite tokens"):
        a_trajectory(unit_tokens=nothing).plot()
