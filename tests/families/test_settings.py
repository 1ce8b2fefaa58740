"""Configs that are wrong in every way: each is read, or refused by name; never a crash or a flood.

The fuzz at the end puts arbitrary JSON in place of any key that a family's reading looks at.
"""

import contextlib
import json
import math
import resource
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.errors import OrbitlensError
from orbitlens.families.architecture import Position
from orbitlens.families.settings import LARGEST_SIZE, ROTARY_KINDS, Settings
from orbitlens.heads.attention import attention_output
from orbitlens.heads.layers import load_layer
from orbitlens.scanning.api import scan
from orbitlens.scanning.options import ScanOptions
from small_llama import CONFIG, refused, run, write_config, write_small_llama
from tiny_models import BERT, CASES, Case, build

SIZES = ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"]
SIZES += ["head_dim", "max_position_embeddings"]
REQUIRED = ["hidden_size", "num_hidden_layers", "num_attention_heads"]


@pytest.fixture
def model(tmp_path):
    return write_small_llama(tmp_path)


# --- sizes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize(
    "value", [0, -1, 2**24, 10**9, 10**400, 2.0, 8.5, 1e300, math.inf, math.nan, "8", True, [8], {}]
)
def test_a_size_that_is_no_positive_whole_number_is_named(model, key, value):
    write_config(model, **{key: value})
    says = [f"config key '{key}'", repr(value)[:40], f"a whole number from 1 to {LARGEST_SIZE - 1}"]
    refused("scan", model, says=says)


@pytest.mark.parametrize("key", REQUIRED)
@pytest.mark.parametrize("value", [..., None])
def test_a_missing_size_is_named_in_all_its_spellings(model, key, value):
    write_config(model, **{key: value})
    refused("scan", model, says=["the config has no", key, " or ", "positive whole number"])


@pytest.mark.parametrize("key", ["num_key_value_heads", "head_dim", "max_position_embeddings"])
def test_sizes_with_a_default_may_be_missing_or_null(model, key):
    shapes_then_differ = {"num_key_value_heads": "[8, 8]"}
    for value in (..., None):
        write_config(model, **{key: value})
        if key in shapes_then_differ:
            refused("scan", model, says=["k_proj", "[4, 8]", shapes_then_differ[key]])
        else:
            assert run("scan", model).code == 0


def test_heads_that_do_not_divide_the_width_are_refused(model):
    write_config(model, num_attention_heads=3, num_key_value_heads=3, head_dim=...)
    refused("scan", model, says=["d_model=8", "n_heads=3", "head_dim"])


def test_key_heads_that_do_not_divide_the_heads_are_refused(model):
    write_config(model, num_attention_heads=4, num_key_value_heads=3, head_dim=2)
    refused("scan", model, says=["4 heads", "3 key/value heads", "num_key_value_heads"])


@pytest.mark.parametrize(("key", "value"), [("head_dim", 8), ("hidden_size", 16)])
def test_sizes_that_the_weights_do_not_have_are_refused(model, key, value):
    write_config(model, **{key: value})
    refused("scan", model, says=["has shape", "the config says", "not of the same model"])


def test_more_layers_than_there_are_weights_are_refused_at_once(model):
    write_config(model, num_hidden_layers=3)
    refused("scan", model, says=["model.layers.2.", "is missing", "layer count"])
    write_config(model, num_hidden_layers=LARGEST_SIZE - 1)
    refused("scan", model, says=["16777215 layers", "expected at most", "num_hidden_layers"])


def test_fewer_layers_than_there_are_weights_are_read(model):
    write_config(model, num_hidden_layers=1)
    assert load_checkpoint(model).stack().n_layers == 1


@pytest.mark.parametrize("value", [-1e-6, "small", math.nan, math.inf, True])
def test_an_epsilon_that_is_none_is_named(model, value):
    write_config(model, rms_norm_eps=value)
    refused("scan", model, says=["config key 'rms_norm_eps'", "expected"])


