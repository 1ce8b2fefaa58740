"""The rooms Model and Order in a real browser, live and frozen, with what people may type."""

import random
import re

import pytest

from live_explorer import HOSTILE, MODEL_READY, ORDER_READY, PIECES, WORDS, Live
from orbitlens.exploring import model_data, sentence
from orbitlens.exploring.answers import Pace

ROOM = ".room:not([hidden])"
BOXES = f"""[...document.querySelectorAll('{ROOM} *')].filter(e =>
  e.getBoundingClientRect().right > innerWidth + 1
  && !e.closest('.token-scroll, .cut-board, .heads')).map(e => e.className || e.tagName)"""
UNNAMED = f"""[...document.querySelectorAll('{ROOM} :is(button, input, textarea, select, canvas)')]
  .filter(e => !(e.textContent.trim() || e.getAttribute('aria-label') || e.title
  || e.labels?.length)).map(e => e.outerHTML)"""
GRID = """(() => { const g = rooms.order.grid(...rooms.order.map.size());
  return [g.side, g.left, g.top]; })()"""


@pytest.fixture(scope="module")
def nano(browser):
    live = Live(browser, "orbit-nano-rotary")
    yield live
    live.close()


def test_a_sentence_is_read_cut_and_put_back(nano):
    nano.go("#room=model").wait(MODEL_READY)
    page = nano.page
    assert page.locator(".tokens-card .token").count() == len(WORDS)
    assert page.locator(".heads .head").count() == 16
    page.locator(".heads .head").nth(6).click()
    nano.wait("location.hash.includes('layer=1') && location.hash.includes('head=2')")
    nano.wait("rooms.model.attention?.layer === 1")
    assert "Head 1.2" in nano.text(".tokens-card")
    page.locator(".heads .head").nth(6).press("x")  # a key cuts the head
    nano.wait("rooms.model.reading.after && location.hash.includes('cuts=head')")
    assert "bits" in nano.text(".prediction .big") and page.locator(".orbit:visible").count() == 2
    page.locator("[data-cut=mask]").click()
    nano.wait("rooms.model.reading.cuts.length === 2")
    assert page.locator(".chip").all_inner_texts() == ["head 1.2 ×", "mask ×"]
    page.get_by_role("button", name="Restore all").click()
    nano.wait("rooms.model.reading.after === null")
    assert nano.complaints == []


def test_tokens_are_brushed_in_the_orbits_and_turned_in_three_axes(nano):
    nano.go("#room=model").wait(MODEL_READY)
    box = nano.page.locator(".orbit").first.bounding_box()
    nano.page.mouse.move(box["x"] + 3, box["y"] + 3)
    nano.page.mouse.down()
    nano.page.mouse.move(box["x"] + box["width"] - 3, box["y"] + box["height"] - 3, steps=4)
    nano.page.mouse.up()
    nano.wait("location.hash.includes('picked=')")
    assert nano.page.locator(".tokens-card .token[aria-selected=true]").count() == len(WORDS)
    nano.page.locator(".orbit").first.press("Escape")
    nano.wait("!document.querySelector('.tokens-card .token[aria-selected=true]')")
    nano.page.get_by_role("radio", name="3-D").check()
    yaw = nano.page.evaluate("rooms.model.angles.yaw")
    nano.page.locator(".orbit").first.press("ArrowRight")
    assert nano.page.evaluate("rooms.model.angles.yaw") > yaw
    nano.page.get_by_role("radio", name="2-D").check()


def test_the_map_of_heads_sets_measured_beside_predicted(nano):
    nano.go("#room=model&map=disagree").wait("rooms.model.heads && rooms.model.reading")
    words = nano.text(".heads-card .explains")
    n, right, commoner, same = map(
        int,
        re.search(r"the (\d+) heads.*: (\d+) predicted, (\d+) by.*, (\d+) by what", words).groups(),
    )
    assert 0 < n <= 16 and max(right, commoner, same) <= n
    nano.page.get_by_role("radio", name="weights").check()
    nano.wait("document.querySelector('.heads-card .explains').textContent.includes('σ')")


