"""The page in a real browser: offline, silent, clickable, readable at any width."""

import json

import pytest

from orbitlens.report.data import SECTIONS
from orbitlens.report.page import render


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_it_opens_offline_without_a_request_or_a_complaint(visit, page_file, width, scheme):
    one = visit(page_file, width=width, scheme=scheme)
    one.drawn_whole()
    assert one.requests == [page_file.as_uri()]
    assert one.complaints == []
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_page_that_asks_for_something_would_be_noticed(visit, page_file, tmp_path):
    file = tmp_path / "asks.html"
    text = page_file.read_text(encoding="utf-8")
    file.write_text(text.replace("<main>", '<main><img src="https://example.invalid/x.png">', 1))
    one = visit(file)
    assert one.complaints  # the page's own policy forbids it


def test_every_section_is_there_with_its_charts(visit, page_file):
    one = visit(page_file)
    one.drawn_whole()
    for key, name in SECTIONS.items():
        assert one.page.locator(f"#{key} h2").inner_text() == name
    kinds = {f.get_attribute("data-chart") for f in one.page.locator("[data-chart]").all()}
    assert kinds == {"parts", "metrics", "layers", "scatter", "orbits", "defects", "swaps",
                     "neighbours", "identity", "places"}  # fmt: skip


def test_a_click_and_a_key_open_a_heads_numbers_and_certificates(visit, page_file, report_data):
    one = visit(page_file)
    buttons = one.page.locator(".heads").first.locator(".head")
    assert buttons.count() == 12
    head = report_data.to_json()["models"][0]["scan"]["layers"][1]["heads"][2]
    button = buttons.nth(1 * 4 + 2)
    panel = one.page.locator("#detail-0")
    button.click()
    assert "Layer 1, head 2" in panel.locator("h4").inner_text()
    shown = [float(c.get_attribute("data-v")) for c in panel.locator("[data-v]").all()]
    assert head["expansion_index"] in shown
    assert head["rates"]["max"] in shown
    for certificate in head["certificates"]:
        assert certificate["why"] in panel.text_content()
    buttons.nth(0).focus()
    one.page.keyboard.press("Enter")
    assert "Layer 0, head 0" in panel.locator("h4").inner_text()
    assert one.complaints == []


def test_another_reading_changes_the_map(visit, page_file, report_data):
    one = visit(page_file)
    part = one.page.locator(".heads").first
    head = report_data.to_json()["models"][0]["scan"]["layers"][0]["heads"][0]
    part.locator('input[value="data"]').check()
    wanted = f"{head['data_aware']['expansion_index']:+.2f}".replace("-", "−")
    assert part.locator(".head").first.inner_text() == wanted


def test_orbits_move_with_the_slider_and_play_to_the_end(visit, page_file, report_data):
    one = visit(page_file)
    part = one.page.locator(".orbits").first
    part.scroll_into_view_if_needed()
    one.wait("document.querySelector('.orbits .plot').data")
    orbits = report_data.to_json()["models"][0]["orbits"]

    def drawn():
        return one.page.evaluate("[...document.querySelector('.orbits .plot').data[1].x]")

    assert drawn() == [p[0] for p in orbits["positions"][-1]]
    part.locator("button").click()
    one.wait("document.querySelector('.orbits output').textContent === 'input'")
    one.wait("document.querySelector('.orbits button').textContent === 'Replay'")
    assert part.locator("output").inner_text() == orbits["depths"][-1]
    part.locator("input[type=range]").fill("1")
    one.wait(
        f"document.querySelector('.orbits .plot').data[1].x[0] === {orbits['positions'][1][0][0]!r}"
    )
    assert one.complaints == []


def test_hostile_tokens_do_not_run(visit, hostile_json, tmp_path):
    file = tmp_path / "hostile.html"
    file.write_text(render(hostile_json), encoding="utf-8")
    one = visit(file)
    one.drawn_whole()
    plot = one.page.locator(".orbits .plot").first
    box = plot.bounding_box()
    one.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert one.page.title() != "run"
    assert one.page.locator("img[src=x]").count() == 0
    assert one.complaints == []
    inside = one.page.evaluate("document.getElementById('report-data').textContent")
    assert json.loads(inside) == hostile_json


def test_charts_follow_the_readers_theme(visit, page_file):
    colours = {}
    for scheme in ("light", "dark"):
        one = visit(page_file, scheme=scheme)
        one.drawn_whole()
        colours[scheme] = one.page.evaluate(
            "[getComputedStyle(document.body).backgroundColor,"
            " document.querySelector('[data-chart=layers] .plot').data[0].line.color]"
        )
    assert colours["light"][0] != colours["dark"][0]
    assert colours["light"][1] != colours["dark"][1]


def test_a_slice_read_at_one_layer_only_is_drawn_at_that_layer(visit, page_file, report_data):
    one = visit(page_file)
    one.drawn_whole()
    drawn = one.page.evaluate("document.querySelector('[data-chart=identity] .plot').data[0].z")
    variants = report_data.to_json()["models"][0]["audit"]["slices"]["variants"]
    columns = [layer["layer"] for layer in variants[0]["layers"]]
    assert any(len(variant["layers"]) < len(columns) for variant in variants)
    for row, variant in zip(drawn, variants, strict=True):
        known = {layer["layer"]: layer["identity"]["score"] for layer in variant["layers"]}
        assert row == [known.get(column) for column in columns]
