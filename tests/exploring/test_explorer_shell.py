"""The page around the rooms: one file, rooms by tab and by address, no request, no complaint."""

from pathlib import Path


def test_the_page_opens_without_a_request_or_a_complaint(visit, explorer_page):
    opened = visit(explorer_page)
    assert opened.page.locator("[role=tab]").all_inner_texts() == ["Flow", "Model", "Order"]
    assert opened.page.locator("#room-flow").is_visible()
    assert opened.requests == [Path(explorer_page).as_uri()] and opened.complaints == []


def test_the_address_brings_a_room_back_and_rooms_change_it(visit, explorer_page):
    opened = visit(explorer_page, after="#room=order")
    assert opened.page.locator("#room-order").is_visible()
    opened.page.keyboard.press("Tab")
    opened.page.locator("#tab-order").press("ArrowLeft")
    assert opened.page.locator("#room-model").is_visible()
    opened.wait("location.hash === '#room=model'")
    opened.page.evaluate("location.hash = '#room=flow'")
    opened.wait("!document.getElementById('room-flow').hidden")


def test_the_theme_can_be_chosen(visit, explorer_page):
    opened = visit(explorer_page)
    paper = "getComputedStyle(document.querySelector('.bar')).backgroundColor"
    light = opened.page.evaluate(paper)
    opened.page.locator(".tools .round").click()
    assert opened.page.evaluate(paper) != light
    opened.wait("location.hash.includes('theme=dark')")


def test_a_frozen_page_says_why_it_cannot_answer(visit, explorer_page):
    opened = visit(explorer_page)
    asked = "explorer.api('cut', {layer: 1}).catch(error => error.message)"
    assert "orbitlens explore orbit-nano-rotary" in opened.page.evaluate(asked)
