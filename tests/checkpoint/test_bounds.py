"""What a checkpoint may ask for: memory and time are bounded by its bytes, and pipes do not hang.

Memory and time are those of a process of its own, which opens one hostile file after the other.
"""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

import orbitlens as ol
from orbitlens.checkpoint.bounds import (
    DEEPEST,
    LARGEST_CONFIG,
    LARGEST_SIDE_FILE,
    MOST_CONTAINERS,
    MOST_HEADS,
    WIDEST_FOR_HEADS,
    check_counts,
    check_folder,
    check_sharing,
    check_width,
)
from orbitlens.checkpoint.gguf_header import LARGEST_HEADER, MOST_ITEMS
from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.errors import CheckpointError
from orbitlens.running.loading import build_module, load_tokenizer
from small_llama import small_weights, write_config, write_small_llama
from tiny_live import tiny_llama, write_small_gguf

POSIX = pytest.mark.skipif(os.name != "posix", reason="pipes and links are a matter of Unix")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="/proc says how much memory was used")
MEGABYTES = 150  # that opening any of the files below may take beside what the process had
SECONDS = 15.0  # of the processor
MEASURE = """
import json, sys, time
from pathlib import Path
from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.errors import CheckpointError

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))

first, *others = sys.argv[1:]
load_checkpoint(first)  # imports are no part of what is measured
import orbitlens.checkpoint.gguf_file
told = []
for path in others:
    Path("/proc/self/clear_refs").write_text("5")
    before, started = peak(), time.process_time()
    try:
        load_checkpoint(path)
        said = "opened"
    except CheckpointError as error:
        said = str(error)
    told.append([said[:300], peak() - before, time.process_time() - started])
print(json.dumps(told))
"""


def gguf_with(path, key, *values):
    """Write a GGUF file without tensors whose metadata are `values`, (type, length, bytes) each."""
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)))
        for number, (kind, length, data) in enumerate(values):
            name = f"{key}.{number}".encode()
            file.write(struct.pack("<Q", len(name)) + name)
            file.write(struct.pack("<IIQ", 9, kind, length) + data)
    return path


