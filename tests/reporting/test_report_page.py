"""The page in a real browser: offline, silent, clickable, printable, readable at any width."""

import json
import re

import pytest

from orbitlens.reporting.effects import head_effects
from orbitlens.reporting.report import Report
from orbitlens.reporting.sections import SECTIONS
from orbitlens.reporting.sections.heads import short
from orbitlens.reporting.sections.orbits import polar
from orbitlens.tracing.trace_result import DEFAULT_CLOSURE

FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
# How far each drawing goes beyond the box it belongs to, and how wide the widest is.
BEYOND = """[...document.querySelectorAll('.plot:has(svg)')].map(p =>
    p.querySelector('svg').getBoundingClientRect().width - p.clientWidth)"""
WIDEST = """Math.max(...[...document.querySelectorAll('.plot svg')].map(s =>
    s.getBoundingClientRect().width))"""
# The colour of the first curve of a chart.
INK = "getComputedStyle(document.querySelector('[data-chart=layers] .marks path')).stroke"
# What a chart draws, layer by layer.
DRAWN = """layers => layers.flatMap(l => l.kind === 'heat' ? l.values.flat()
    : l.kind === 'band' ? [l.low, l.high].flat()
    : [...l.y, ...(l.base ?? []), ...(l.low ?? []), ...(l.high ?? [])])"""


def test_it_opens_offline_without_a_request_or_a_complaint(opened, page_file):
    assert opened.requests == [page_file.as_uri()]
    assert opened.complaints == []


def test_a_page_that_asks_for_something_would_be_noticed(visit, page_file, tmp_path):
    file = tmp_path / "asks.html"
    text = page_file.read_text(encoding="utf-8")
    file.write_text(text.replace("<main>", '<main><img src="https://example.invalid/x.png">', 1))
    one = visit(file)
    assert one.complaints  # the page's own policy forbids it


def test_every_section_is_there_with_its_charts(opened):
    for section in (one for one in SECTIONS if one.body is not None and one.key != "cuts"):
        assert opened.page.locator(f"#{section.key} h2").inner_text() == section.title
        link = opened.page.locator(f"#{section.key} .lead a").first.get_attribute("href")
        assert opened.page.locator(f"dt{link}").count() == 1  # its definition
    kinds = {f.get_attribute("data-chart") for f in opened.page.locator("[data-chart]").all()}
    assert kinds == {"compared", "waterfall", "directions", "parts", "metrics", "layers", "scatter",
                     "orbits", "defects", "swaps", "neighbours", "identity", "places",
                     "reach", "planes", "kernel"}  # fmt: skip


def test_the_table_behind_every_chart_has_all_that_is_drawn(opened):
    found = opened.page.evaluate(f"""[...document.querySelectorAll('[data-chart]')].map(figure => {{
        const {{ layers }} = figure.querySelector('.plot').panel, kind = figure.dataset.chart;
        const kept = kind === 'scatter' ? [layers[1]]
            : layers.filter(l => !l.silent);
        const drawn = kind === 'orbits' ? kept[0].x.map((x, i) => 1 - x ** 2 - kept[0].y[i] ** 2)
            : [({DRAWN})(kept), kind === 'scatter' ? kept[0].x : []].flat();
        const cells = [...figure.querySelectorAll('td[data-v]')].map(c => Number(c.dataset.v));
        return [kind, drawn.filter(v => v !== null), cells];
    }})""")
    assert len(found) > 30
    for kind, drawn, cells in found:
        assert drawn, kind
        if kind == "orbits":  # the squared distance from the centre is 1 minus a cosine
            assert all(min(abs(v - c) for c in cells) < 1e-9 for v in drawn)
        else:
            assert set(drawn) <= set(cells), kind


def test_charts_have_text_alternatives_with_numbers(opened):
    for plot in opened.page.locator("[data-chart] .plot").all():
        label = plot.get_attribute("aria-label")
        assert "from" in label and "to" in label and label.endswith("has all numbers.")


def test_bands_are_the_controls_of_the_data(opened, report_data):
    model = report_data.to_json()["models"][0]
    drawn = opened.page.evaluate(
        "document.querySelectorAll('[data-chart=directions] .plot')[1].panel.layers"
        ".map(l => [l.label, l.low ?? l.y, l.high ?? l.y])"
    )
    assert [name for name, *_ in drawn] == ["untrained twin", "shuffled", "model"]
    twin = model["bands"]["twin"]["directions"]["attention"]
    assert drawn[0][1] == [low for low, _ in twin]
    assert drawn[0][2] == [high for _, high in twin]
    assert any(low < high for low, high in twin)


