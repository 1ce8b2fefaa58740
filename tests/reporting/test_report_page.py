"""The page in a real browser: offline, silent, clickable, printable, readable at any width."""

import json

import orbitlens
from orbitlens.reporting.compact import reason
from orbitlens.reporting.data import SECTIONS
from orbitlens.reporting.page import render

FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
# How far each drawing goes beyond the box it belongs to, and how wide the widest is.
BEYOND = """[...document.querySelectorAll('.js-plotly-plot')].map(p =>
    p.querySelector('.main-svg').getBoundingClientRect().width - p.clientWidth)"""
WIDEST = """Math.max(...[...document.querySelectorAll('.main-svg')].map(s =>
    s.getBoundingClientRect().width))"""


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
    for key, name in SECTIONS.items():
        assert opened.page.locator(f"#{key} h2").inner_text() == name
        link = opened.page.locator(f"#{key} .lead a").first.get_attribute("href")
        assert opened.page.locator(f"dt{link}").count() == 1  # its definition
    kinds = {f.get_attribute("data-chart") for f in opened.page.locator("[data-chart]").all()}
    assert kinds == {"parts", "metrics", "layers", "scatter", "orbits", "defects", "swaps",
                     "neighbours", "identity", "places"}  # fmt: skip


def test_the_table_behind_every_chart_has_all_that_is_drawn(opened):
    found = opened.page.evaluate("""[...document.querySelectorAll('[data-chart]')].map(figure => {
        const data = figure.querySelector('.plot').data, kind = figure.dataset.chart;
        const kept = kind === 'scatter' || kind === 'orbits' ? [data[1]] : data;
        const drawn = kept.flatMap(t => [t.z ?? t.y, kind === 'scatter' ? t.x : []].flat(2));
        const cells = [...figure.querySelectorAll('td[data-v]')].map(c => Number(c.dataset.v));
        return [kind, drawn.filter(v => v !== null), cells];
    })""")
    assert len(found) > 30
    for kind, drawn, cells in found:
        assert drawn, kind
        assert set(drawn) <= set(cells), kind


def test_charts_have_text_alternatives_with_numbers(opened):
    for plot in opened.page.locator("[data-chart] .plot").all():
        label = plot.get_attribute("aria-label")
        assert "from" in label and "to" in label and label.endswith("has all numbers.")


def test_bands_are_the_controls_of_the_data(opened, report_data):
    model = report_data.to_json()["models"][0]
    drawn = opened.page.evaluate(
        "document.querySelector('[data-chart=parts]').querySelector('.plot').data"
        ".map(t => [t.name, [...t.y]])"
    )
    assert [name for name, _ in drawn] == [
        "untrained twin", "untrained twin", "shuffled", "shuffled", "model",
    ]  # fmt: skip
    twin = model["bands"]["twin"]["parts"]["attention"]
    assert drawn[0][1] == [low for low, _ in twin]
    assert drawn[1][1] == [high for _, high in twin]
    assert any(low < high for low, high in twin)


def test_models_of_one_report_share_their_axes(opened):
    ranges = opened.page.evaluate(
        "[...document.querySelectorAll('[data-chart=layers] .plot')].map(p => p.layout.yaxis.range)"
    )
    assert len(ranges) == 2
    assert ranges[0] == ranges[1]


def test_a_slice_read_at_one_layer_only_is_drawn_at_that_layer(opened, report_data):
    drawn = opened.page.evaluate("document.querySelector('[data-chart=identity] .plot').data[0].z")
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
    for certificate in head["certificates"]:
        assert reason(model, certificate) in panel.text_content()
    spectra = next(s for s in model["spectra"] if (s["layer"], s["head"]) == (layer, number))

    def drawn(name, axis):
        return one.page.evaluate(
            f"[...document.querySelector('#detail .{name} .plot').data[0].{axis}]"
        )

    assert drawn("rates", "y") == spectra["rates"]
    assert drawn("plane", "x") == [real for real, _ in spectra["eigenvalues"]]
    assert drawn("offsets", "y") == spectra["offset_index"]
    panel.locator(".rates summary").click()
    cells = panel.locator(".rates td[data-v]").all()
    assert set(spectra["rates"]) <= {float(c.get_attribute("data-v")) for c in cells}
    _plays_its_flow(one, panel, flow)
    assert one.complaints == []


def _plays_its_flow(one, panel, flow):
    places = "[...document.querySelector('#detail .flow .plot').data[1].x]"
    last = [x for x, _ in flow["positions"][-1]]
    assert one.page.evaluate(places) == last
    panel.locator(".flow button").click()
    one.wait(f"document.querySelector('#detail .flow .plot').data[1].x[0] !== {last[0]!r}")
    one.wait("document.querySelector('#detail .flow button').textContent === 'Replay'")
    assert one.page.evaluate(places) == last


def test_keys_walk_over_the_map_and_another_reading_changes_it(visit, page_file, report_data):
    one = visit(page_file)
    part = one.page.locator(".heads").first
    part.locator(".head").first.focus()
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        one.page.keyboard.press(key)
    assert "layer 1, head 1" in one.page.locator("#detail h4").inner_text()
    head = report_data.to_json()["models"][0]["scan"]["layers"][0]["heads"][0]
    part.locator('input[value="data"]').check()
    wanted = f"{head['data_aware']['expansion_index']:+.2f}".replace("-", "−")
    assert part.locator(".head").first.inner_text() == wanted
    one.page.locator(".heads").nth(1).locator(".head").first.click()
    assert report_data.models[1].name in one.page.locator("#detail h4").inner_text()
    assert one.complaints == []