def hostile_files(folder):
    """Return files that once took gigabytes or minutes, each with what is said of it."""
    full = 1 << 14
    shorts = (2, full, bytes(range(256)) * (2 * full // 256))
    n_arrays = 120_000_000 // (2 * full)
    yield gguf_with(folder / "arrays.gguf", "a", *[shorts] * n_arrays), "arrays hold more than"
    n_strings = MOST_ITEMS // 2
    yield gguf_with(folder / "strings.gguf", "s", (8, n_strings, bytes(8 * n_strings))), "archit"
    endless = folder / "endless.gguf"
    with endless.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 40))
        file.truncate(4 * LARGEST_HEADER)
    yield endless, "a name of"
    large = write_small_llama(folder / "large-config")
    (large / "config.json").write_text("[" + "[]," * 19_000_000 + "[]]")
    yield large, "more than 4000000 bytes"
    many = write_small_llama(folder / "many-lists")
    (many / "config.json").write_text('{"a": [' + "[]," * (LARGEST_CONFIG // 3 - 10) + "[]]}")
    yield many, f"more than {MOST_CONTAINERS} objects"
    names = write_small_llama(folder / "many-names")
    entries = ",".join(f'"{k:06x}":1e9' for k in range(LARGEST_CONFIG // 14))
    (names / "config.json").write_text("{" + entries + "}")
    yield names, "model_type"


@LINUX
def test_opening_hostile_files_takes_bounded_memory_and_time(tmp_path):
    whole = write_small_llama(tmp_path / "whole")
    files = list(hostile_files(tmp_path))
    command = [sys.executable, "-c", MEASURE, str(whole), *(str(path) for path, _ in files)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    for (path, expected), (said, megabytes, seconds) in zip(
        files, json.loads(ran.stdout), strict=True
    ):
        assert expected in said, path
        assert megabytes < MEGABYTES, path
        assert seconds < SECONDS, path


# --- scans ---------------------------------------------------------------------------------------

SCANNED_MEGABYTES = 40  # that a scan may take beside what follows, and the file once
SCANNED_EACH = 12  # bytes of memory for each byte of a layer's 16-bit weights
SCANNED_SECONDS = 0.02  # of the processor for each narrow head
MEASURE_SCAN = """
import json, sys, time
from pathlib import Path
import orbitlens as ol

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith(name))

told = []
for path in sys.argv[1:]:
    Path("/proc/self/clear_refs").write_text("5")
    before, started = memory("VmRSS"), time.process_time()
    ol.scan(path)
    told.append([memory("VmHWM") - before, time.process_time() - started])
print(json.dumps(told))
"""


def wide_model(folder, *, d, width, n_heads, n_layers=1):
    """Write 16-bit weights whose heads share one key and value: few bytes for wide tokens."""
    r, weights = width // n_heads, {}
    sizes = {"q": (width, d), "k": (r, d), "v": (r, d), "o": (d, width)}
    for layer in range(n_layers):
        place = f"model.layers.{layer}"
        for name, shape in sizes.items():
            drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(layer))
            weights[f"{place}.self_attn.{name}_proj.weight"] = drawn.to(torch.bfloat16)
        weights[f"{place}.input_layernorm.weight"] = torch.ones(d, dtype=torch.bfloat16)
    counts = {"num_attention_heads": n_heads, "num_key_value_heads": 1, "head_dim": r}
    return write_small_llama(folder, weights, hidden_size=d, num_hidden_layers=n_layers, **counts)


@LINUX
def test_a_scan_takes_memory_for_one_layer_and_time_for_its_heads(tmp_path):
    first = wide_model(tmp_path / "first", d=64, width=16, n_heads=2)  # imports are not measured
    cases = {  # the widest tokens for their heads, whole spectra, wide maps, many layers and heads
        "thin": (wide_model(tmp_path / "thin", d=2048, width=128, n_heads=8), 1),
        "spectra": (wide_model(tmp_path / "spectra", d=512, width=32, n_heads=2), 1),
        "half": (wide_model(tmp_path / "half", d=1024, width=512, n_heads=8), 1),
        "deep": (wide_model(tmp_path / "deep", d=1024, width=512, n_heads=8, n_layers=8), 8),
        "many": (wide_model(tmp_path / "many", d=64, width=512, n_heads=256), 1),
    }
    files = [str(first), *(str(folder) for folder, _ in cases.values())]
    command = [sys.executable, "-c", MEASURE_SCAN, *files]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=one_thread)
    told = dict(zip(cases, json.loads(ran.stdout)[1:], strict=True))
    for name, (folder, n_layers) in cases.items():
        size = (folder / "model.safetensors").stat().st_size / 1e6
        allowed = SCANNED_MEGABYTES + SCANNED_EACH * size / n_layers + size
        assert told[name][0] < allowed, name
    assert told["many"][1] < 256 * SCANNED_SECONDS


@POSIX
@pytest.mark.parametrize(
    "name", ["x.gguf", "model.safetensors", "config.json", "model.safetensors.index.json"]
)
def test_a_pipe_does_not_hang(tmp_path, name):
    folder = write_small_llama(tmp_path / "m")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError, match="a pipe or a device"):
        load_checkpoint(folder / name if name.endswith("gguf") else folder)


def test_counts_up_to_the_bounds_are_taken_and_beyond_refused():
    check_counts("m", n_layers=DEEPEST, n_heads=MOST_HEADS // DEEPEST)
    with pytest.raises(CheckpointError, match="asks for 1025 layers; expected at most 1024"):
        check_counts("m", n_layers=DEEPEST + 1, n_heads=1)
    with pytest.raises(CheckpointError, match="at most 32768 heads in all"):
        check_counts("m", n_layers=2, n_heads=MOST_HEADS // 2 + 1)
    check_width("m", d_model=16 * WIDEST_FOR_HEADS, heads_width=16)
    with pytest.raises(CheckpointError, match="at most 16 times as wide as the heads"):
        check_width("m", d_model=16 * WIDEST_FOR_HEADS + 1, heads_width=16)
    check_sharing("m", n_layers=256, n_sets=2)
    with pytest.raises(CheckpointError, match="257 layers share 2 sets of weights"):
        check_sharing("m", n_layers=257, n_sets=2)


def test_a_config_that_asks_for_ten_thousand_layers_is_refused(tmp_path):
    folder = write_small_llama(tmp_path, num_hidden_layers=10_000)
    with pytest.raises(CheckpointError, match="asks for 10000 layers"):
        load_checkpoint(folder)


def test_tokens_out_of_proportion_to_the_heads_are_refused(tmp_path):
    weights = {}
    for name in ("q", "k", "v"):
        weights[f"model.layers.0.self_attn.{name}_proj.weight"] = torch.zeros(1, 20_000)
    weights["model.layers.0.self_attn.o_proj.weight"] = torch.zeros(20_000, 1)
    weights["model.layers.0.input_layernorm.weight"] = torch.ones(20_000)
    sizes = {"hidden_size": 20_000, "num_attention_heads": 1, "head_dim": 1}
    folder = write_small_llama(tmp_path, weights, **sizes, num_hidden_layers=1)
    with pytest.raises(CheckpointError, match="20000 wide and all heads of a layer together 1"):
        load_checkpoint(folder)


# --- what another library is given ----------------------------------------------------------------


@pytest.fixture
def runnable(tmp_path):
    """Return the folder of a model that runs, with a tokenizer beside it."""
    folder = tmp_path / "model"
    tiny_llama().save_pretrained(folder)
    from tokenizers import Tokenizer, models

    plain = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="[UNK]")
    fast.save_pretrained(folder)
    return folder


def change_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_whole_model_is_built_and_its_tokenizer_read(runnable):
    assert build_module(runnable).config.vocab_size == 40
    assert load_tokenizer(runnable)("a")["input_ids"] == [0]


@POSIX
@pytest.mark.parametrize("name", ["tokenizer.json", "special_tokens_map.json", "extra.txt"])
def test_a_link_out_of_the_folder_is_given_to_nobody(runnable, tmp_path, name):
    secret = tmp_path / "secret.json"
    secret.write_text((runnable / "tokenizer.json").read_text())
    (runnable / name).unlink(missing_ok=True)
    (runnable / name).symlink_to(secret)
    for use in (build_module, load_tokenizer):
        with pytest.raises(CheckpointError, match="lies outside the model's folder"):
            use(runnable)


@POSIX
def test_a_pipe_beside_the_weights_does_not_hang(runnable):
    (runnable / "tokenizer.json").unlink()
    os.mkfifo(runnable / "tokenizer.json")
    for use in (build_module, load_tokenizer):
        with pytest.raises(CheckpointError, match="a pipe or a device"):
            use(runnable)


def test_a_file_beside_the_weights_has_a_size_of_its_kind(tmp_path):
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(LARGEST_SIDE_FILE + 1)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(2 * LARGEST_SIDE_FILE)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: 64000001 bytes are too many"):
        check_folder(tmp_path)


@pytest.mark.parametrize("changes", [{"vocab_size": 2**31}, {"intermediate_size": 2**30}])
def test_a_config_out_of_proportion_to_the_weights_is_refused_before_it_is_built(runnable, changes):
    change_config(runnable, **changes)
    with pytest.raises(CheckpointError, match="not of the same model"):
        build_module(runnable)


EVIL = """
from pathlib import Path
Path({mark!r}).write_text("it ran")
class EvilConfig: pass
class EvilModel: pass
"""


@pytest.mark.parametrize("model_type", ["llama", "evil"])
def test_code_beside_the_weights_does_not_run(runnable, tmp_path, model_type, monkeypatch):
    mark = tmp_path / "mark"
    (runnable / "evil.py").write_text(EVIL.format(mark=str(mark)))
    names = {"AutoConfig": "evil.EvilConfig", "AutoModel": "evil.EvilModel"}
    names |= {"AutoModelForCausalLM": "evil.EvilModel", "AutoTokenizer": [None, "evil.EvilModel"]}
    change_config(runnable, auto_map=names, model_type=model_type)
    file = runnable / "tokenizer_config.json"
    given = json.loads(file.read_text()) | {"auto_map": {"AutoTokenizer": names["AutoTokenizer"]}}
    file.write_text(json.dumps(given))
    # Asked whether to run it, a user who is not there would say yes.
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    for use in (load_checkpoint, build_module, load_tokenizer):
        try:
            use(runnable)
        except CheckpointError:
            pass
    assert not mark.exists()


def test_a_kernel_named_by_a_config_is_not_asked_for(runnable):
    change_config(runnable, attn_implementation="someone/flash-kernel")
    assert build_module(runnable).config._attn_implementation in {"sdpa", "eager"}


def test_a_config_may_not_name_another_file_of_weights(runnable):
    (runnable / "other.safetensors").write_bytes(b"nothing")
    change_config(runnable, transformers_weights="other.safetensors")
    assert build_module(runnable) is not None


def test_an_adapter_beside_the_weights_is_refused(runnable, tmp_path):
    content = {"peft_type": "LORA", "base_model_name_or_path": str(tmp_path / "elsewhere")}
    (runnable / "adapter_config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="Merge it into the weights"):
        build_module(runnable)


def test_a_model_that_returns_no_numbers_is_refused(runnable):
    model = tiny_llama()
    with torch.no_grad():
        model.model.embed_tokens.weight.fill_(float("nan"))
    save_file(model.state_dict(), runnable / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="NaN or infinity for its first tokens"):
        build_module(runnable)


def test_a_gguf_file_is_built_within_the_same_bounds(tmp_path):
    path = write_small_gguf(tmp_path / "small.gguf")
    assert build_module(path).config.vocab_size == 40


def test_results_of_a_bounded_config_are_those_of_before(tmp_path):
    write_config(write_small_llama(tmp_path), architectures="no list")
    save_file(small_weights(), tmp_path / "model.safetensors")
    assert len(ol.scan(Path(tmp_path)).layers) == 2
