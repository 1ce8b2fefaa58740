"""The room Flow with a server behind it: flows of what is typed, and the page as a file."""

import contextlib
import io
import math
import time
from pathlib import Path

import pytest

from live_explorer import MODEL_READY, ORDER_READY, WORDS, Live
from orbitlens.exploring import answers
from orbitlens.exploring.answers import question_of
from orbitlens.exploring.freezing import freeze
from orbitlens.exploring.passes import explored_of
from orbitlens.running.images import image_shape

FAILED = "document.querySelector('#room-flow .status.fail')"


@pytest.fixture(scope="module")
def nano(browser):
    live = Live(browser, "orbit-nano-rotary", accept_downloads=True)
    yield live
    live.close()


def typed(live, words):
    field = live.page.locator("#room-flow .words")
    field.fill(words)
    field.press("Enter")


def test_a_head_moves_the_tokens_of_what_is_typed(nano):
    nano.go("#system=head&layer=1&head=0").wait("rooms.flow.frames() > 1")
    before = nano.page.evaluate("rooms.flow.ending().cosine")
    typed(nano, "that is the question")
    nano.wait("document.querySelector('.headline').textContent.includes('that is the question')")
    shown = nano.page.evaluate("rooms.flow.ending()")
    assert shown["cosine"] != pytest.approx(before, abs=1e-3)
    nano.page.evaluate("explorer.state.set({ room: 'model' })")  # one sentence for all rooms
    nano.wait("rooms.model.reading?.tokens.join('') === 'that is the question'")
    nano.page.evaluate("explorer.state.set({ room: 'flow' })")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(nano.page.evaluate("rooms.flow.python()"), "<copied>", "exec"), {})
    lines = dict(line.rsplit(" ", 1) for line in printed.getvalue().splitlines()[-2:])
    assert float(lines["C"]) == pytest.approx(shown["cosine"], abs=2e-4)
    assert nano.complaints == []


def test_bad_text_has_an_answer_in_this_room_too(nano):
    nano.go("#system=head&layer=1&head=0").wait("rooms.flow.frames() > 1")
    typed(nano, "   ")
    nano.wait(FAILED)
    assert "the text is empty" in nano.text("#room-flow .status.fail")
    typed(nano, "To be " * 20_000)
    nano.wait("rooms.flow.rows && document.querySelector('.settings').textContent.includes('64 t')")
    assert nano.page.locator("#room-flow .status.fail").count() == 0


def test_a_frozen_page_opens_as_the_live_one_was_left(nano, browser, tmp_path):
    nano.go("#room=model&cuts=head 1.2,mask&layer=1&head=2").wait(
        f"{MODEL_READY} && rooms.model.reading.cuts.length === 2"
    )
    with nano.page.expect_download(timeout=240_000) as waiting:
        nano.page.get_by_role("button", name="Freeze").click()
    file = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(file)
    live = nano.page.evaluate("rooms.model.reading.change")
    context = browser.new_context(offline=True, reduced_motion="reduce")
    page = context.new_page()
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_selector("#room-model .chip")
    reading = page.evaluate("rooms.model.reading")
    assert reading["cuts"] == ["head 1.2", "mask"] and reading["change"] == live
    assert "".join(reading["tokens"]) == WORDS and requests == [file.as_uri()]
    assert page.get_by_role("button", name="Freeze").count() == 0
    context.close()


def test_a_file_that_is_passed_on_does_not_say_where_the_model_lay(model_folder, tmp_path):
    from orbitlens.exploring.api import explore

    folder = Path(model_folder("llama-grouped"))
    text = explore(folder).save(tmp_path / "page.html").read_text(encoding="utf-8")
    assert str(folder.parent) not in text and folder.name in text


def test_a_picture_is_frozen_with_the_page(model_folder):
    seeing = explored_of(model_folder("vit"))
    n_levels = math.prod(image_shape(seeing.model.module.config))
    asked = question_of({"levels": [k % 256 for k in range(n_levels)], "state": "room=order"})
    page = freeze(seeing, asked, lambda done, total: None).html
    assert "Prompt(levels=LEVELS)" in page and '"opens":"room=order"' in page


def test_a_slow_model_shows_progress_and_can_be_stopped(nano, monkeypatch):
    def slow(explored, asked, told):
        for k in range(3000):
            told(k, 3000)
            time.sleep(0.01)

    monkeypatch.setitem(answers.QUESTIONS, "usual", slow)
    busy = "document.querySelector('.order-cells .status.busy')"
    nano.go("#room=order").wait(f"{busy}?.textContent.includes('running random orders')")
    assert nano.page.locator(".order-cells .status.busy progress").count() == 1
    nano.page.locator(".order-cells .status.busy button").click()
    nano.wait("!document.querySelector('.order-cells .status.busy')")
    monkeypatch.undo()
    nano.go("#room=order").wait(ORDER_READY)  # the worker is free again


def test_two_pages_of_one_server_keep_their_own_sentences(nano, browser):
    context = browser.new_context(reduced_motion="reduce")
    other = context.new_page()
    other.goto(nano.server.address + "#room=model&text=not to be at all")
    nano.go("#room=model").wait(MODEL_READY)
    for _ in range(1200):
        if other.evaluate("Boolean(rooms.model.reading)"):
            break
        other.wait_for_timeout(50)
    assert other.evaluate("rooms.model.reading.tokens.join('')") == "not to be at all"
    assert nano.page.evaluate("rooms.model.reading.tokens.join('')") == WORDS
    context.close()


def test_a_connection_that_is_lost_is_said_in_the_room_flow(browser):
    live = Live(browser, "orbit-nano-rotary").go("#system=head&layer=1&head=0")
    live.wait("rooms.flow.frames() > 1")
    live.server.close()
    typed(live, "another sentence")
    live.wait(FAILED)
    assert "connection was lost" in live.text("#room-flow .status.fail")
    assert "To be, or not" in live.text(".headline")
    live.close()