# --- rotary encodings ------------------------------------------------------------------------

BROKEN_ROPE = {
    "unknown type": ({"rope_type": "spiral"}, ["rope_type", "'spiral'", "llama3"]),
    "type is a list": ({"rope_type": ["linear"]}, ["rope_type", "['linear']", "llama3"]),
    "not an object": ("yarn", ["rope_parameters", "'yarn'", "an object"]),
    "a list": ([{"rope_type": "yarn"}], ["rope_parameters", "an object"]),
    "linear without factor": ({"rope_type": "linear"}, ["rope_parameters.factor", "'linear'"]),
    "dynamic without factor": ({"type": "dynamic"}, ["rope_parameters.factor", "'dynamic'"]),
    "llama3 without its factors": (
        {"rope_type": "llama3", "factor": 8.0},
        ["rope_parameters.low_freq_factor", "'llama3'"],
    ),
    "llama3 with one frequency": (
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 2.0, "high_freq_factor": 2.0},
        ["rope_parameters.high_freq_factor", "2.0", "above low_freq_factor"],
    ),
    "longrope without factors": ({"rope_type": "longrope"}, ["rope_parameters.short_factor"]),
    "longrope with too many factors": (
        {"rope_type": "longrope", "short_factor": [1.0] * 2, "long_factor": [1.0] * 3},
        ["rope_parameters.long_factor", "2 positive numbers, one a pair"],
    ),
    "longrope with a factor of 0": (
        {"rope_type": "longrope", "short_factor": [1.0, 0], "long_factor": [1.0] * 2},
        ["rope_parameters.short_factor", "[1.0, 0]", "2 positive numbers"],
    ),
    "longrope with words": (
        {"rope_type": "longrope", "short_factor": ["a", "b"], "long_factor": [1.0] * 2},
        ["rope_parameters.short_factor", "2 positive numbers"],
    ),
    "longrope with no list": (
        {"rope_type": "longrope", "short_factor": 1.0, "long_factor": [1.0] * 2},
        ["rope_parameters.short_factor", "1.0", "2 positive numbers"],
    ),
    "longrope trained on one token": (
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 2,
            "long_factor": [1.0] * 2,
            "original_max_position_embeddings": 1,
        },
        ["original_max_position_embeddings", "more than 1 token"],
    ),
    "factor of 0": ({"rope_type": "linear", "factor": 0}, ["factor", "0", "a number from 1e-15"]),
    "negative factor": (
        {"rope_type": "yarn", "factor": -2.0},
        ["factor", "-2.0", "a number from 1e-15"],
    ),
    "factor is a word": ({"rope_type": "linear", "factor": "2"}, ["factor", "'2'", "a number"]),
    "factor is true": ({"rope_type": "linear", "factor": True}, ["factor", "True", "a number"]),
    "attention factor": (
        {"rope_type": "yarn", "factor": 2.0, "attention_factor": "x"},
        ["rope_parameters.attention_factor", "'x'"],
    ),
    "beta": (
        {"rope_type": "yarn", "factor": 2.0, "beta_fast": -32},
        ["rope_parameters.beta_fast", "-32", "a number from 1e-15"],
    ),
    "mscale": (
        {"rope_type": "yarn", "factor": 2.0, "mscale": [1], "mscale_all_dim": 1},
        ["rope_parameters.mscale", "[1]"],
    ),
    "truncate": (
        {"rope_type": "yarn", "factor": 2.0, "truncate": "no"},
        ["rope_parameters.truncate", "'no'", "true or false"],
    ),
    "negative base": ({"rope_theta": -1.0}, ["rope_theta", "-1.0", "above 1"]),
    "base of 1": ({"rope_theta": 1}, ["rope_theta", "1.0", "above 1"]),
    "base is a word": ({"rope_theta": "10000"}, ["rope_theta", "'10000'", "a number"]),
    "base is infinite": ({"rope_theta": math.inf}, ["rope_theta", "inf", "a number from"]),
    "odd width": ({"partial_rotary_factor": 0.75}, ["partial_rotary_factor", "0.75", "even"]),
    "width of 0": ({"partial_rotary_factor": 0.0}, ["partial_rotary_factor", "0.0", "even"]),
    "too wide": ({"partial_rotary_factor": 2.0}, ["partial_rotary_factor", "2.0", "even"]),
    "dynamic on one plane": (
        {"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.5},
        ["rope_type", "'dynamic'", "another type"],
    ),
    "nested without layer types": (
        {"full_attention": {"rope_type": "default"}},
        ["rope_parameters", "one encoding for all layers"],
    ),
}


