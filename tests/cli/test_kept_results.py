"""Commands that were asked before: the same answer at once, and another one if anything differs."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import orbitlens.scanning.api
from orbitlens.cli import kept_results
from orbitlens.cli.app import app
from orbitlens.cli.kept_results import question_key
from orbitlens.running.images import ImageFile
from orbitlens.running.model import load
from orbitlens.tracing.options import TraceOptions
from tiny_live import tiny_llama


@pytest.fixture
def folder(tmp_path):
    tiny_llama().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    monkeypatch.setenv("ORBITLENS_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def scan(folder, *more):
    done = CliRunner().invoke(app, ["scan", str(folder), *more], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture
def calls(monkeypatch):
    """Count how often the verb is run."""
    made, verb = [], orbitlens.scanning.api.scan

    def counted(*args, **named):
        made.append(args)
        return verb(*args, **named)

    monkeypatch.setattr(orbitlens.scanning.api, "scan", counted)
    return made


def flip(file, place=-1):
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def test_a_second_call_prints_the_same_and_computes_nothing(folder, shelf, calls):
    first, second = scan(folder), scan(folder)
    assert len(calls) == 1
    assert second.stdout == first.stdout
    assert "from the cache" in second.stderr
    assert "from the cache" not in first.stderr


def test_json_of_a_second_call_is_the_same(folder, shelf, calls):
    first, second = scan(folder, "--json", "-"), scan(folder, "--json", "-")
    assert len(calls) == 1
    assert json.loads(second.stdout) == json.loads(first.stdout)


def test_a_changed_byte_of_the_model_computes_anew(folder, shelf, calls):
    first = scan(folder)
    flip(folder / "model.safetensors")
    second = scan(folder)
    assert len(calls) == 2
    assert "from the cache" not in second.stderr
    assert first.stdout  # the byte may be too small to be seen in print


def test_another_option_computes_anew(folder, shelf, calls):
    scan(folder)
    scan(folder, "--layers", "0")
    assert len(calls) == 2


def test_a_damaged_file_computes_anew_and_mends_it(folder, shelf, calls):
    first = scan(folder)
    (file,) = shelf.iterdir()
    flip(file, 200)
    second = scan(folder)
    assert len(calls) == 2
    third = scan(folder)
    assert len(calls) == 2
    # only the line of what it cost differs
    told = [[x for x in y.stdout.splitlines() if " s," not in x] for y in (first, second, third)]
    assert told[0] == told[1] == told[2]


def test_no_cache_neither_reads_nor_writes(folder, shelf, calls):
    scan(folder, "--no-cache")
    assert not shelf.exists()
    scan(folder)
    scan(folder, "--no-cache")
    assert len(calls) == 3


def test_without_a_folder_to_write_to_everything_works(folder, tmp_path, monkeypatch, calls):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ORBITLENS_CACHE", str(tmp_path / "file" / "kept"))
    assert "was not kept" in scan(folder).stderr
    scan(folder)
    assert len(calls) == 2


def test_a_model_changed_while_it_was_read_is_not_kept(folder, shelf, monkeypatch):
    verb = orbitlens.scanning.api.scan

    def meddled(*args, **named):
        result = verb(*args, **named)
        flip(folder / "model.safetensors")
        return result

    monkeypatch.setattr(orbitlens.scanning.api, "scan", meddled)
    scan(folder)
    assert not shelf.exists()


def test_the_key_follows_text_options_versions_and_code(folder, tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text("where tokens go")
    opened = [load(folder)]

    def key(kind="trace", given=text, **changes):
        return question_key(kind, opened, {"given": given, "options": TraceOptions(**changes)})

    keys = [key(), key("audit"), key(seed=1), key(given=None), key(given=((1, 2),))]
    keys += [key(given=((1,), (2,))), key(given=ImageFile(text))]
    text.write_text("where tokens gO")
    keys.append(key())
    text.write_text("where tokens go")
    assert key() == keys[0]
    monkeypatch.setattr(kept_results, "_version", lambda name: "99")
    keys.append(key())
    monkeypatch.undo()
    monkeypatch.setattr(kept_results, "_code", lambda: "other")
    keys.append(key())
    monkeypatch.undo()
    (folder / "tokenizer_config.json").write_text("{}")
    keys.append(key())
    assert len(set(keys)) == len(keys)


def test_what_cannot_be_compared_is_refused_not_ignored(folder):
    with pytest.raises(TypeError, match="nothing says"):
        question_key("trace", [load(folder)], {"given": object()})


def test_the_digest_of_the_code_is_of_all_its_files():
    import orbitlens

    home = Path(orbitlens.__file__).parent
    assert (home / "running" / "passage.txt").is_file()  # what is run where no text is given
    assert kept_results._code.__wrapped__() == kept_results._code()


def test_cache_says_where_and_clears(folder, shelf):
    scan(folder)
    said = CliRunner().invoke(app, ["cache"]).stdout
    assert "1 results" in said
    assert "removed 1" in CliRunner().invoke(app, ["cache", "--clear"]).stdout
    assert list(shelf.iterdir()) == []