def test_models_of_one_report_share_their_axes(opened):
    ranges = opened.page.evaluate(
        "[...document.querySelectorAll('[data-chart=layers] .plot')].map(p => p.panel.y_range)"
    )
    assert len(ranges) == 4  # directions and raw distances of two models
    assert ranges[0] == ranges[2] is not None
    assert ranges[1] == ranges[3] is not None


def test_pointing_at_a_mark_shows_its_numbers(visit, page_file, report_data):
    one = visit(page_file)
    plot = one.page.locator("[data-chart=layers] .plot").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    mark = one.page.evaluate(
        "document.querySelector('[data-chart=layers] .plot').targets[1].at"  # measured, layer 1
    )
    one.page.mouse.move(box["x"] + mark[0], box["y"] + mark[1])
    layer = report_data.models[0].trace.layers[1]
    shown = plot.locator(".tip").inner_text().split("\n")
    assert shown[:2] == ["measured", "layer 1"]
    value = float(shown[2].replace("−", "-"))
    assert abs(value / layer.directions.judged - 1) < 0.01
    one.page.mouse.move(box["x"] - 5, box["y"] - 5)
    assert not plot.locator(".tip").is_visible()


def test_a_slice_read_at_one_layer_only_is_drawn_at_that_layer(opened, report_data):
    drawn = opened.page.evaluate(
        "document.querySelector('[data-chart=identity] .plot').panel.layers[0].values"
    )
    variants = report_data.to_json()["models"][0]["audit"]["slices"]["variants"]
    columns = [layer["layer"] for layer in variants[0]["layers"]]
    assert any(len(variant["layers"]) < len(columns) for variant in variants)
    for row, variant in zip(drawn, variants, strict=True):
        known = {layer["layer"]: layer["identity"]["score"] for layer in variant["layers"]}
        assert row == [known.get(column) for column in columns]


# --- heads ---


def test_a_click_opens_a_heads_numbers_spectra_and_certificates(visit, page_file, report_data):
    one = visit(page_file)
    model = report_data.to_json()["models"][0]
    flow = model["flows"][0]
    layer, number = flow["layer"], flow["head"]
    head = model["scan"]["layers"][layer]["heads"][number]
    buttons = one.page.locator(".heads").first.locator(".head")
    assert buttons.count() == 12
    panel = one.page.locator("#detail")
    buttons.nth(4 * layer + number).click()
    assert f"layer {layer}, head {number}" in panel.locator("h4").inner_text()
    shown = [float(c.get_attribute("data-v")) for c in panel.locator("[data-v]").all()]
    assert {head["expansion_index"], head["rates"]["max"]} <= set(shown)
    for certificate in report_data.models[0].scan.layers[layer].heads[number].certificates:
        assert certificate.why in panel.text_content()
    spectra = next(s for s in model["spectra"] if (s["layer"], s["head"]) == (layer, number))

    def drawn(name, axis):
        return one.page.evaluate(
            f"document.querySelector('#detail .{name} .plot').panel.layers.at(-1).{axis}"
        )

    assert drawn("rates", "y") == spectra["rates"]
    assert drawn("plane", "x") == [real for real, _ in spectra["eigenvalues"]]
    assert drawn("offsets", "y") == spectra["offset_index"]
    panel.locator(".rates summary").click()
    one.wait("document.querySelector('#detail .rates td[data-v]')")  # made when it is opened
    cells = panel.locator(".rates td[data-v]").all()
    assert set(spectra["rates"]) <= {float(c.get_attribute("data-v")) for c in cells}
    _plays_its_flow(one, panel, flow)
    assert one.complaints == []


def _plays_its_flow(one, panel, flow):
    places = "document.querySelector('#detail .flow .plot').panel.layers[1].x"
    last = [x for x, _ in flow["positions"][-1]]
    assert one.page.evaluate(places) == last
    panel.locator(".flow .player button").click()
    one.wait(f"document.querySelector('#detail .flow .plot').panel.layers[1].x[0] !== {last[0]!r}")
    one.wait("document.querySelector('#detail .flow button').textContent === 'Replay'")
    assert one.page.evaluate(places) == last