def test_tokens_are_dragged_and_moved_by_keys(nano):
    nano.go("#room=order").wait(ORDER_READY)
    tokens = nano.page.locator(".movable .token")
    first, third = (tokens.nth(k).bounding_box() for k in (0, 2))
    nano.page.mouse.move(first["x"] + 8, first["y"] + 8)
    nano.page.mouse.down()
    nano.page.mouse.move(third["x"] + 8, third["y"] + 8, steps=6)
    nano.page.mouse.up()
    nano.wait("rooms.order.reading.order.slice(0, 3).join('.') === '1.2.0'")
    assert "bits" in nano.text(".order-change .big")
    assert tokens.nth(2).inner_text() == "T"
    tokens.nth(2).focus()
    nano.page.keyboard.press("ArrowRight")
    nano.wait("rooms.order.reading.order.slice(0, 4).join('.') === '1.2.3.0'")
    assert nano.page.evaluate("document.activeElement.textContent") == "T"
    nano.page.get_by_role("button", name="As written").click()
    nano.wait("!location.hash.includes('order=1')")
    nano.page.get_by_role("button", name="Shuffle").click()
    nano.wait("rooms.order.reading.order.some((k, i) => k !== i)")
    cells = nano.page.locator(".two-by-two .cell strong").all_inner_texts()
    assert cells[3] == "0 bits" and "bits" in cells[0]  # without positions and mask: a set
    nano.page.get_by_role("button", name="Swap neighbours").click()
    nano.page.get_by_role("button", name="Reverse").click()
    nano.wait("rooms.order.reading.order[0] === 11")
    assert nano.complaints == []


def test_swaps_and_blocks_can_be_read_by_keys(nano):
    nano.go("#room=order").wait(ORDER_READY)
    canvas = nano.page.locator(".order-map canvas")
    canvas.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
        canvas.press(key)
    nano.wait("rooms.order.reading.order.filter((k, i) => k !== i).length === 2")
    nano.go("#room=model").wait(MODEL_READY)
    nano.page.locator(".waterfall-card canvas").press("ArrowRight")
    assert "Layer 0, attention" in nano.text(".waterfall-card .explains")
    stops = "document.querySelectorAll('#room-model .token[tabindex=\"0\"]').length"
    assert nano.page.evaluate(stops) == 1  # arrows go through the tokens


def test_many_layers_fit_without_a_scroll_inside_the_page(nano):
    nano.go("#room=model").wait(MODEL_READY)
    nano.page.evaluate("""(() => { const { before } = rooms.model.reading;
      before.heads = Array.from({ length: 30 }, (_, k) => before.heads[k % 4]);
      rooms.model.drawHeads(); })()""")
    grid = nano.page.locator(".heads")
    assert grid.evaluate("one => one.children.length") == 30
    assert grid.evaluate("one => one.scrollHeight <= one.clientHeight")


def test_the_mark_of_a_depth_lies_on_the_curve(nano):
    nano.go("#room=model").wait(MODEL_READY)
    nano.page.evaluate("void (rooms.model.depth = 0.5)")
    half = """(() => { const drawn = rooms.model.curve.canvas.asSvg('x');
      const [, a, b] = drawn.querySelector('path[stroke-width="1.8"]').getAttribute('d')
        .match(/M[\\d.]+ ([\\d.]+)L[\\d.]+ ([\\d.]+)/).map(Number);
      return Number(drawn.querySelector('circle').getAttribute('cy')) - (a + b) / 2; })()"""
    assert abs(nano.page.evaluate(half)) < 0.1


def test_a_click_on_the_map_swaps_these_two(nano):
    nano.go("#room=order").wait(ORDER_READY)
    box = nano.page.locator(".chart.square canvas").bounding_box()
    side, left, top = nano.page.evaluate(GRID)
    nano.page.mouse.click(box["x"] + left + 1.5 * side, box["y"] + top + 4.5 * side)
    nano.wait("rooms.order.reading.order[1] === 4 && rooms.order.reading.order[4] === 1")


