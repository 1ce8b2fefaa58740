"""Models read by range from a server: the numbers of the file on disk, whatever the server does."""

import json
import os
import subprocess
import sys

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hub_server import COMMIT, serving
from orbitlens.checkpoint import hub, remote_file
from orbitlens.checkpoint.hub import hub_place
from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.checkpoint.remote_file import Patience, joined
from orbitlens.encodings.api import positions
from orbitlens.encodings.options import PositionsOptions
from orbitlens.errors import CheckpointError, InputError
from orbitlens.heads.layers import load_layer
from orbitlens.running.model import load
from orbitlens.scanning.api import scan
from orbitlens.scanning.options import ScanOptions
from small_llama import refused, run, write_small_llama

WIDTH, N_LAYERS = 64, 4
KIND = gguf.GGMLQuantizationType.Q8_0
IMPATIENT = Patience(tries=4, pause=0.01)


def write_model(folder, *, n_shards=3):
    """Write a Llama whose attention is a small part of it, in shards."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator).bfloat16()

    weights = {"model.embed_tokens.weight": drawn(2000, WIDTH)}
    for layer in range(N_LAYERS):
        place = f"model.layers.{layer}"
        weights[f"{place}.input_layernorm.weight"] = drawn(WIDTH)
        for name in "qkvo":
            weights[f"{place}.self_attn.{name}_proj.weight"] = drawn(WIDTH, WIDTH)
        for name in ("gate", "up"):
            weights[f"{place}.mlp.{name}_proj.weight"] = drawn(6000, WIDTH)
    changes = {"hidden_size": WIDTH, "num_hidden_layers": N_LAYERS, "num_key_value_heads": 2}
    write_small_llama(folder, weights, head_dim=32, **changes)
    names = sorted(weights)
    index = {name: f"part-{k * n_shards // len(names)}.safetensors" for k, name in enumerate(names)}
    for shard in set(index.values()):
        own = {name: weights[name] for name in names if index[name] == shard}
        save_file(own, folder / shard)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def write_gguf(file):
    """Write one Llama layer as a GGUF file, with a vocabulary longer than the first request."""
    writer = gguf.GGUFWriter(file, "llama")
    sizes = {"block_count": 1, "context_length": 16, "embedding_length": 32}
    sizes |= {"attention.head_count": 2, "attention.head_count_kv": 1, "rope.dimension_count": 16}
    for key, value in sizes.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_array("tokenizer.ggml.tokens", [f"token number {k}" for k in range(4000)])
    random = np.random.default_rng(0)
    for name, rows in {"q": 32, "k": 16, "v": 16, "output": 32}.items():
        raw = gguf.quants.quantize(random.normal(size=(rows, 32)).astype(np.float32), KIND)
        writer.add_tensor(f"blk.0.attn_{name}.weight", raw, raw_dtype=KIND)
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("remote") / "model")


@pytest.fixture
def server(folder, tmp_path, monkeypatch):
    small = write_small_llama(tmp_path / "small")
    ggufs = tmp_path / "ggufs"
    ggufs.mkdir()
    write_gguf(ggufs / "small.gguf")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "PATIENCE", IMPATIENT)
    monkeypatch.setattr(hub, "TIMEOUTS", (5.0, 0.4, 5.0, 5.0))
    models = {"owner/model": folder, "owner/small": small, "owner/ggufs": ggufs}
    with serving(models) as running:
        template = running.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", running.url)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield running


def same_layers(name, folder):
    """Say whether all attention weights read from afar are those on disk, bit by bit."""
    afar, near = load_checkpoint(name), load_checkpoint(folder)
    for index in range(near.stack().n_layers):
        ours, theirs = load_layer(afar, index), load_layer(near, index)
        for part in ("w_q", "w_k", "w_v", "w_o", "norm_gain"):
            a, b = getattr(ours, part), getattr(theirs, part)
            if a.dtype != b.dtype or not torch.equal(a, b):
                return False
    return True


# --- what is read ----------------------------------------------------------------------------


def test_a_scan_from_afar_is_that_of_the_files(server, folder):
    afar, near = scan("owner/model"), scan(folder)
    assert afar.layers == near.layers
    assert dict(afar.model.sha256) == dict(near.model.sha256)
    assert afar.model.name == "model"
    assert afar.model.path == f"hf://owner/model@{COMMIT}"


def test_positions_from_afar_are_those_of_the_files(server, folder):
    assert positions("owner/model").layers == positions(folder).layers


def test_nothing_but_headers_and_attention_is_read(server, folder):
    result = scan("owner/model")
    attention = N_LAYERS * (4 * WIDTH * WIDTH + WIDTH) * 2
    first = remote_file.FIRST * 5  # the first bytes of config, index and three shards
    assert result.cost.bytes_read == server.sent
    assert attention < server.sent <= attention + first
    total = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert result.cost.bytes_total <= total
    assert server.sent < 0.1 * total


def test_positions_read_queries_and_keys_alone(server):
    positions("owner/model")
    queries_and_keys = N_LAYERS * 2 * WIDTH * WIDTH * 2
    between = N_LAYERS * WIDTH * WIDTH * 2  # outputs lie between keys and queries: one range
    assert server.sent <= queries_and_keys + between + 5 * remote_file.FIRST


def test_a_sample_of_layers_reads_no_others(server, folder):
    wanted = [0, 2, 3]
    some = scan("owner/model", ScanOptions(layers=wanted))
    assert some.layers == tuple(scan(folder).layers[k] for k in wanted)
    assert server.sent <= 3 * (4 * WIDTH * WIDTH + WIDTH) * 2 + 5 * remote_file.FIRST
    before = server.sent
    few = positions("owner/model", options=PositionsOptions(layers=wanted))
    assert [each.layer for each in few.layers] == wanted
    assert server.sent - before < before + 1
    with pytest.raises(InputError, match="layers \\[9\\]"):
        positions("owner/model", options=PositionsOptions(layers=[9]))


def test_neighbours_are_fetched_in_one_request(server):
    checkpoint = load_checkpoint("owner/model")
    before = len(server.requests)
    load_layer(checkpoint, 1)
    assert len(server.requests) - before <= 2  # the norm lies far from the four projections


def test_ranges_are_joined_across_small_gaps_only():
    far = remote_file.GAP + 1
    assert joined([(0, 4), (4, 4), (8 + far, 1)]) == [(0, 8), (8 + far, 9 + far)]
    assert joined([(0, 10), (2, 3), (5, 0)]) == [(0, 10)]
    assert joined([]) == []


def test_a_gguf_file_is_read_from_afar(server, tmp_path):
    address = "hf://owner/ggufs/small.gguf"
    near = load_checkpoint(tmp_path / "ggufs" / "small.gguf")
    afar = load_checkpoint(address)
    assert afar.source.header_sha256 == near.source.header_sha256
    for name in near.source.tensors:
        assert torch.equal(afar.read(name), near.read(name))
    assert scan(address).layers == scan(near).layers
    assert scan(address).model.name == "small"


def test_a_repository_of_gguf_files_says_which_there_are(server):
    refused("scan", "owner/ggufs", says=["config.json", "small.gguf"])


def test_a_model_is_fetched_whole_only_to_be_run(server, tmp_path):
    model = load("owner/small")
    scan(model)
    assert not (tmp_path / "cache").exists()


def test_the_command_says_how_much_it_read_of_how_much(server, folder):
    outcome = run("scan", "owner/model", "--layers", "0,3")
    assert outcome.code == 0
    total = load_checkpoint(folder).n_bytes
    said = f"read {server.sent / 1e3:.3g} KB of {total / 1e6:.3g} MB"
    assert said in outcome.out.replace("\n", " ")


# --- a server that misbehaves ----------------------------------------------------------------


@pytest.mark.parametrize("fault", ["cut", "busy", "closed", "stall", "less", "whole"])
def test_a_fault_now_and_then_costs_nothing_but_time(server, folder, fault):
    server.faults = [None, fault, None, None, fault, None, None, None, fault, fault, None] * 3
    assert same_layers("owner/model", folder)


def test_a_connection_that_is_always_cut_still_makes_its_way(server, folder):
    server.always = "cut"
    assert same_layers("owner/model", folder)


def test_what_a_cut_connection_brought_is_not_asked_for_again(server):
    checkpoint = load_checkpoint("owner/model")
    before, server.faults = server.sent, ["cut"]
    wanted = checkpoint.source.tensors["model.embed_tokens.weight"].n_bytes
    checkpoint.read("model.embed_tokens.weight")
    assert server.sent - before == wanted
    ranges = [asked for _, asked in server.requests[-2:]]
    assert int(ranges[1].split("=")[1].split("-")[0]) > int(ranges[0].split("=")[1].split("-")[0])


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("etag", "changed while it was read"),
        ("grown", "changed while it was read"),
        ("elsewhere", "does not fit what was asked for"),
        ("unsaid", "did not say which range"),
        ("absurd", "did not say which range"),
        ("more", "more than the|did not give bytes"),
        ("zipped", "another encoding"),
        ("gone", "there is none"),
        ("login", "not open to you"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(server, fault, says):
    checkpoint = load_checkpoint("owner/model")
    server.always = fault
    with pytest.raises(CheckpointError, match=says):
        load_layer(checkpoint, 2)


@pytest.mark.parametrize("fault", ["busy", "closed", "stall"])
def test_a_server_that_never_answers_is_given_up(server, fault):
    checkpoint = load_checkpoint("owner/model")
    server.always = fault
    before = len(server.requests)
    with pytest.raises(CheckpointError, match="did not give bytes"):
        load_layer(checkpoint, 2)
    assert len(server.requests) - before == IMPATIENT.tries


def test_a_server_that_knows_no_ranges_is_read_if_the_file_is_small(server, folder, monkeypatch):
    server.always = "whole"
    assert same_layers("owner/model", folder)
    monkeypatch.setattr(remote_file, "WHOLE", 100_000)
    with pytest.raises(CheckpointError, match="whole file whatever range"):
        load_checkpoint("owner/model")


def test_a_slow_drip_counts_as_broken(server, monkeypatch):
    monkeypatch.setattr(hub, "PATIENCE", Patience(pause=0.001, slowest=1e9, allowance=0.05))
    checkpoint = load_checkpoint("owner/model")
    server.always = "drip"
    with pytest.raises(CheckpointError, match="in all the time allowed"):
        load_layer(checkpoint, 2)


def test_offsets_beyond_the_file_are_refused_unasked(server):
    file = load_checkpoint("owner/model").remote.file("part-0.safetensors")
    before = len(server.requests)
    for offset, length in ((file.size, 1), (-1, 2), (0, file.size + 1), (5, -1)):
        with pytest.raises(CheckpointError, match="were asked for"):
            file.read(offset, length)
    assert len(server.requests) == before


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "elsewhere.safetensors"])
def test_an_index_may_name_no_file_that_the_model_does_not_have(server, tmp_path, name):
    place = tmp_path / "small" / "model.safetensors.index.json"
    place.write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(CheckpointError, match="only name files beside it"):
        load_checkpoint("owner/small")
    assert all(file in {"config.json", place.name} for file, _ in server.requests)


def test_an_absurd_header_is_refused_before_it_is_fetched(server, tmp_path):
    with (tmp_path / "small" / "model.safetensors").open("wb") as file:
        file.write((90_000_000).to_bytes(8, "little"))
        file.truncate(100_000_000)
    with pytest.raises(CheckpointError, match="header of 90000000 bytes"):
        load_checkpoint("owner/small")
    assert server.sent < 200_000


# --- names, the cache, and the switch --------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "repo", "revision", "file"),
    [
        ("owner/model", "owner/model", None, None),
        ("gpt2", "gpt2", None, None),
        ("owner/model@v1.0", "owner/model", "v1.0", None),
        ("owner/model@refs/pr/3", "owner/model", "refs/pr/3", None),
        ("hf://owner/model", "owner/model", None, None),
        ("hf://owner/model@main/a/b.gguf", "owner/model", "main", "a/b.gguf"),
    ],
)
def test_a_place_of_the_hub_is_read_from_its_name(text, repo, revision, file):
    place = hub_place(text)
    assert (place.repo, place.revision, place.file) == (repo, revision, file)


@pytest.mark.parametrize(
    "text", ["hf://owner", "hf://owner/model/../x.gguf", "hf://owner/model/x.bin", "a/b@", "a b"]
)
def test_what_is_no_place_of_the_hub_is_refused(text):
    assert hub_place(text) is None
    with pytest.raises(CheckpointError, match="no such file or folder"):
        load_checkpoint(text)


def test_a_model_that_is_not_there_is_said_to_be_missing(server):
    refused("scan", "owner/nothing", says=["owner/nothing", "asking the hub failed"])


def test_offline_mode_asks_nobody(server, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused("scan", "owner/model", says=["switched off", "hf download"])
    assert server.requests == []


MEASURE = """
import sys, torch
from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.heads.layers import load_layer
from orbitlens.running.info import peak_rss_bytes
torch.set_num_threads(1)
checkpoint = load_checkpoint(sys.argv[1])
load_layer(checkpoint, 0)
before = peak_rss_bytes()
for index in range(1, checkpoint.stack().n_layers):
    load_layer(checkpoint, index)
print(peak_rss_bytes() - before, sum(i.n_bytes for n, i in checkpoint.source.tensors.items()))
"""


def test_memory_holds_one_layer_however_many_are_read(tmp_path):
    width, layers = 1024, 8
    weights = {}
    for layer in range(layers):
        weights[f"model.layers.{layer}.input_layernorm.weight"] = torch.ones(width)
        for name in "qkvo":
            weight = torch.zeros(width, width, dtype=torch.bfloat16)
            weights[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = weight
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_key_value_heads": 16}
    folder = write_small_llama(
        tmp_path / "wide", weights, head_dim=64, num_attention_heads=16, **sizes
    )
    with serving({"owner/wide": folder}) as running:
        environment = os.environ | {"HF_ENDPOINT": running.url, "HF_HUB_OFFLINE": "0"}
        environment["HF_HUB_CACHE"] = str(tmp_path / "cache")
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, "owner/wide"],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
    grown, total = map(int, done.stdout.split())
    assert total > 60e6
    assert grown < 2.5 * total / layers