def test_keys_walk_over_the_map_and_another_reading_changes_it(visit, page_file, report_data):
    one = visit(page_file)
    part = one.page.locator(".heads").first
    part.locator(".head").first.focus()
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        one.page.keyboard.press(key)
    assert "layer 1, head 1" in one.page.locator("#detail h4").inner_text()
    model = report_data.models[0]
    traced = model.trace.layers[0].directions.heads[0]
    weights = model.scan.layers[0].heads[0].expansion_index
    shown = {"measured": traced.share, "predicted": traced.predicted[DEFAULT_CLOSURE],
             "weights": weights}  # fmt: skip
    for reading, value in shown.items():
        part.locator(f'input[value="{reading}"]').check()
        assert part.locator(".head").first.inner_text() == short(value), reading
    one.page.locator(".heads").nth(1).locator(".head").first.click()
    assert report_data.models[1].name in one.page.locator("#detail h4").inner_text()
    assert one.complaints == []


def test_the_map_says_where_signs_disagree(visit, page_file, report_data):
    one = visit(page_file)
    part = one.page.locator(".heads").first
    part.locator('input[value="disagree"]').check()
    effects = head_effects(report_data.models[0])
    clear = [effect for effect in effects if abs(effect.traced.judged) > 0.01]
    counts = [sum(name in e.disagrees for e in clear) for name in ("predicted", "weights")]
    said = part.locator(".reading").inner_text()
    numbers = [int(text) for text in re.findall(r"\d+", said)]
    assert numbers == [len(clear), *counts]
    marks = [button.inner_text() for button in part.locator(".head").all()]
    wanted = ["·" if e not in clear else
              "".join({"predicted": "P", "weights": "W"}[n] for n in e.disagrees) or "="
              for e in effects]  # fmt: skip
    assert marks == wanted


# --- orbits ---


def _drawn_tokens(one, axis="x"):
    """Return where the tokens of the first model are drawn."""
    points = "document.querySelector('.orbits .plot').panel.layers.find(l => l.texts)"
    return one.page.evaluate(f"{points}.{axis}")


def test_orbits_play_once_by_themselves_and_move_with_the_slider(visit, page_file, report_data):
    one = visit(page_file)
    part = one.page.locator(".orbits").first
    orbits = report_data.models[0].orbits
    one.wait("document.querySelector('.orbits button').textContent === 'Replay'")
    wanted = [polar(*pair)[0] for pair in zip(orbits.shared[-1], orbits.bearings[-1], strict=True)]
    assert _drawn_tokens(one) == pytest.approx(wanted, abs=1e-12)
    told = part.locator("output").inner_text()
    assert told == f"{orbits.depths[-1]}: C {orbits.cosine[-1]:.2f} in this context"
    part.locator("button").first.click()
    one.wait("document.querySelector('.orbits button').textContent === 'Pause'")
    one.wait("document.querySelector('.orbits button').textContent === 'Replay'")
    part.locator("input[type=range]").fill("1")
    wanted = [polar(*pair)[0] for pair in zip(orbits.shared[1], orbits.bearings[1], strict=True)]
    assert _drawn_tokens(one) == pytest.approx(wanted, abs=1e-12)
    assert one.page.locator(".heads").first.locator("tr.now th").inner_text() == "0"
    assert _drawn_tokens(one, "texts")[3].startswith(f"3: “{orbits.tokens[3]}”")
    assert one.complaints == []


def test_orbits_turn_in_three_directions(visit, page_file, report_data):
    one = visit(page_file)
    part = one.page.locator(".orbits").first
    orbits = report_data.models[0].orbits
    part.locator("input[type=range]").fill("1")
    part.locator('input[type=radio][value="2"]').check()
    flat = [p[0] for p in orbits.positions[1]]
    assert _drawn_tokens(one) == flat
    part.locator('input[type=radio][value="3"]').check()
    first = _drawn_tokens(one)
    assert first != flat
    part.locator(".plot").focus()
    one.page.keyboard.press("ArrowRight")
    assert _drawn_tokens(one) != first
    part.locator('input[type=radio][value="shared"]').check()
    part.locator("input[type=checkbox]").check()
    written = part.locator(".plot .marks text").all_text_contents()
    assert orbits.tokens[3].strip()[:13] in " ".join(written)
    assert one.complaints == []


# --- theme, width, paper, motion ---


