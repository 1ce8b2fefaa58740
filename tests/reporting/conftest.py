"""One small report for all tests of reports."""

import json
from dataclasses import replace

import pytest

from browsing import Visit
from orbitlens.reporting.compact import MOST_BARS
from orbitlens.reporting.flows import SOME_FLOWS
from orbitlens.reporting.gather import gather_report
from orbitlens.reporting.options import ReportOptions
from orbitlens.reporting.orbits import MOST_PLACES
from orbitlens.reporting.report import Report
from orbitlens.reporting.spectra import ALL_NUMBERS

HOSTILE = "</script><img src=x onerror=\"document.title='run'\"><b>'&amp;"
SMALL = ReportOptions(
    max_tokens=96, context=12, samples=8, permutations=3, flows=3, flow_growth=0.5, controls=2
)


@pytest.fixture(scope="session")
def report_data(model_folder):
    """Return the report of a rotary decoder and a vision model, computed once."""
    return gather_report([model_folder("llama-grouped"), model_folder("vit")], SMALL)


@pytest.fixture(scope="session")
def hostile_report(report_data):
    """Return the same report with a name and tokens that try to break out."""
    first, second = report_data.models
    tokens = tuple(HOSTILE for _ in first.orbits.tokens)
    orbits = replace(first.orbits, tokens=tokens)
    models = (replace(first, name=HOSTILE, orbits=orbits, notes=(HOSTILE,)), second)
    return replace(report_data, models=models)


@pytest.fixture(scope="session")
def deep_report(report_data):
    """Return the report of 30 layers of 32 heads, with full spectra, flows and orbits."""
    data = json.loads(json.dumps(report_data.to_json()))
    model = data["models"][0]
    data["models"] = [model]
    for result in (model["scan"], model["trace"], model["shuffled"], model["trace"]["twin"]):
        result["layers"] = [_copied(result["layers"][k % 3], k) for k in range(30)]
    for band in model["bands"].values():
        for kind in ("directions", "parts", "metrics"):
            band[kind] = {
                name: [ends[k % 3] for k in range(30)] for name, ends in band[kind].items()
            }
    model["weights_of"] = {"decoder": list(range(30))}
    for layer in model["scan"]["layers"]:
        for head in layer["heads"]:
            head["rotary"] = {**head["rotary"], "energy": [0.123456] * MOST_BARS}
            model["clauses"].append(f"scores may differ by {len(model['clauses'])}.12")
            *others, last = head["certificates"]
            own = [*last["why"], len(model["clauses"]) - 1]  # a clause that no other head shares
            head["certificates"] = [*others, {**last, "why": own}]
    kept = ALL_NUMBERS // (30 * 32)
    spectra, flow, orbits = model["spectra"][0], model["flows"][0], model["orbits"]
    long = {"rates": [0.1234] * kept, "eigenvalues": [[-0.1234, 0.1234]] * kept}
    places = [(layer, head) for layer in range(30) for head in range(32)]
    model["spectra"] = [{**spectra, **long, "layer": x, "head": h} for x, h in places]
    model["flows"] = [{**flow, "layer": x, "head": h} for x, h in places[:SOME_FLOWS]]
    orbits["positions"] = [[[-0.123456, 0.123456, 0.123456]] * (MOST_PLACES // 31)] * 31
    orbits["tokens"] = [" token"] * (MOST_PLACES // 31)
    orbits["cosine"] = [0.25] * 31
    orbits["shared"] = orbits["bearings"] = [[0.123456] * (MOST_PLACES // 31)] * 31
    orbits["depths"] = ["input", *(f"after layer {k}" for k in range(30))]
    model["audit"]["layers"] = [{**model["audit"]["layers"][0], "layer": k} for k in range(31)]
    return Report.from_json(data)


def _copied(layer, number):
    own = layer["heads"]  # none in controls
    heads = [{**own[k % len(own)], "head": k} for k in range(32)] if own else []
    made = {**layer, "layer": number, "heads": heads}
    if "directions" in layer:
        given = layer["directions"]["heads"]
        many = [given[k % len(given)] for k in range(32)] if given else []
        made["directions"] = {**layer["directions"], "heads": many}
    return made


@pytest.fixture(scope="session")
def page_file(report_data, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "report.html"
    return report_data.save(file)


@pytest.fixture(scope="session")
def opened(browser, page_file):
    """Return the report, open and drawn, for all tests that leave it as it is."""
    one = Visit(browser, page_file, width=1440)
    one.drawn_whole()
    yield one
    one.context.close()
