"""The page of a watched run in a real browser: it draws, in both themes and on a small screen."""

import pytest
import torch
import transformers

import tiny_models
from orbitlens.reporting.watch_page import page_of_run
from orbitlens.watching.api import Watch
from orbitlens.watching.looking import watched


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    torch.manual_seed(0)
    sizes = {**tiny_models.GPT2, "bos_token_id": 0, "eos_token_id": 0}
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    watch = Watch(every=1, tokens_every=1, path=folder)
    for step in range(5):
        if step == 2:
            with torch.no_grad():
                module.transformer.h[1].attn.c_attn.weight[:, :24] *= 1e6
        watch(module, step, torch.arange(24).reshape(2, 12), 4.0 - step / 10)
    file = folder / "page.html"
    file.write_text(page_of_run(watched(folder)), encoding="utf-8")
    return file


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_every_panel_is_drawn_and_nothing_runs_over(browser, page_file, scheme, width):
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(page_file.as_uri())
    page.wait_for_timeout(300)
    assert said == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    plots = page.evaluate("document.querySelectorAll('.plot').length")
    assert plots == page.evaluate("document.querySelectorAll('.plot svg').length") == 5
    assert "Attention is freezing" in page.inner_text("#now")
    page.close()
