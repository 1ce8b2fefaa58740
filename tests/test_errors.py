"""Names from files are shown, never obeyed: not by a terminal, not by a page."""

import io
import json
import unicodedata

import pytest
import torch
from safetensors.torch import save_file

import orbitlens as ol
from orbitlens.cli import output
from orbitlens.errors import CheckpointError, InputError, printable
from small_llama import run, small_weights, write_small_llama

EVIL = "a\x1b]0;owned\x07\x9b2J\u202egpj\u2066.exe\u200b"
SHOWN = r"a\x1b]0;owned\x07\x9b2J\u202egpj\u2066.exe\u200b"


def obeyed(text):
    """Return the characters of a text that a terminal or a browser would obey."""
    kinds = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return [c for c in text if unicodedata.category(c) in kinds and c not in "\n\t"]


def test_what_would_be_obeyed_is_escaped_and_all_else_is_kept():
    assert printable(EVIL) == SHOWN
    assert printable("σ − × 中文 é\u00a0\u2009x\n\ty 🙂") == "σ − × 中文 é\u00a0\u2009x\n\ty 🙂"
    assert printable("\ud800") == r"\ud800"
    assert not obeyed(printable("".join(map(chr, range(0x110000)))))


def test_every_message_of_ours_is_safe_to_show():
    for kind in (CheckpointError, InputError):
        assert str(kind(f"tensor {EVIL} is missing")) == f"tensor {SHOWN} is missing"


@pytest.fixture
def evil_model(tmp_path):
    """Return a model whose folder has an evil name."""
    return write_small_llama(tmp_path / EVIL)


def test_a_model_of_an_evil_name_is_scanned_harmlessly(evil_model):
    outcome = run("scan", evil_model)
    assert outcome.code == 0
    assert not obeyed(outcome.out + outcome.err)
    scan = ol.scan(evil_model)
    for text in (scan.summary(), repr(scan), repr(ol.load(evil_model)), scan.model.name):
        assert not obeyed(text)


def test_an_evil_tensor_name_in_an_error_is_escaped(tmp_path):
    folder = write_small_llama(tmp_path / "m", model_type="unheard-of")
    save_file(small_weights() | {f"attn.{EVIL}": torch.zeros(2)}, folder / "model.safetensors")
    outcome = run("scan", folder)
    assert outcome.code == 2
    assert "attn." in outcome.err
    assert not obeyed(outcome.err)


def test_evil_settings_in_a_config_are_escaped(tmp_path):
    folder = write_small_llama(tmp_path / "m", model_type=EVIL)
    outcome = run("scan", folder)
    assert outcome.code == 2
    assert not obeyed(outcome.err)


def test_a_console_on_a_terminal_keeps_its_own_styles_and_no_others(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    console = output.stdout()
    console.file = io.StringIO()
    console.print(f"x{EVIL}y", style="bold")
    written = console.file.getvalue()
    assert "\x1b[1m" in written
    assert SHOWN.replace(r"\x07", "") in written  # rich itself drops the bell
    assert "\x1b]0;" not in written
    assert not {"\x07", "\x9b", "\u202e"} & set(written)


def test_the_title_of_a_page_is_escaped():
    from orbitlens.draw.page import esc

    assert esc(f"<{EVIL}>") == f"&lt;{SHOWN}&gt;"


def test_json_on_the_terminal_is_ascii(evil_model):
    outcome = run("scan", evil_model, "--json", "-")
    assert outcome.out.isascii()
    assert not obeyed(outcome.out)
    assert json.loads(outcome.out)["kind"] == "scan"
