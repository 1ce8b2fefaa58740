"""The first screen in a browser: it fits, selection is linked, tables sort, charts download."""

import csv
import io
import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from orbitlens.reporting.motion import motions
from orbitlens.reporting.sections.compare import attention_sums, comparison, cosines

# The text of numbers that stand on more than one line.
BROKEN = """[...document.querySelectorAll('[data-v], .answer b, .player output')].filter(e => {
    const range = document.createRange();
    range.selectNodeContents(e);
    const tops = [...range.getClientRects()].filter(r => r.width).map(r => Math.round(r.top));
    return /^[+−]?[\\d.,e−]+$/.test(e.textContent) && new Set(tops).size > 1;
}).map(e => e.textContent)"""
# Pairs of labels of one chart's axes that lie on each other.
COLLIDING = """[...document.querySelectorAll('.plot svg')].flatMap(svg => {
    const texts = [...svg.querySelectorAll(':scope > g[aria-hidden] text')].map(t => [t.textContent,
        t.getBoundingClientRect()]);
    return texts.flatMap(([a, r], i) => texts.slice(i + 1).filter(([, s]) => r.left + 1 < s.right
        && s.left + 1 < r.right && r.top + 2 < s.bottom && s.top + 2 < r.bottom)
        .map(([b]) => `${a} | ${b}`));
})"""


@pytest.fixture(scope="module")
def single(report_data, tmp_path_factory):
    """Return the page of one model."""
    one = replace(report_data, models=report_data.models[:1])
    return one.save(tmp_path_factory.mktemp("single") / "report.html")


def chosen(one):
    """Return what each linked view says is chosen."""
    return one.page.evaluate("""({
        map: document.querySelector('.head[aria-pressed=true]').dataset.head,
        detail: document.querySelector('#detail h4').textContent.match(/\\d+/g)
            .slice(0, 2).join('.'),
        rows: [...new Set([...document.querySelectorAll('tr.chosen')].map(r => r.dataset.head))],
        scatter: document.querySelector('[data-chart=scatter] .plot').panel.chosen })""")


def test_the_first_screen_holds_the_whole_story(visit, single):
    one = visit(single, width=1440)
    assert (
        one.page.evaluate(
            "Math.max(...[...document.querySelectorAll('.answer')].map(e => "
            "e.getBoundingClientRect().bottom)) + scrollY"
        )
        <= 900
    )
    for part in (".headline", ".orbits .plot svg", ".heads .head", ".answer .sure"):
        assert one.page.locator(part).first.is_visible(), part
    assert one.page.locator(".answer").count() == 3
    readings = [e.get_attribute("value") for e in one.page.locator(".heads input").all()]
    assert readings == ["measured", "predicted", "weights", "disagree"]
    assert one.page.locator(".heads input:checked").get_attribute("value") == "measured"


def test_the_address_chooses_a_head_and_follows_the_choice(visit, single):
    one = visit(single)
    one.page.goto(single.as_uri() + "#head=2.3")
    one.page.reload()
    one.wait("document.documentElement.dataset.ready === 'yes'")
    everywhere = {"map": "2.3", "detail": "2.3", "rows": ["2.3"], "scatter": "2.3"}
    assert chosen(one) == everywhere
    assert one.page.locator(".orbits output").inner_text().startswith("after layer 2:")
    one.page.evaluate("location.hash = '#head=0.1'")
    one.wait("document.querySelector('.head[aria-pressed=true]').dataset.head === '0.1'")
    assert chosen(one)["scatter"] == "0.1"
    one.page.locator(".head").nth(6).click()
    assert one.page.url.endswith("#head=1.2")
    assert chosen(one) == {"map": "1.2", "detail": "1.2", "rows": ["1.2"], "scatter": "1.2"}
    assert one.page.locator(".orbits output").inner_text().startswith("after layer 1:")
    one.page.evaluate("location.hash = '#head=9.9'")  # there is none: nothing happens
    one.page.evaluate("location.hash = '#head=%22%3E%3Cscript%3E'")
    one.page.wait_for_timeout(100)
    assert chosen(one)["map"] == "1.2"
    assert one.complaints == []


def test_a_row_and_a_mark_choose_their_head(visit, single):
    one = visit(single)
    one.page.locator("#story summary", has_text="All heads").click()
    row = one.page.locator('table[data-table=heads] tr[data-head="1.3"]')
    row.click()
    assert chosen(one)["map"] == "1.3"
    one.page.locator('table[data-table=heads] tr[data-head="0.2"]').focus()
    one.page.keyboard.press("Enter")
    assert chosen(one)["scatter"] == "0.2"
    plot = one.page.locator("[data-chart=scatter] .plot").first
    plot.scroll_into_view_if_needed()
    targets = one.page.evaluate(
        "document.querySelector('[data-chart=scatter] .plot').targets.map(t => [t.key, ...t.at])"
    )
    key, x, y = max(targets, key=lambda t: min(_gap(t, s) for s in targets if s is not t))
    box = plot.bounding_box()
    one.page.mouse.click(box["x"] + x, box["y"] + y)
    assert chosen(one)["map"] == key
    assert one.complaints == []


