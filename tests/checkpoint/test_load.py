"""Finding a model's files: what is missing, broken, hostile or elsewhere is said in one message."""

import contextlib
import json
import os
import pickle
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from orbitlens.checkpoint.bounds import LARGEST_CONFIG
from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.errors import CheckpointError, OrbitlensError, UnknownFamilyError
from orbitlens.heads.layers import load_layer
from orbitlens.scanning.api import scan
from small_llama import refused, run, small_weights, write_config, write_small_llama

NAMES = sorted(small_weights())
INDEX = "model.safetensors.index.json"


@pytest.fixture
def model(tmp_path):
    return write_small_llama(tmp_path / "model")


def write_shards(folder, places=("model-1.safetensors", "model-2.safetensors"), **changes):
    """Write the weights in two files, and an index that says they are in `places`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, **changes)
    weights = small_weights()
    halves = NAMES[::2], NAMES[1::2]
    weight_map = {}
    for number, (names, place) in enumerate(zip(halves, places, strict=True), start=1):
        save_file({name: weights[name] for name in names}, folder / f"model-{number}.safetensors")
        weight_map |= dict.fromkeys(names, place)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


# --- paths -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "./nothing",
        "/no/such/model",
        "~/no-such-model",
        "~nobody-of-that-name/model",
        "a/b/c",
        "model.gguf",
        "no such model",
        "-x/é",
        "owner/",
        "[red]x[/red]",
    ],
)
def test_a_path_that_is_not_there_is_named(path):
    refused("scan", "--", path, says=[path, "no such file or folder", "owner/model"])


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "/" + "x" * 300, "\ud800"])
def test_what_cannot_be_a_path_is_refused(path):
    with pytest.raises(CheckpointError, match=r"usable path|no such file"):
        load_checkpoint(path)


def test_a_path_may_be_a_string_or_a_path_with_a_tilde(model, monkeypatch):
    monkeypatch.setenv("HOME", str(model.parent))
    expected = load_checkpoint(model).architecture
    assert load_checkpoint(str(model)).architecture == expected
    assert load_checkpoint("~/model").architecture == expected


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_single_file_is_refused_with_what_to_give_instead(model, name):
    refused("scan", model / name, says=[name, "single file", "folder", ".gguf"])


# --- config ----------------------------------------------------------------------------------


def test_a_folder_without_a_config_says_so(model):
    (model / "config.json").unlink()
    refused("scan", model, says=[str(model), "no config.json", "Hugging Face layout"])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"not json",
        b"\xff\xfe{}",
        b"\x80",
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
    ids=["empty", "cut", "text", "utf-16", "latin", "long number", "deep list", "deep object"],
)
def test_a_config_that_is_not_json_says_so(model, content):
    (model / "config.json").write_bytes(content)
    refused("scan", model, says=["config.json", "not JSON", "Fetch it again"])


@pytest.mark.parametrize(("content", "kind"), [("[]", "list"), ("3", "int"), ("null", "NoneType")])
def test_a_config_that_is_no_object_says_what_it_is(model, content, kind):
    (model / "config.json").write_text(content)
    refused("scan", model, says=["config.json", f"holds a {kind}", "expected an object"])


def test_a_huge_config_is_refused_unread(model):
    with (model / "config.json").open("wb") as handle:  # sparse: takes no room on disk
        handle.truncate(LARGEST_CONFIG + 1)
    refused("scan", model, says=["config.json", str(LARGEST_CONFIG), "too many"])


def test_a_config_may_not_set_the_key_that_gguf_reading_uses(model):
    clean = load_checkpoint(model).architecture
    hostile = {"names": {"layer": "x"}, "norm_gain_offset": "x", "frequency_divisors": [0, 0]}
    write_config(model, _gguf=hostile)
    assert load_checkpoint(model).architecture == clean
    write_config(model, text_config={"_gguf": hostile})
    assert load_checkpoint(model).architecture == clean


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", INDEX, "pytorch_model.bin"])
def test_a_folder_where_a_file_should_be_is_refused(model, name):
    if name.endswith(".bin"):
        (model / "model.safetensors").unlink()
    (model / name).unlink(missing_ok=True)
    (model / name).mkdir()
    refused("scan", model, "--allow-pickle", says=[name, "is not a file", "expected"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_where_a_file_should_be_does_not_hang(model, name):
    (model / name).unlink()
    os.mkfifo(model / name)
    refused("scan", model, says=[name, "is not a file"])


# --- unknown families ------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["mamba", 3, ["llama"], {"a": 1}, "LLAMA"])
def test_an_unknown_family_says_what_is_known_and_how_to_add_it(model, family):
    write_config(model, model_type=family)
    says = [repr(family), "Known families", "gpt2", "llama", "whisper"]
    says += ["Attention-like tensors found (16)", "model.layers.0.self_attn.k_proj.weight"]
    says += ["[4, 8]", "FAMILIES", "docs/add-a-family.md"]
    refused("scan", model, says=says)
    with pytest.raises(UnknownFamilyError):
        load_checkpoint(model)


@pytest.mark.parametrize("family", [None, ""])
def test_a_config_without_model_type_is_read_by_its_architectures(model, family):
    expected = load_checkpoint(model).architecture
    write_config(model, model_type=family, architectures=["Nobodys", "LlamaForCausalLM"])
    assert load_checkpoint(model).architecture == expected
    write_config(model, model_type=family, architectures=["GPT2LMHeadModel"])
    refused("scan", model, says=["a 'gpt2' model", "there is none"])


@pytest.mark.parametrize(
    ("classes", "says"),
    [(None, []), ([], []), ("LlamaForCausalLM", []), (["Mamba"], ["(Mamba)"]), ([3], ["(3)"])],
)
def test_a_config_that_names_no_family_asks_for_one_line(model, classes, says):
    write_config(model, model_type=None, architectures=classes)
    says = [*says, "has no model_type", 'one line to config.json, such as "model_type": "llama"']
    message = refused("scan", model, says=[*says, "Known families", "whisper"])
    assert "add-a-family" not in message


def test_an_unknown_family_without_attention_says_that_too(model):
    write_config(model, model_type="mlp")
    save_file({"fc.weight": torch.ones(2)}, model / "model.safetensors")
    refused("scan", model, says=["'mlp'", "None of the 1 tensors found looks like attention"])


# --- weights ---------------------------------------------------------------------------------


def test_a_folder_without_weights_says_what_was_expected(model):
    (model / "model.safetensors").unlink()
    refused("scan", model, says=[str(model), "no weights", "model.safetensors", INDEX])


def test_a_folder_that_holds_gguf_files_points_to_them(model):
    (model / "model.safetensors").rename(model / "model-q4.gguf")
    refused("scan", model, says=["no weights", "GGUF", "model-q4.gguf"])


def test_shards_and_loose_files_read_as_one_file_does(model, tmp_path):
    whole = load_layer(load_checkpoint(model), 1)
    sharded = write_shards(tmp_path / "sharded")
    assert torch.equal(load_layer(load_checkpoint(sharded), 1).w_q, whole.w_q)
    (sharded / INDEX).unlink()
    assert torch.equal(load_layer(load_checkpoint(sharded), 1).w_o, whole.w_o)


def test_missing_shards_are_counted_and_named(tmp_path):
    folder = write_shards(tmp_path)
    (folder / "model-2.safetensors").unlink()
    refused("scan", folder, says=["1 of 2 shards are missing", "model-2.safetensors", "Fetch"])


def test_a_tensor_missing_from_its_shards_is_named(tmp_path):
    folder = write_shards(tmp_path)
    names = [name for name in NAMES[1::2] if "layers.1" not in name]
    weights = small_weights()
    save_file({name: weights[name] for name in names}, folder / "model-2.safetensors")
    refused("scan", folder, says=["model.layers.1.", "is missing", "are all shards there"])


@pytest.mark.parametrize(
    "index",
    [
        {},
        {"weight_map": {}},
        {"weight_map": []},
        {"weight_map": "x"},
        {"weight_map": {"a": 1}},
        {"weight_map": {"a": None}},
        {"weight_map": {"a": ["model.safetensors"]}},
    ],
)
def test_an_index_of_the_wrong_form_is_refused(model, index):
    (model / INDEX).write_text(json.dumps(index))
    refused("scan", model, says=[INDEX, "'weight_map'"])


def test_a_broken_index_is_refused(model):
    (model / INDEX).write_text('{"weight_map":')
    refused("scan", model, says=[INDEX, "not JSON"])


# --- outside the folder ----------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    save_file(small_weights(), folder / "x.safetensors")
    return folder / "x.safetensors"


@pytest.mark.parametrize(
    "place", ["../elsewhere/x.safetensors", "{absolute}", "sub/../x", ".", "..", "", "/", "sub/x"]
)
def test_an_index_that_points_outside_the_folder_is_refused(tmp_path, elsewhere, place):
    place = place.format(absolute=elsewhere)
    folder = write_shards(tmp_path / "model", ("model-1.safetensors", place))
    refused("scan", folder, says=[repr(place), "outside the model's folder", "Refused"])


@pytest.mark.parametrize("name", ["model.safetensors", "loose.safetensors", "pytorch_model.bin"])
def test_a_link_out_of_the_folder_is_refused(model, elsewhere, name):
    (model / "model.safetensors").unlink()
    (model / name).symlink_to(elsewhere)
    refused("scan", model, "--allow-pickle", says=[repr(name), "outside the model's folder"])


@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_a_linked_config_or_index_out_of_the_folder_is_refused(model, tmp_path, name):
    (tmp_path / "secret.json").write_text('{"password": 1}')
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to(tmp_path / "secret.json")
    message = refused("scan", model, says=[repr(name), "outside the model's folder"])
    assert "password" not in message


def test_links_within_the_folder_and_to_the_folder_are_followed(model):
    (model / "model.safetensors").rename(model / "weights-v2")
    (model / "model.safetensors").symlink_to("weights-v2")
    (model.parent / "link").symlink_to(model)
    assert load_checkpoint(model.parent / "link").n_parameters > 0


@pytest.mark.parametrize("target", ["model.safetensors", "nothing"])
def test_a_link_to_itself_or_to_nothing_is_refused(model, target):
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to(target)
    refused("scan", model, says=["model.safetensors"])


@settings(max_examples=150, deadline=None)
@given(
    st.text(max_size=8)
    | st.sampled_from(["a" * 300, "../x", "model\0", "\ud800", "a/b", "~", "model-1.safetensors"])
)
def test_any_name_in_an_index_is_read_or_refused(tmp_path_factory, place):
    folder = tmp_path_factory.getbasetemp() / "odd-index"
    if not folder.exists():
        write_shards(folder)
    index = {"weight_map": dict.fromkeys(NAMES[::2], "model-1.safetensors") | {NAMES[1]: place}}
    (folder / INDEX).write_text(json.dumps(index))
    with contextlib.suppress(OrbitlensError):
        load_checkpoint(folder)


# --- permission ------------------------------------------------------------------------------


@contextlib.contextmanager
def ordinary_user():
    """Give up root's right to read everything, for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="no POSIX permissions on this system")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "."])