@pytest.mark.parametrize("name", BROKEN_ROPE)
def test_a_broken_rotary_encoding_is_named(model, name):
    parameters, says = BROKEN_ROPE[name]
    write_config(model, rope_parameters=parameters)
    refused("scan", model, says=["config key", *says])


@pytest.mark.parametrize("name", BROKEN_ROPE)
def test_the_old_spelling_is_checked_as_strictly(model, name):
    parameters, says = BROKEN_ROPE[name]
    if name in {"negative base", "base of 1", "base is a word", "base is infinite"}:
        write_config(model, rope_parameters=..., **parameters)
    else:
        write_config(model, rope_parameters=..., rope_scaling=parameters)
    refused("scan", model, says=["config key", *says[1:]])


@pytest.mark.parametrize("width", [1, 3, 5, -2, "2"])
def test_a_rotary_width_that_does_not_fit_is_named(model, width):
    write_config(model, rotary_dim=width)
    refused("scan", model, says=["config key", "rotary"])


@pytest.mark.parametrize("kind", ROTARY_KINDS)
def test_every_known_kind_is_read_when_it_is_whole(model, kind):
    whole = {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    whole |= {"short_factor": [1.0, 2], "long_factor": [2, 4.0]}
    write_config(model, rope_parameters={"rope_type": kind, "rope_theta": 50, **whole})
    assert run("scan", model, "--context", 40).code == 0


# --- shared layers and lists that grow -------------------------------------------------------

DEBERTA = Case(
    "deberta",
    "DebertaV2Model",
    {**BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
)
BY_NAME = {case.name: case for case in [*CASES, DEBERTA]}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return a function from a case's name to a saved model of its own and its config."""
    known = {}

    def get(name):
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            build(BY_NAME[name]).save_pretrained(folder)
            known[name] = folder, json.loads((folder / "config.json").read_text())
        folder, config = known[name]
        (folder / "config.json").write_text(json.dumps(config))
        return folder, json.loads(json.dumps(config))

    return get


@contextlib.contextmanager
def little_memory(n_bytes=1_000_000_000):
    """Let this process take up no more than `n_bytes` of further memory, where Linux can."""
    if not Path("/proc/self/statm").exists():
        yield
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + n_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def change(folder, config, **changes):
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_albert_with_absurdly_many_shared_layers_is_refused(tiny):
    folder, config = tiny("albert")
    change(folder, config, num_hidden_layers=LARGEST_SIZE - 1, num_hidden_groups=1)
    with little_memory():
        refused("scan", folder, says=["16777215 layers", "expected", "num_hidden_layers"])


def test_gpt_neo_with_absurdly_long_patterns_takes_no_memory(tiny):
    folder, config = tiny("gpt_neo")
    config.pop("attention_layers", None)
    change(folder, config, attention_types=[[["global", "local"], 10**9]])
    with little_memory():
        windows = [layer.window for layer in load_checkpoint(folder).stack().layers]
    assert windows == [None, 4, None, 4]


def test_stablelm_with_absurdly_many_heads_takes_no_memory(tiny):
    folder, config = tiny("stablelm-qk-norm")
    n_heads = LARGEST_SIZE - 1
    change(folder, config, num_attention_heads=n_heads, num_key_value_heads=n_heads, head_dim=6)
    with little_memory():
        refused("scan", folder, says=["16777215 heads", "expected", "num_attention_heads"])


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("gemma2", "attn_logit_softcapping", 0),
        ("gemma2", "attn_logit_softcapping", -3.0),
        ("gemma2", "query_pre_attn_scalar", 0),
        ("gemma2", "query_pre_attn_scalar", -4),
        ("olmo", "clip_qkv", -1.0),
        ("t5", "relative_attention_max_distance", 0),
        ("gpt_neo", "attention_types", "global"),
        ("gpt_neo", "attention_layers", ["global"]),
        ("qwen2-sliding", "layer_types", ["full_attention"]),
        ("qwen2-sliding", "max_window_layers", "one"),
        ("deberta", "pos_att_type", {"c2p": 1}),
        ("deberta", "pos_att_type", [["c2p"]]),
        ("bert", "position_embedding_type", ["absolute"]),
        ("falcon-new", "num_ln_in_parallel_attn", "two"),
        ("falcon-new", "new_decoder_architecture", 1),
    ],
)
def test_a_family_setting_of_the_wrong_form_is_named(tiny, name, key, value):
    folder, config = tiny(name)
    if key == "attention_types":
        config.pop("attention_layers", None)
    change(folder, config, **{key: value})
    refused("scan", folder, says=[f"config key '{key}'", "expected"])