def test_what_the_page_shows_is_what_its_python_computes(nano, capsys):
    other = "order&order=3.1.2.0." + ".".join(map(str, range(4, len(WORDS))))
    for room, ready in (("model&cuts=head 1.2", MODEL_READY), (other, ORDER_READY)):
        nano.go(f"#room={room}").wait(ready)
        name = room.split("&")[0]
        code = nano.page.evaluate(f"rooms.{name}.python()")
        shown = nano.page.evaluate(f"rooms.{name}.reading")
        found = {}
        exec(code, found)
        reading, printed = found["reading"], capsys.readouterr().out
        if name == "model":
            assert reading.change == pytest.approx(shown["change"], rel=1e-4)
            assert printed.count("C by depth") == 2 and str(reading.change) in printed
            assert list(reading.after.cosine) == pytest.approx(shown["after"]["cosine"], rel=1e-4)
        else:
            assert list(reading.order) == shown["order"] and shown["order"][0] == 3
            assert len(printed.splitlines()) == 4
            assert [c.cell for c in reading.cells] == [c["cell"] for c in shown["cells"]]
            changes = [c["change"] for c in shown["cells"]]
            assert [c.change for c in reading.cells] == pytest.approx(changes, rel=1e-4, abs=1e-12)


def test_numbers_and_pictures_can_be_taken_along(nano):
    nano.go("#room=model&cuts=head 1.2").wait(f"{MODEL_READY} && rooms.model.reading.after")
    rows = nano.page.evaluate("rooms.model.rows()")
    assert rows[0] == ["run", "what", "layer", "part", "value"]
    assert sum(row[3] == "head 2" for row in rows) == 8
    for kind in ("SVG", "PNG", "CSV"):
        with nano.page.expect_download() as download:
            nano.page.locator(".tools .files button", has_text=kind).click()
        assert download.value.path().stat().st_size > 200
    assert (
        nano.page.evaluate("rooms.model.picture().asSvg('x').querySelectorAll('circle').length")
        > 13
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("   ", "the text is empty"),
        ("ab", "at least 3 are needed"),
        ("aaaaaa", "all tokens are the same"),
    ],
)
def test_bad_text_gets_an_answer_and_the_page_goes_on(nano, text, words):
    nano.go("#room=model").wait(MODEL_READY)
    nano.page.locator("#room-model .words").fill(text)
    nano.page.locator("#room-model .words").press("Enter")
    nano.wait("document.querySelector('#room-model .status.fail')")
    assert words in nano.text("#room-model .status.fail")
    nano.page.locator("#room-model .words").fill("To be again")
    nano.page.locator("#room-model .words").press("Enter")
    nano.wait("rooms.model.reading.tokens.length === 11")
    assert nano.page.locator("#room-model .status.fail:visible").count() == 0


def test_what_is_on_the_page_stays_when_a_sentence_cannot_be_read(nano):
    """Arcs, map and means too; and attention of the other sentence is not drawn on this one."""
    nano.go("#room=model").wait(MODEL_READY)
    arcs = "document.querySelector('.arcs canvas').toDataURL()"
    before = nano.page.evaluate(arcs)
    for text in ("", "aaaa"):  # of the second, attention is known, and orbits are not
        nano.page.locator("#room-model .words").fill(text)
        nano.page.locator("#room-model .words").press("Enter")
        nano.wait("document.querySelector('#room-model .status.fail')")
        nano.page.wait_for_timeout(300)
        assert nano.page.evaluate(arcs) == before
    nano.go("#room=order").wait(ORDER_READY)
    nano.page.locator("#room-order .words").fill("")
    nano.page.locator("#room-order .words").press("Enter")
    nano.wait("document.querySelector('#room-order .status.fail')")
    nano.page.wait_for_timeout(300)
    assert nano.page.evaluate(f"Boolean({ORDER_READY})")
    assert nano.page.locator("#room-order .status.fail").count() == 1