# --- orbits ---


def test_orbits_move_with_the_slider_play_to_the_end_and_turn(visit, page_file, report_data):
    one = visit(page_file)
    part = one.page.locator(".orbits").first
    one.wait("document.querySelector('.orbits .plot').data")
    orbits = report_data.to_json()["models"][0]["orbits"]

    def drawn():
        return one.page.evaluate("[...document.querySelector('.orbits .plot').data[1].x]")

    assert drawn() == [p[0] for p in orbits["positions"][-1]]
    part.locator("button").click()
    one.wait("document.querySelector('.orbits button').textContent === 'Pause'")
    end = orbits["positions"][-1][0][0]
    one.wait(f"document.querySelector('.orbits .plot').data[1].x[0] !== {end!r}")
    one.wait("document.querySelector('.orbits button').textContent === 'Replay'")
    assert part.locator("output").inner_text() == orbits["depths"][-1]
    part.locator("input[type=range]").fill("1")
    assert drawn() == [p[0] for p in orbits["positions"][1]]
    hover = one.page.evaluate("document.querySelector('.orbits .plot').data[1].customdata[3]")
    assert hover == f"3: “{orbits['tokens'][3]}”"
    part.locator('input[type=radio][value="3"]').check()
    flat = [p[0] for p in orbits["positions"][1]]
    first = drawn()
    assert first != flat
    part.locator(".plot").focus()
    one.page.keyboard.press("ArrowRight")
    assert drawn() != first
    part.locator('input[type=radio][value="2"]').check()
    assert drawn() == flat
    part.locator("input[type=checkbox]").check()
    assert one.page.evaluate("document.querySelector('.orbits .plot').data[1].mode") == "text"
    assert one.complaints == []


# --- theme, width, paper, motion ---


def test_narrow_and_dark_it_fits_and_changes_its_colours(visit, opened, page_file):
    one = visit(page_file, width=390, scheme="dark")
    one.drawn_whole()
    assert one.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert one.page.evaluate(WIDEST) <= 390
    assert max(one.page.evaluate(BEYOND)) <= 1
    colours = "[getComputedStyle(document.body).backgroundColor, document.querySelector('[data-chart=layers] .plot').data[0].line.color]"  # noqa: E501
    for light, dark in zip(opened.page.evaluate(colours), one.page.evaluate(colours), strict=True):
        assert light != dark
    one.page.set_viewport_size({"width": 1000, "height": 900})
    one.wait("document.querySelector('[data-chart=orbits] .plot .main-svg').clientWidth > 390")
    assert one.complaints == []


def test_paper_has_every_chart_in_light_colours_and_within_its_width(visit, page_file):
    one = visit(page_file, scheme="dark")
    one.page.evaluate(f"""addEventListener('beforeprint', () => {{ window.printed = {{
        drawn: [...document.querySelectorAll('[data-chart] .plot')].every(p => p.data),
        beyond: {BEYOND}, widest: {WIDEST}, paper: getComputedStyle(document.body).backgroundColor,
        ink: document.querySelector('[data-chart=layers] .plot').data[0].line.color }}; }})""")
    one.drawn_whole()
    before = one.page.evaluate(WIDEST)
    paper = one.page.pdf(format="A4")
    assert paper.startswith(b"%PDF")
    printed = one.page.evaluate("window.printed")
    assert printed["drawn"]
    assert printed["widest"] <= 700
    assert max(printed["beyond"]) <= 1
    assert printed["paper"] == "rgb(255, 255, 255)"
    assert printed["ink"] == "#1d2430"
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
        drawn = "[...document.querySelectorAll('[data-chart] .plot')].every(p => p.data)"
        assert page.evaluate(drawn)
    finally:
        context.close()


# --- hostile strings, and size ---


def test_hostile_tokens_do_not_run(visit, hostile_json, tmp_path):
    file = tmp_path / "hostile.html"
    file.write_text(render(hostile_json), encoding="utf-8")
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
    assert json.loads(inside) == hostile_json


def test_thirty_layers_stay_small_and_paint_soon(visit, deep_json, tmp_path):
    file = tmp_path / "deep.html"
    file.write_text(render(deep_json), encoding="utf-8")
    assert file.stat().st_size <= 8_000_000
    one = visit(file)
    assert one.page.evaluate(FIRST_PAINT) < 2000
    assert one.page.locator(".head").count() == 30 * 32
    one.page.locator(".head").nth(500).click()
    assert "Layer 15, head 20" in one.page.locator("#detail h4").inner_text()
    assert one.complaints == []


def test_a_report_shows_itself_in_a_notebook(browser, page_file, tmp_path):
    made = orbitlens.reporting(page_file)
    file = tmp_path / "notebook.html"
    file.write_text(f"<!DOCTYPE html><body>{made._repr_html_()}", encoding="utf-8")
    context = browser.new_context(offline=True)
    try:
        page = context.new_page()
        said = []
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(file.as_uri())
        inside = page.frame_locator("iframe")
        inside.locator("#detail h4").wait_for(timeout=15000)
        assert inside.locator("h1").inner_text() == "Orbits side by side"
        assert said == []
    finally:
        context.close()