def test_alibi_slopes_that_would_overflow_are_refused(tiny):
    folder, config = tiny("mpt")
    change(folder, config, attn_config={"alibi": True, "alibi_bias_max": -1e6})
    refused("scan", folder, says=["config key 'attn_config.alibi_bias_max'", "expected"])


def test_mpt_takes_a_clip_of_zero_for_none_as_transformers_does(tiny):
    folder, config = tiny("mpt")
    change(folder, config, attn_config={"alibi": True, "clip_qkv": 0})
    assert load_checkpoint(folder).stack().qk_clip is None


# --- anything at all -------------------------------------------------------------------------

ODD_NUMBERS = [0, -1, 1, 2, 3, 7, 10**9, LARGEST_SIZE - 1, LARGEST_SIZE, 2**63, 10**400, 0.0, 0.5]
ODD_NUMBERS += [-0.5, 1.5, 1e-300, 5e-324, 1e300, 1.7e308, math.inf, -math.inf, math.nan]
ODD_WORDS = ["default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "global"]
ODD_WORDS += ["local", "full_attention", "sliding_attention", "c2p|p2c", "absolute", "\x1b[31m", ""]
# One of each kind: these are tried for every key, the rest by chance.
REPRESENTATIVES = [0, -1, 0.5, 10**9, 1e300, 5e-324, True, "x", [1, 2], ...]
SCALARS = (
    st.sampled_from(ODD_NUMBERS)
    | st.sampled_from(ODD_WORDS)
    | st.integers()
    | st.floats()
    | st.none()
    | st.booleans()
    | st.text(max_size=4)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from([*ODD_WORDS, "rope_type", "factor"]), inner, max_size=3)
    ),
    max_leaves=6,
)
ROPE_KEYS = ["rope_type", "type", "rope_theta", "factor", "partial_rotary_factor"]
ROPE_KEYS += ["full_attention", "original_max_position_embeddings"]
YARN = ["attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"]
FUZZED = {
    "llama-grouped": ROPE_KEYS,
    "llama-yarn-options": ["factor", *YARN],
    "llama-llama3": ["factor", "low_freq_factor", "high_freq_factor"],
    "llama-longrope-short": ["short_factor", "long_factor", "factor", "attention_factor"],
    "gemma3": ["rope_theta"],
}
FUZZED |= {"deepseek_v3-yarn-bias": ["factor", *YARN], "lfm2": (), "lfm2_moe": ()}
FUZZED |= dict.fromkeys(["gpt2", "falcon-new", "t5", "albert"], ())
FUZZED |= dict.fromkeys(["gpt_neo", "mpt", "deberta", "stablelm-qk-norm", "qwen2-sliding"], ())