def test_narrow_and_dark_it_fits_and_changes_its_colours(visit, opened, page_file):
    one = visit(page_file, width=390, scheme="dark")
    one.drawn_whole()
    assert one.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert one.page.evaluate(WIDEST) <= 390
    assert max(one.page.evaluate(BEYOND)) <= 1
    colours = f"[getComputedStyle(document.body).backgroundColor, {INK}]"
    for light, dark in zip(opened.page.evaluate(colours), one.page.evaluate(colours), strict=True):
        assert light != dark
    one.page.set_viewport_size({"width": 1000, "height": 900})
    one.wait("document.querySelector('[data-chart=orbits] .plot svg').clientWidth > 390")
    assert one.complaints == []


def test_paper_has_every_chart_in_light_colours_and_within_its_width(visit, page_file):
    one = visit(page_file, scheme="dark")
    one.page.evaluate(f"""addEventListener('beforeprint', () => {{ window.printed = {{
        drawn: [...document.querySelectorAll('[data-chart] .plot')].every(p => p.panel),
        beyond: {BEYOND}, widest: {WIDEST}, paper: getComputedStyle(document.body).backgroundColor,
        ink: {INK} }}; }})""")
    one.drawn_whole()
    before = one.page.evaluate(WIDEST)
    paper = one.page.pdf(format="A4")
    assert paper.startswith(b"%PDF")
    printed = one.page.evaluate("window.printed")
    assert printed["drawn"]
    assert printed["widest"] <= 700
    assert max(printed["beyond"]) <= 1
    assert printed["paper"] == "rgb(255, 255, 255)"
    assert printed["ink"] == "rgb(34, 38, 46)"
    assert not one.page.evaluate("document.documentElement.classList.contains('printing')")
    one.wait(f"Math.abs({WIDEST} - {before}) < 2")  # the screen has its own size again
    assert one.complaints == []


def test_without_motion_and_without_an_observer_all_is_drawn(browser, page_file):
    context = browser.new_context(reduced_motion="reduce", offline=True)
    try:
        page = context.new_page()
        page.add_init_script(
            "delete window.IntersectionObserver; delete window.requestIdleCallback"
        )
        page.goto(page_file.as_uri())
        for _ in range(400):
            if page.evaluate("document.documentElement.dataset.drawn === 'all'"):
                break
            page.wait_for_timeout(50)
        drawn = "[...document.querySelectorAll('[data-chart] .plot')].every(p => p.panel)"
        assert page.evaluate(drawn)
    finally:
        context.close()


# --- hostile strings, and size ---


def test_hostile_tokens_do_not_run(visit, hostile_report, tmp_path):
    file = hostile_report.save(tmp_path / "hostile.html")
    one = visit(file)
    one.drawn_whole()
    one.page.locator(".orbits input[type=checkbox]").first.check()  # tokens as text
    plot = one.page.locator(".orbits .plot").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    one.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert one.page.title() != "run"
    assert one.page.locator("img[src=x]").count() == 0
    assert one.complaints == []
    inside = one.page.evaluate("document.getElementById('report-data').textContent")
    assert json.loads(inside) == hostile_report.to_json()


def test_thirty_layers_stay_small_and_paint_soon(visit, deep_report, tmp_path):
    file = deep_report.save(tmp_path / "deep.html")
    assert file.stat().st_size <= 3_500_000
    one = visit(file)
    assert one.page.evaluate(FIRST_PAINT) < 2000
    assert one.page.locator(".head").count() == 30 * 32
    one.page.locator(".head").nth(500).click()
    assert "Layer 15, head 20" in one.page.locator("#detail h4").inner_text()
    assert one.complaints == []


def test_a_report_shows_itself_in_a_notebook(browser, page_file, tmp_path):
    made = Report.load(page_file)
    file = tmp_path / "notebook.html"
    file.write_text(f"<!DOCTYPE html><body>{made._repr_html_()}", encoding="utf-8")
    context = browser.new_context(offline=True)
    try:
        page = context.new_page()
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(file.as_uri())
        inside = page.frame_locator("iframe")
        inside.locator("#detail h4").wait_for(timeout=60000)
        assert inside.locator("h1").inner_text() == "Orbits side by side"
        inside.locator(".head").nth(6).click()
        assert "layer 1, head 2" in inside.locator("#detail h4").inner_text()
        assert errors == []
    finally:
        context.close()