def test_a_file_that_may_not_be_read_says_so(name):
    place = Path(tempfile.mkdtemp())  # pytest's own folders are closed to other users
    try:
        place.chmod(0o755)
        folder = write_small_llama(place / "model")
        (folder / name).chmod(0)
        run("scan", folder)  # imports what it needs while it may
        with ordinary_user():
            refused("scan", folder, says=[str(folder), "Permission denied"])
    finally:
        (place / "model").chmod(0o755)
        shutil.rmtree(place)


# --- pickles ---------------------------------------------------------------------------------


class RunsCode:
    """A pickle that makes a file when it is read."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (Path(self.file),)


@pytest.fixture
def pickled(model):
    (model / "model.safetensors").unlink()
    torch.save(small_weights(), model / "pytorch_model.bin")
    return model


def test_pickles_are_refused_without_leave(pickled):
    refused(
        "scan",
        pickled,
        says=["pickles", "pytorch_model.bin", "run code", "--allow-pickle", "safetensors"],
    )


@pytest.mark.parametrize("zipped", [True, False])
def test_pickles_are_read_with_leave(model, tmp_path, zipped):
    expected = load_layer(load_checkpoint(model), 1)
    folder = tmp_path / "pickled"
    folder.mkdir()
    write_config(folder)
    file = folder / "pytorch_model.bin"
    torch.save(small_weights(), file, _use_new_zipfile_serialization=zipped)
    checkpoint = load_checkpoint(folder, allow_pickle=True)
    assert torch.equal(load_layer(checkpoint, 1).w_q, expected.w_q)
    assert len(checkpoint.source.header_sha256["pytorch_model.bin"]) == 64
    outcome = run("scan", folder, "--allow-pickle")
    assert (outcome.code, outcome.err) == (0, "")


def test_safetensors_are_preferred_to_pickles(model):
    (model / "pytorch_model.bin").write_bytes(b"not even a pickle")
    assert load_checkpoint(model, allow_pickle=True).n_parameters > 0


def test_sharded_pickles_are_read_by_their_index(pickled):
    weights = small_weights()
    (pickled / "pytorch_model.bin").unlink()
    for number, names in enumerate((NAMES[::2], NAMES[1::2])):
        torch.save({name: weights[name] for name in names}, pickled / f"p-{number}.bin")
    places = {name: f"p-{number % 2}.bin" for number, name in enumerate(NAMES)}
    index = pickled / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert load_layer(load_checkpoint(pickled, allow_pickle=True), 0).n_heads == 2
    refused("scan", pickled, says=["p-0.bin", "--allow-pickle"])


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_pickle_does_not_run(pickled, tmp_path, zipped):
    made = tmp_path / "made-by-the-pickle"
    hostile = {**small_weights(), "model.x": RunsCode(made)}
    file = pickled / "pytorch_model.bin"
    torch.save(hostile, file, _use_new_zipfile_serialization=zipped)
    refused("scan", pickled, "--allow-pickle", says=["plain tensors", "safetensors"])
    assert not made.exists()
    torch.load(file, weights_only=False)  # the control: it would have
    assert made.exists()


def test_a_bare_pickle_that_runs_code_does_not_run(pickled, tmp_path):
    made = tmp_path / "made-by-the-pickle"
    (pickled / "pytorch_model.bin").write_bytes(pickle.dumps(RunsCode(made)))
    refused("scan", pickled, "--allow-pickle", says=["plain tensors"])
    assert not made.exists()


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04" + b"\0" * 60, b"\x80\x02.", b"."])
def test_a_bin_file_that_is_no_pickle_is_refused(pickled, content):
    (pickled / "pytorch_model.bin").write_bytes(content)
    refused("scan", pickled, "--allow-pickle", says=["pytorch_model.bin", "safetensors"])


@pytest.mark.parametrize("value", [[1, 2], torch.ones(2), "text"])
def test_a_pickle_of_something_else_is_refused(pickled, value):
    torch.save(value, pickled / "pytorch_model.bin")
    refused("scan", pickled, "--allow-pickle", says=[type(value).__name__, "tensors by name"])


@pytest.mark.parametrize("zipped", [True, False])
@settings(max_examples=80, deadline=None)
@given(
    cut=st.floats(0, 1) | st.none(),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=3),
)
def test_a_damaged_pickle_is_read_or_refused(tmp_path_factory, zipped, cut, flips):
    folder = tmp_path_factory.getbasetemp() / f"damaged-pickle-{zipped}"
    folder.mkdir(exist_ok=True)
    write_config(folder)
    file = folder / "pytorch_model.bin"
    whole = folder / "whole"
    if not whole.exists():
        torch.save(small_weights(), whole, _use_new_zipfile_serialization=zipped)
    damaged = bytearray(whole.read_bytes())
    for place, flip in flips:
        damaged[int(place * len(damaged))] ^= flip
    file.write_bytes(damaged if cut is None else damaged[: int(cut * len(damaged))])
    with contextlib.suppress(OrbitlensError):
        load_layer(load_checkpoint(folder, allow_pickle=True), 0)


ODD_TENSORS = {
    "sparse": lambda value: value.to_sparse(),
    "integers": lambda value: value.to(torch.int8),
    "complex": lambda value: value.to(torch.complex64),
    "fp8": lambda value: value.to(torch.float8_e4m3fn),
    "no data": lambda value: value.to("meta"),
    "expanded": lambda value: torch.zeros(1, 1).expand(8, 8),
    "quantised": lambda value: torch.quantize_per_tensor(value, 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore")  # torch announces that it will drop its quantised tensors
@pytest.mark.parametrize("kind", ODD_TENSORS)
def test_tensors_that_are_no_plain_numbers_are_refused(pickled, kind):
    name = "model.layers.0.self_attn.q_proj.weight"
    weights = small_weights()
    weights[name] = ODD_TENSORS[kind](weights[name])
    torch.save(weights, pickled / "pytorch_model.bin")
    outcome = run("scan", pickled, "--allow-pickle")
    assert outcome.code == 2, outcome
    assert name in outcome.err


def test_trainable_parameters_are_read_as_numbers(pickled):
    weights = {name: torch.nn.Parameter(value) for name, value in small_weights().items()}
    torch.save(weights, pickled / "pytorch_model.bin")
    layer = load_layer(load_checkpoint(pickled, allow_pickle=True), 0)
    assert not layer.w_q.requires_grad
    assert run("scan", pickled, "--allow-pickle").code == 0


# --- the hub ---------------------------------------------------------------------------------


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return cache


def cached_model(cache, name, files=("config.json", "model.safetensors")):
    """Lay a model out as huggingface_hub does: blobs, a snapshot of links to them, and a ref."""
    revision = "0123456789abcdef0123456789abcdef01234567"
    home = cache / f"models--{name.replace('/', '--')}"
    snapshot = home / "snapshots" / revision
    for folder in (home / "blobs", snapshot, home / "refs"):
        folder.mkdir(parents=True)
    original = write_small_llama(cache.parent / "original")
    for number, file in enumerate(files):
        (original / file).rename(home / "blobs" / f"hash{number}")
        (snapshot / file).symlink_to(f"../../blobs/hash{number}")
    (home / "refs" / "main").write_text(revision)
    return snapshot


@pytest.mark.parametrize("name", ["owner/model", "model-of-nobody", "gpt2"])
def test_a_hub_name_that_is_not_cached_says_what_is_missing_and_where(hub_cache, name):
    says = [name, "no such file or folder", str(hub_cache), "config.json", "*.safetensors"]
    refused("scan", name, says=[*says, "hf download", "local folder"])


def test_a_hub_name_that_is_cached_is_read_offline(hub_cache):
    snapshot = cached_model(hub_cache, "owner/small")
    checkpoint = load_checkpoint("owner/small")
    assert Path(checkpoint.path) == snapshot
    assert len(scan(checkpoint).layers) == 2
    assert run("scan", "owner/small").code == 0


def test_a_snapshot_of_the_cache_may_be_given_as_a_folder(hub_cache):
    snapshot = cached_model(hub_cache, "owner/small")
    assert load_checkpoint(snapshot).n_parameters > 0


def test_a_cached_model_without_weights_says_so(hub_cache):
    cached_model(hub_cache, "owner/small", files=("config.json",))
    refused("scan", "owner/small", says=["no weights", "model.safetensors"])


def test_a_snapshot_that_links_out_of_its_cache_is_refused(hub_cache, elsewhere):
    snapshot = cached_model(hub_cache, "owner/small")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(elsewhere)
    refused("scan", "owner/small", says=["outside the model's folder"])


@pytest.mark.parametrize("name", ["a--b/c", "owner/model.git", "x" * 97, "a..b", "owner/m-"])
def test_names_the_hub_would_not_accept_are_refused(hub_cache, name):
    refused("scan", name, says=[name, "no such file or folder"])


@pytest.mark.parametrize(
    "error", [ValueError("Expecting value"), KeyError("id"), OSError(), TimeoutError("late")]
)
def test_a_hub_that_answers_nonsense_or_not_at_all_is_reported(monkeypatch, error):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    says = ["owner/model", "asking the hub failed", str(error) or "OSError", "local folder"]
    refused("scan", "owner/model", says=says)


def test_errors_of_the_hubs_http_library_are_reported(monkeypatch):
    from huggingface_hub.errors import HfHubHTTPError

    def fail(*arguments, **options):
        raise HfHubHTTPError.__bases__[0]("no route to the proxy")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    refused("scan", "owner/model", says=["asking the hub failed", "no route to the proxy"])