def keys_looked_at(folder, config, rope_keys):
    """Return the path of every key that reading this model looks at."""
    seen = {"text_config", "model_type"}
    plain_get = Settings.get

    def noting_get(self, key, default=None):
        seen.add(key)
        return plain_get(self, key, default)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Settings, "get", noting_get)
        load_checkpoint(folder)
    paths = {tuple(key.split(".")) for key in seen if not key.startswith(("_gguf", "rope_"))}
    paths |= {("rope_parameters", key) for key in rope_keys}
    for outer, inner in (config.get("rope_parameters") or {}).items():
        if isinstance(inner, dict):
            paths |= {("rope_parameters", outer, key) for key in rope_keys}
    return sorted(paths)


def put(config, path, value):
    """Set the value at `path`, making objects on the way; `...` takes it out."""
    *outer, last = path
    for key in outer:
        if not isinstance(config.get(key), dict):
            config[key] = {}
        config = config[key]
    if value is ...:
        config.pop(last, None)
    else:
        config[last] = value


def read_all(checkpoint):
    """Read a model as far as anyone can: heads, attention, scan, JSON."""
    generator = torch.Generator().manual_seed(0)
    for stack in checkpoint.architecture.stacks:
        layer = load_layer(checkpoint, stack.n_layers - 1, stack=stack.name)
        x = torch.randn(5, stack.d_model, generator=generator, dtype=torch.float64)
        assert attention_output(layer, layer.normalise(x)).isfinite().all()
    turned = any(s.position is Position.ROTARY for s in checkpoint.architecture.stacks)
    result = scan(checkpoint, ScanOptions(layers=[0], context=9 if turned else None))
    json.dumps(result.to_json(), allow_nan=False)


class Reader:
    """Reads one model with one config after another; each must be read, or refused by name."""

    def __init__(self, folder, config):
        self.folder, self.config = folder, config
        self.known = [load_checkpoint(folder).architecture]

    def read(self, changes):
        config = json.loads(json.dumps(self.config))
        for path, value in changes:
            put(config, path, value)
        (self.folder / "config.json").write_text(json.dumps(config))
        started = time.process_time()
        try:
            checkpoint = load_checkpoint(self.folder)
            if checkpoint.architecture not in self.known:  # many changes make no difference
                read_all(checkpoint)
                self.known.append(checkpoint.architecture)
        except OrbitlensError as error:
            assert "unexpected form" not in str(error)  # every wrong key is named
        assert time.process_time() - started < 5.0


@pytest.mark.parametrize("name", FUZZED)
def test_any_value_of_any_key_is_read_or_refused(tiny, name):
    folder, config = tiny(name)
    paths = keys_looked_at(folder, config, FUZZED[name])
    reader = Reader(folder, config)

    @settings(max_examples=20, deadline=None, database=None)
    @given(st.lists(st.tuples(st.sampled_from(paths), ANYTHING), min_size=1, max_size=2))
    def fuzz(changes):
        reader.read(changes)

    with little_memory():
        for path in paths:
            for value in REPRESENTATIVES:
                reader.read([(path, value)])
        fuzz()


def test_the_fuzz_above_would_notice(tiny, monkeypatch):
    """The control: without the checks of rotary parameters, it fails."""
    monkeypatch.setattr(Settings, "_rotary_numbers", lambda self, kind: {})
    folder, config = tiny("llama-yarn-options")
    reader = Reader(folder, config)
    with pytest.raises((TypeError, AttributeError, AssertionError)):
        for key in YARN:
            for value in REPRESENTATIVES:
                reader.read([(("rope_parameters", key), value)])


def test_the_smallest_model_is_read_whole(model):
    assert CONFIG["model_type"] == "llama"
    read_all(load_checkpoint(model))
