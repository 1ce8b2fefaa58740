"""The room Flow in a browser: it moves, it can be held, and a link brings it back."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from live_explorer import HOSTILE, PIECES
from orbitlens.exploring.api import Explorer
from orbitlens.exploring.page_file import page_html, write_page

LARGEST = 3_000_000  # bytes of a frozen page
CENTRE = "(() => { const b = document.querySelector('%s').getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"  # noqa: E501


def test_the_picture_moves_by_itself_on_opening(visit, explorer_page):
    """How soon, benchmarks/explorer.py measures: here other work runs beside it."""
    opened = visit(explorer_page)
    opened.wait("rooms.flow.timing.work.length > 3")
    seen = opened.page.evaluate("document.querySelector('.transport output').textContent")
    opened.wait(f"document.querySelector('.transport output').textContent !== {json.dumps(seen)}")
    assert Path(explorer_page).stat().st_size < LARGEST


def test_what_is_computed_in_a_frame_ends_by_what_painting_leaves_of_it(visit, explorer_page):
    opened = visit(explorer_page, after="#n=8&until=2")
    opened.wait("rooms.flow.timing.paint.length > 3")
    assert opened.page.evaluate("Math.min(...rooms.flow.timing.paint)") > 0
    slice_when = "paint => { rooms.flow.timing.paint.fill(paint); return rooms.flow.left(2); }"
    quick, slow, hopeless = (opened.page.evaluate(slice_when, ms) for ms in (1, 8, 100))
    assert quick - slow == pytest.approx(7) and quick < 1000 / 60 - 3 and hopeless == 1


def test_a_dragged_token_changes_the_flow_and_the_address(visit, explorer_page):
    opened = visit(explorer_page, after="#n=12&until=3", reduced_motion="reduce")
    page, before = opened.page, opened.page.evaluate("rooms.flow.ending().cosine")
    canvas = page.locator(".stage-canvas")
    canvas.focus()
    for key in ("]", "ArrowRight", "ArrowUp"):
        canvas.press(key)
    opened.wait("location.hash.includes('moved=0%3A')")
    assert page.evaluate("rooms.flow.ending().cosine") != before
    page.get_by_role("button", name="Put tokens back").click()
    opened.wait("!location.hash.includes('moved')")
    assert page.evaluate("rooms.flow.ending().cosine") == pytest.approx(before, abs=1e-12)


def test_a_pointer_takes_hold_of_a_token(visit, explorer_page):
    opened = visit(explorer_page, after="#n=1&d=2&until=2&norm=free", reduced_motion="reduce")
    page = opened.page
    page.evaluate("rooms.flow.seek(0)")
    x, y = page.evaluate(CENTRE % ".stage-canvas")
    # A single free token is at the rim of its picture, in the direction of its coordinates.
    a, b = page.evaluate("JSON.parse(document.getElementById('explorer-data').textContent)"
                         ".flow.tokens[0].slice(0, 2)")  # fmt: skip
    half = page.evaluate("document.querySelector('.stage-canvas').clientHeight") * 0.45
    size = (a * a + b * b) ** 0.5
    at = x + half * 0.887 * a / size, y - half * 0.887 * b / size
    page.mouse.move(*at)
    page.mouse.down()
    page.mouse.move(at[0] + 40, at[1] + 30)
    page.mouse.up()
    opened.wait("location.hash.includes('moved=0%3A')")


def test_a_point_of_the_phase_map_starts_that_flow(visit, explorer_page):
    opened = visit(explorer_page, reduced_motion="reduce")
    x, y = opened.page.evaluate(CENTRE % ".phase canvas")
    opened.page.mouse.click(x, y)
    opened.wait("location.hash.includes('v=') && location.hash.includes('beta=')")
    beta = opened.page.evaluate("Number(new URLSearchParams(location.hash.slice(1)).get('beta'))")
    assert 1.1 < beta < 1.9  # half-way between 1/8 and 16, on the map's scale


def test_a_link_brings_a_head_back_with_its_ghost_and_its_certificates(visit, explorer_page):
    opened = visit(explorer_page, after="#system=head&layer=1&head=0", reduced_motion="reduce")
    page = opened.page
    assert page.locator(".picker [aria-pressed=true]").get_attribute("aria-label") == "Head 1.0"
    assert page.get_by_label("the model itself, as a ghost").is_checked()
    shown = page.locator(".badge").evaluate_all("all => all.map(one => one.className)")
    assert "badge holds" in shown and "badge fails" in shown
    page.get_by_label("full", exact=True).check(
        force=True
    )  # another mask: the library was not asked
    assert page.locator(".badge.unknown").count() == 7


def test_arrows_go_through_the_heads_of_the_model(visit, explorer_page):
    opened = visit(explorer_page, after="#system=head&layer=0&head=0", reduced_motion="reduce")
    opened.page.locator(".picker [tabindex='0']").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowDown"):
        opened.page.keyboard.press(key)  # the focus goes along
    opened.wait("location.hash.includes('layer=2') && location.hash.includes('head=1')")
    assert opened.page.locator(".picker [tabindex='0']").count() == 1


def test_nonsense_in_the_address_is_passed_over(visit, explorer_page):
    after = "#system=nope&beta=-1&n=1e9&d=7&moved=a:b;3:1,2;__proto__:1,1,1&layer=99&theme=x&room=y"
    opened = visit(explorer_page, after=after, reduced_motion="reduce")
    assert opened.page.locator("#room-flow").is_visible() and opened.complaints == []


@pytest.mark.parametrize(
    "after",
    ["room=model&cuts=nope,head 99.0&layer=-3&head=x", "room=order&order=3.1.1&cell=zz&which=no",
     "room=order&order=2.1.0", "room=order&text=another", "room=model&text=another"],
)  # fmt: skip
def test_a_link_that_does_not_fit_this_page_shows_its_sentence_as_it_is(
    visit, explorer_page, after
):
    opened = visit(explorer_page, after=f"#{after}", reduced_motion="reduce")
    room = after.split("&")[0].removeprefix("room=")
    opened.wait(f"rooms.{room}.reading?.tokens.length === 41")
    assert opened.page.locator(f"#room-{room} .status.fail").count() == 0
    assert opened.complaints == []


def test_charts_show_the_moment_that_was_chosen(visit, explorer_page):
    """Not one of them, in whose turn the only frame was drawn."""
    opened = visit(explorer_page, after="#n=8&until=2", reduced_motion="reduce")
    opened.page.evaluate("rooms.flow.map(false)")
    seen = []
    for moment in (0, 1):
        opened.page.evaluate(f"rooms.flow.seek({moment})")
        opened.page.wait_for_timeout(300)
        charts = opened.page.locator(".curves canvas")
        seen.append(charts.evaluate_all("all => all.map(one => one.toDataURL())"))
    assert all(first != second for first, second in zip(*seen, strict=True))


def test_reduced_motion_shows_the_end_and_stands_still(visit, explorer_page):
    opened = visit(explorer_page, after="#n=8&until=2", reduced_motion="reduce")
    clock = "document.querySelector('.transport output').textContent"
    assert opened.page.evaluate(clock) == "t = 2.0"
    assert opened.page.locator(".play").inner_text() == "Replay"


@pytest.mark.parametrize("room", ["flow", "model", "order"])
def test_a_phone_needs_no_scrolling_sideways(visit, explorer_page, room):
    after = f"#room={room}&n=8&until=2&tour=1"
    opened = visit(explorer_page, width=390, scheme="dark", after=after, reduced_motion="reduce")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_five_stops_each_a_state_with_a_paragraph(visit, explorer_page):
    opened = visit(explorer_page, reduced_motion="reduce")
    page, titles = opened.page, []
    page.get_by_role("button", name="Tour", exact=True).click()
    for stop in range(5):
        titles.append(page.locator(".tour h2").inner_text())
        assert len(page.locator(".tour .text").inner_text().split()) > 50
        opened.wait(f"location.hash.includes('tour={stop + 1}')")
        if page.locator("#room-order").is_visible():  # it speaks of another order, and shows one
            opened.wait("rooms.order.reading?.order.some((k, i) => k !== i)")
        page.locator(".tour .strong").click()
    assert titles == ["Why tokens cluster", "Why the first token is special", "What rotary changes",
                      "What order costs", "What a proof covers"]  # fmt: skip
    assert page.locator(".tour").is_hidden() and opened.complaints == []


def test_what_the_tour_says_of_badges_is_so(visit, explorer_page):
    """The stops name theorems that hold, or do not: the page must agree with its own words."""
    opened = visit(explorer_page)
    ask = """change => explorer.tour.map(({ state }) => state.room === 'flow'
      ? rooms.flow.certificates({ ...state, ...change }).filter(one => one.holds)
        .map(one => one.name) : [])"""
    plain = opened.page.evaluate(ask, {})
    assert "N3" in plain[1] and {"T1", "T2"} <= set(plain[4])
    assert "N6" not in plain[2] and "N4" in plain[2]
    assert {"N4", "N6"} <= set(opened.page.evaluate(ask, {"enc": "none"})[2])
    masked, doubled = (
        opened.page.evaluate(ask, one)[4] for one in ({"mask": "causal"}, {"heads": "2"})
    )
    assert "T1" not in masked and "T2" in masked and not {"T1", "T2"} & set(doubled)


def test_what_the_tour_says_of_rotary_is_so(visit, explorer_page):
    """With it almost all tokens end at a pole of the axis that is not turned; without it none."""
    ended = []
    for encoding in ("rotary", "none"):
        opened = visit(explorer_page, after=f"#n=64&beta=4&enc={encoding}")
        heights = opened.page.evaluate("rooms.flow.ending().tokens.filter((_, k) => k % 3 === 2)")
        ended.append(sum(abs(z) > 0.9 for z in heights))
    assert ended[0] >= 60 and ended[1] == 0


def test_a_slider_that_would_change_nothing_is_not_shown(visit, explorer_page):
    opened = visit(explorer_page, after="#enc=rotary", reduced_motion="reduce")
    assert opened.page.get_by_label("Rotary base").is_hidden()  # one plane: its speed is 1
    opened.page.evaluate("explorer.state.set({ system: 'head', enc: null })")
    assert opened.page.get_by_label("Rotary base").is_visible()


def test_pictures_and_numbers_can_be_saved(visit, explorer_page, tmp_path):
    opened = visit(explorer_page, after="#n=6&until=2", accept_downloads=True)
    for kind, begins in (("SVG", b"<svg"), ("PNG", b"\x89PNG"), ("CSV", b"time,mean_cosine")):
        with opened.page.expect_download() as waiting:
            opened.page.get_by_role("button", name=kind, exact=True).click()
        waiting.value.save_as(tmp_path / kind)
        assert (tmp_path / kind).read_bytes().startswith(begins)


def test_no_string_of_a_model_is_executed(visit, explorer, tmp_path):
    data, flow = explorer.data, explorer.data.flow
    choose = random.Random(0)
    names = tuple("".join(choose.choices(PIECES, k=6)) for _ in flow.model.tokens)
    hostile = replace(
        data,
        facts=replace(data.facts, name=HOSTILE, source=HOSTILE, family=HOSTILE),
        flow=replace(flow, model=replace(flow.model, tokens=names, why_missing=HOSTILE)),
        text="".join(PIECES) + HOSTILE,
    )
    file = write_page(hostile, tmp_path / "hostile.html")
    opened = visit(file, after="#system=head&tour=1", reduced_motion="reduce")
    assert opened.page.title() != "run" and opened.page.locator("img").count() == 0
    assert opened.requests == [file.as_uri()] and opened.complaints == []
    code = opened.page.evaluate("rooms.flow.python()")
    compile(code, "<copied>", "exec")
    assert [line for line in code.splitlines() if "alert" in line and "ol.load" not in line
            and "layer_tokens(" not in line] == []  # fmt: skip


def test_a_frozen_page_may_ask_nobody_and_a_live_one_its_server_alone(explorer):
    assert "connect-src" not in page_html(explorer.data)
    assert "connect-src 'self'\"" in page_html(explorer.data, live=True)


def test_a_notebook_shows_the_page_in_a_frame(explorer, visit, tmp_path):
    assert isinstance(explorer, Explorer) and "Explorer of orbit-nano-rotary" in repr(explorer)
    file = tmp_path / "notebook.html"
    script = "<script>document.documentElement.dataset.ready = 'yes'</script>"
    file.write_text(f"<!DOCTYPE html>{explorer._repr_html_()}{script}", encoding="ascii")
    opened = visit(file)
    frame = opened.page.frame_locator("iframe")
    frame.locator("#tab-order").click()
    assert frame.locator("#room-order").is_visible() and opened.complaints == []