def test_an_error_goes_when_another_question_is_asked_not_when_it_is_answered(nano):
    nano.go("#room=model").wait(MODEL_READY)
    nano.page.locator("#room-model .words").fill("ab")
    nano.page.locator("#room-model .words").press("Enter")
    nano.wait("document.querySelectorAll('#room-model .status.fail').length === 1")
    nano.page.wait_for_timeout(300)  # of the sentence and of its attention: it is said once
    assert nano.page.locator("#room-model .status.fail").count() == 1
    nano.page.evaluate("void (explorer.api = () => new Promise(() => {}))")  # never answers
    nano.page.locator("#room-model .words").fill("To be again")
    nano.page.locator("#room-model .words").press("Enter")
    nano.wait("explorer.state.get().text === 'To be again'", seconds=5)
    assert nano.page.locator("#room-model .status.fail").count() == 0


@pytest.mark.parametrize(
    ("text", "tokens", "words"),
    [("To be. " * 14_286, 64, "the first 64 tokens are run"), ("🙂 to be 🙃", 7, "drops 🙂 🙃"),
     ("a שלום bc", 5, "which it does not know")],
)  # fmt: skip
def test_long_text_emoji_and_right_to_left_are_run_and_noted(nano, text, tokens, words):
    nano.go("#room=model").wait(MODEL_READY)
    nano.page.locator("#room-model .words").fill(text)
    nano.page.locator("#room-model .words").press("Enter")
    nano.wait(f"rooms.model.reading.tokens.length === {tokens}")
    assert words in nano.text("#room-model .notes")


def test_strings_of_a_model_are_never_obeyed(browser, monkeypatch):
    choose = random.Random(0)

    def names(model, batch):
        fuzzed = ["".join(choose.choices(PIECES, k=5)) for _ in range(batch["input_ids"].shape[1])]
        return [HOSTILE, *fuzzed[1:]]

    monkeypatch.setattr(sentence, "names_of_tokens", names)
    monkeypatch.setattr(model_data, "outcome_name", lambda *_: HOSTILE)
    live = Live(browser, "orbit-nano-rotary", text="To be, or nay")  # another page than others'
    title = live.go("#room=model&cuts=head 0.0").page.title()
    live.wait(f"{MODEL_READY} && rooms.model.reading.after")
    live.page.evaluate(
        "explorer.state.set({ room: 'order', order: '1.0.2.3.4.5.6.7.8.9.10.11.12' })"
    )
    live.wait(ORDER_READY)
    live.page.evaluate("explorer.state.set({ room: 'flow', system: 'head', layer: 1, tour: 2 })")
    live.wait("document.querySelector('.headline').textContent.includes('Head 1.0')")
    assert live.page.title() == title and live.page.locator("main img, main b img").count() == 0
    assert HOSTILE[:9] in live.page.locator(".movable .token").nth(1).get_attribute("title")
    assert live.complaints == []
    live.close()


def test_a_lost_connection_is_said_and_the_page_stays(browser):
    live = Live(browser, "orbit-nano-rotary").go("#room=model")
    live.wait(MODEL_READY)
    live.server.close()
    live.page.locator("[data-cut=mask]").click()
    live.wait("document.querySelector('#room-model .status.fail')")
    assert "connection was lost" in live.text("#room-model .status.fail")
    assert live.page.locator(".heads .head").count() == 16
    live.close()


def test_a_large_model_says_what_it_costs_and_runs_when_told(nano):
    nano.server.pace = Pace(call=0.0, token=1.0)
    nano.go("#room=model").wait("document.querySelector('#room-model .status.cost')")
    assert "about 15 s" in nano.text("#room-model .status.cost")
    nano.page.locator("#room-model .status.cost button").first.click()
    nano.wait("rooms.model.reading")
    nano.server.pace = Pace(call=0.0, token=0.0)


def test_a_model_without_a_tokenizer_asks_for_ids(browser, model_folder):
    live = Live(browser, model_folder("llama-grouped")).go("#room=model")
    live.wait(MODEL_READY)
    assert "Token ids" in live.text("#room-model .sentence") and "No tokenizer" in live.text(
        "#room-model .hint"
    )
    live.page.locator("#room-model .words").fill("1 two 3")
    live.page.locator("#room-model .words").press("Enter")
    live.wait("document.querySelector('#room-model .status.fail')")
    assert "no token id" in live.text("#room-model .status.fail")
    live.close()


