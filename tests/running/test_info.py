"""What titles call a model."""

import os

import pytest

from orbitlens.running.info import name_of
from orbitlens.scanning.api import scan
from small_llama import write_small_llama

HASH = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("path", "config", "name"),
    [
        ("runs/gpt2-tuned", {}, "gpt2-tuned"),
        ("runs/gpt2-tuned", {"_name_or_path": "gpt2"}, "gpt2-tuned"),
        ("runs/gpt2-tuned/model", {}, "gpt2-tuned"),
        ("runs/gpt2-tuned/final/model", {}, "gpt2-tuned"),
        ("runs/mine/model", {"_name_or_path": "openai/gpt2"}, "gpt2"),
        ("runs/mine/model", {"_name_or_path": "old/model/"}, "mine"),
        ("runs/mine/Model", {"_name_or_path": None}, "mine"),
        ("runs/mine/model", {"_name_or_path": "a\x1b[31mb"}, "mine"),
        ("a/llama-1b.gguf", {}, "llama-1b"),
        ("a/tiny/model.gguf", {}, "tiny"),
        (f"hub/models--openai--gpt2/snapshots/{HASH}", {}, "gpt2"),
        ("/model", {}, "model"),
    ],
)
def test_a_name_says_something_where_something_does(path, config, name):
    assert name_of(path, config) == name


def test_a_folder_given_as_a_dot_has_its_own_name(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    assert name_of(os.curdir, {}) == "mine"


def test_a_result_carries_the_name(tmp_path):
    assert scan(write_small_llama(tmp_path / "tuned" / "model")).model.name == "tuned"