def _gap(one, other):
    return (one[1] - other[1]) ** 2 + (one[2] - other[2]) ** 2


def test_tables_sort_by_click_and_by_key(visit, single):
    one = visit(single)
    one.page.locator("#story summary", has_text="All heads").click()
    column = "[...document.querySelectorAll('table[data-table=heads] tbody tr')].map(r => "
    values = column + "Number(r.cells[2].dataset.v))"
    before = one.page.evaluate(values)
    heading = one.page.locator("table[data-table=heads] thead th").nth(2)
    heading.locator("button").click()
    assert one.page.evaluate(values) == sorted(before)
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.locator("button").focus()
    one.page.keyboard.press("Enter")
    assert one.page.evaluate(values) == sorted(before, reverse=True)
    one.page.locator("table[data-table=heads] thead th button").first.click()
    names = one.page.evaluate(column + "r.cells[0].textContent)")
    assert names == sorted(names, key=lambda n: [int(k) for k in n.split()[1].split(".")])
    assert one.complaints == []


def test_every_chart_downloads_as_svg_and_csv(visit, single):
    one = visit(single)
    one.drawn_whole()
    one.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    one.wait("[...document.querySelectorAll('figure .plot')].every(p => p.querySelector('svg'))")
    figures = one.page.locator("figure")
    assert figures.count() > 15
    assert one.page.locator("figure .files").count() == figures.count()
    for kind in ("waterfall", "orbits", "scatter"):
        figure = one.page.locator(f"[data-chart={kind}]").first
        files = {}
        for name in ("SVG", "CSV"):
            with one.page.expect_download() as waiting:
                figure.locator(".files button", has_text=name).click()
            files[name] = waiting.value.path().read_text(encoding="utf-8")
            assert waiting.value.suggested_filename.endswith(name.lower())
        drawing = ElementTree.fromstring(files["SVG"])
        assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(--" not in files["SVG"]  # stands alone: colours are written out
        rows = list(csv.reader(io.StringIO(files["CSV"])))
        shown = set(figure.locator("table").evaluate(
            "t => [...t.querySelectorAll('td[data-v]')].map(c => Number(c.dataset.v))"
        ))  # fmt: skip
        assert shown <= {float(v) for row in rows for v in row if _is_number(v)}
    assert one.complaints == []


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_labels_do_not_collide_and_numbers_stay_whole(visit, page_file, width, scheme):
    one = visit(page_file, width=width, scheme=scheme)
    one.drawn_whole()
    one.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    one.wait("[...document.querySelectorAll('figure .plot')].every(p => p.querySelector('svg'))")
    assert one.page.evaluate(COLLIDING) == []
    assert one.page.evaluate(BROKEN) == []
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    assert one.complaints == []


def test_a_number_that_breaks_and_labels_that_collide_would_be_noticed(visit, single):
    one = visit(single, width=390)
    one.drawn_whole()
    one.page.evaluate("""{ const cell = document.querySelector('.totals td[data-v]');
        cell.style.cssText = 'max-width:8px;word-break:break-all;white-space:normal';
        const labels = document.querySelectorAll('[data-chart=waterfall] g[aria-hidden] text');
        labels[1].setAttribute('y', labels[0].getAttribute('y')); }""")
    assert one.page.evaluate(BROKEN) != []
    assert one.page.evaluate(COLLIDING) != []


# --- several models ---


def test_models_are_overlaid_with_a_legend_and_their_differences(opened, report_data):
    drawn = opened.page.evaluate(
        "[...document.querySelectorAll('[data-chart=compared] .plot')].map(p => "
        "p.panel.layers.map(l => [l.label, l.y]))"
    )
    names = [model.name for model in report_data.models]
    for curves, values in zip(drawn, (cosines, attention_sums), strict=True):
        assert [name for name, _ in curves] == names
        for (_, y), model in zip(curves, report_data.models, strict=True):
            assert y == values(motions(model.trace)[-1], model)
    legends = opened.page.locator("[data-chart=compared] .keys").all()
    assert [legend.locator("span").all_inner_texts() for legend in legends] == [names, names]
    table = comparison(report_data.models)
    assert table.columns[-1] == f"{names[1]} − {names[0]}"
    for _, first, second, difference in table.rows:
        if isinstance(first, float) and isinstance(second, float):
            assert difference == pytest.approx(second - first)


def test_a_head_of_the_second_model_is_in_the_address(visit, page_file, report_data):
    one = visit(page_file)
    one.page.locator(".heads").nth(1).locator(".head").nth(1).click()
    assert one.page.url.endswith("#head=0.1&model=1")
    assert report_data.models[1].name in one.page.locator("#detail h4").inner_text()
    pressed = one.page.locator(".head[aria-pressed=true]")
    assert pressed.count() == 1
    assert json.loads(one.page.evaluate("JSON.stringify(location.hash)")) == "#head=0.1&model=1"