def test_a_vision_model_offers_samples_and_takes_a_picture(browser, model_folder, tmp_path):
    from PIL import Image

    live = Live(browser, model_folder("vit")).go("#room=model")
    live.wait(MODEL_READY)
    assert "class token" in live.page.evaluate("rooms.model.reading.tokens[0]")
    Image.new("RGB", (40, 30), (200, 40, 40)).save(tmp_path / "red.png")
    live.page.locator("#room-model input[type=file]").set_input_files(tmp_path / "red.png")
    live.wait("rooms.model.reading.notes.length === 0")
    live.page.evaluate("explorer.state.set({ room: 'order' })")
    live.wait("rooms.order.reading")
    assert live.page.locator(".movable.patches .token").count() > 3
    (tmp_path / "no.png").write_text("no picture")
    live.page.locator("#room-order input[type=file]").set_input_files(tmp_path / "no.png")
    live.wait("document.querySelector('#room-order .hint').textContent.includes('no picture')")
    live.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_telephone_shows_both_rooms_without_a_sideways_scroll(nano, scheme):
    nano.page.set_viewport_size({"width": 390, "height": 844})
    nano.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    for room, ready in (("model&cuts=mask", MODEL_READY), ("order", ORDER_READY)):
        nano.go(f"#room={room}").wait(ready)
        assert nano.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert nano.page.evaluate(BOXES) == []
    nano.page.set_viewport_size({"width": 1280, "height": 900})


def test_nothing_but_its_own_server_is_asked(nano):
    nano.go("#room=model").wait(MODEL_READY)
    own = f"http://127.0.0.1:{nano.server.port}/"
    assert {url for url in nano.requests if not url.startswith(own)} <= {"about:blank", "data:,"}
    policy = nano.page.locator("meta[http-equiv]").get_attribute("content")
    assert "default-src 'none'" in policy and "unsafe" not in policy and "sha256-" in policy


def test_every_control_has_a_name(nano):
    for room, ready in (("model", MODEL_READY), ("order", ORDER_READY)):
        nano.go(f"#room={room}").wait(ready)
        unnamed = nano.page.evaluate(UNNAMED)
        assert unnamed == []


def test_an_order_that_a_frozen_page_does_not_know_has_no_number(visit, explorer_page):
    opened = visit(explorer_page, after="#room=order", reduced_motion="reduce")
    opened.wait(ORDER_READY)
    opened.page.evaluate("rooms.order.shuffle()")
    opened.wait("rooms.order.big.textContent.includes('bits')")
    reverse = "explorer.state.set({ order: [...Array(40).keys()].reverse().join('.') + '.40' })"
    opened.page.evaluate(reverse)
    opened.wait("rooms.order.big.textContent === 'not known on this page'")
    assert "orbitlens explore" in opened.page.locator(".order-tokens .status.fail").inner_text()


def test_a_frozen_page_cuts_and_reorders_its_one_sentence(visit, explorer_page):
    opened = visit(explorer_page, after="#room=model")
    opened.wait(MODEL_READY)
    opened.page.locator("[data-cut='block 2']").click()
    opened.wait("rooms.model.reading.after")
    opened.page.evaluate("explorer.state.set({ map: 'disagree', cuts: 'head 3.0' })")
    opened.wait("rooms.model.heads && rooms.model.reading.cuts[0] === 'head 3.0'")
    opened.page.evaluate("explorer.state.set({ room: 'order' })")
    opened.wait(ORDER_READY)
    opened.page.get_by_role("button", name="Shuffle").click()
    opened.wait("rooms.order.reading.order.some((k, i) => k !== i)")
    opened.page.evaluate("rooms.order.go(rooms.order.now().reverse())")
    opened.wait("document.querySelector('#room-order .status.fail')")
    assert (
        "orbitlens explore orbit-nano-rotary"
        in opened.page.locator("#room-order .status.fail").first.inner_text()
    )
    assert opened.complaints == [] and len(opened.requests) == 1
