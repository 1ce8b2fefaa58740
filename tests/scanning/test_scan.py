"""Scans: the JSON that was promised, every option, and real weights against dense d x d maps."""

import dataclasses
import hashlib
import json
import math
import struct

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import orbit_models
from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.errors import CheckpointError, InputError
from orbitlens.heads.layers import load_layer
from orbitlens.results.codec import encode
from orbitlens.running.model import load
from orbitlens.scanning.api import resolve_device, scan
from orbitlens.scanning.options import ScanOptions
from orbitlens.scanning.scan_result import Orientation
from orbitlens.theory.positional import frequency_energy, maps_in_context, rotary_effect
from orbitlens.theory.rates import layer_rates, predicted_log_change
from random_heads import dense_value, random_covariance, seeded, symmetric_part
from tiny_models import CASES, build

BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a function that builds a tiny model once and returns its folder."""
    known = {}

    def get(name):
        if name not in known:
            known[name] = tmp_path_factory.mktemp(name)
            build(BY_NAME[name]).save_pretrained(known[name])
        return known[name]

    return get


@pytest.fixture
def tiny(saved):
    return lambda name: load_checkpoint(saved(name))


def on_json(result):
    """Return a scan as its JSON is read back; NaN and infinity are refused."""
    return json.loads(json.dumps(result.to_json(), allow_nan=False))


# --- what the JSON holds ---------------------------------------------------------------------

MODEL = {
    "family",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "d_model",
    "d_head",
    "position",
    "causal",
    "parameters",
    "sha256",
}
LAYER = {"layer", "expansion_index", "rates", "regime", "heads"}
HEAD = {
    "head",
    "expansion_index",
    "alignment",
    "rates",
    "regime",
    "ov_abscissa",
    "ov_radius",
    "qk_symmetry",
    "certificates",
}


@pytest.mark.parametrize("name", ["llama-grouped", "gpt2", "t5"])
def test_the_json_has_every_field_that_was_promised(tiny, name):
    found = on_json(scan(tiny(name)))
    header = {"orbitlens", "kind", "format"}
    assert set(found) == header | {"model", "text", "layers", "cost", "flags"}
    assert set(found["model"]) >= MODEL
    assert set(found["cost"]) == {"seconds", "bytes_read", "peak_rss_bytes", "bytes_total"}
    for layer in found["layers"]:
        assert set(layer) >= LAYER
        for head in layer["heads"]:
            assert set(head) >= HEAD
            assert [c["name"] for c in head["certificates"]] == ["N1c", "N2", "N4"]
            for certificate in head["certificates"]:
                assert set(certificate) >= {"name", "holds", "margin", "why"}
                assert isinstance(certificate["holds"], bool)
                assert isinstance(certificate["why"], str)
        for part in (layer, *layer["heads"]):
            assert set(part["rates"]) == {"min", "mean", "max"}
            assert part["rates"]["min"] <= part["rates"]["mean"] <= part["rates"]["max"]
            assert part["regime"] in {"diverging", "converging", "mixed"}
            assert -1 <= part["expansion_index"] <= 1


def test_the_json_says_what_was_scanned(tiny, saved):
    file = saved("llama-grouped") / "model.safetensors"
    found = on_json(scan(tiny("llama-grouped")))["model"]
    expected = {
        "family": "llama",
        "n_layers": 3,
        "n_heads": 4,
        "n_kv_heads": 2,
        "d_model": 24,
        "d_head": 6,
        "position": "rotary",
        "causal": True,
        "parameters": sum(value.numel() for value in load_file(file).values()),
        "sha256": {"model.safetensors": header_digest(file)},
    }
    assert {key: found[key] for key in expected} == expected


def header_digest(file):
    start = file.read_bytes()
    (length,) = struct.unpack("<Q", start[:8])
    return hashlib.sha256(start[: 8 + length]).hexdigest()


def test_the_json_mirrors_the_dataclasses(tiny):
    result = scan(tiny("gpt2"))
    found = on_json(result)
    head, layer = result.layers[1].heads[2], result.layers[1]
    assert found["layers"][1]["heads"][2]["alignment"] == head.alignment
    assert found["layers"][1]["rates"]["max"] == layer.rates.max
    last = found["layers"][1]["heads"][2]["certificates"][2]
    assert (last["name"], last["margin"]) == ("N4", head.certificates[2].margin)
    header = {name: found.pop(name) for name in ("orbitlens", "kind", "format")}
    assert (header["kind"], header["format"]) == ("scan", 1)
    for part, data in ((result, found), (layer, found["layers"][1]), (head, encode(head))):
        assert [field.name for field in dataclasses.fields(part)] == list(data)
    with pytest.raises(dataclasses.FrozenInstanceError):
        head.alignment = 0.0


def test_two_stacks_are_scanned_one_after_the_other(tiny):
    result = scan(tiny("t5"))
    assert [(s.name, s.n_layers, s.causal) for s in result.model.stacks] == [
        ("encoder", 3, False),
        ("decoder", 2, True),
    ]
    places = [(layer.stack, layer.layer) for layer in result.layers]
    assert places == [("encoder", i) for i in range(3)] + [("decoder", i) for i in range(2)]
    assert result.model.n_layers == 5
    assert any("cross-attention" in flag for flag in result.flags)
    leaders = [layer.certificates[0] for layer in result.layers]
    assert [c.name for c in leaders] == ["N2"] * 5
    assert all("causal" in c.why for c in leaders[:3])  # no first token that sees itself alone
    assert not any(c.holds for c in leaders[:3])
    assert all("causal" not in c.why for c in leaders[3:])


def test_all_heads_are_gone_through_with_their_layers(tiny):
    result = scan(tiny("gpt2"))
    places = [(layer.layer, head.head) for layer, head in result.heads()]
    assert places == [(i, h) for i in range(3) for h in range(4)]


def test_the_cost_counts_the_attention_tensors_once(tiny, saved):
    found = scan(tiny("gpt2")).cost
    tensors = load_file(saved("gpt2") / "model.safetensors")
    read = [n for n in tensors if ".attn." in n or ".ln_1." in n]
    assert found.bytes_read == sum(tensors[n].numel() * tensors[n].element_size() for n in read)
    assert found.bytes_read < sum(t.numel() * t.element_size() for t in tensors.values())
    assert 0 < found.seconds < 60
    assert found.peak_rss_bytes > 10**7


def test_layers_that_share_their_weights_are_counted_once_and_read_alike(tiny):
    checkpoint = tiny("albert")  # four layers, two groups of weights
    whole, two = scan(checkpoint), scan(checkpoint, ScanOptions(layers=[0, 3]))
    assert whole.cost.bytes_read == two.cost.bytes_read
    first, *_, last = whole.layers
    assert first.heads == whole.layers[1].heads
    assert first.heads != last.heads


def test_progress_is_told_after_every_layer(tiny):
    told = []
    scan(tiny("t5"), progress=lambda done, total: told.append((done, total)))
    assert told == [(i, 5) for i in range(1, 6)]


# --- flags -----------------------------------------------------------------------------------

FLAGS = [
    ("llama", "normalised in front", True),
    ("bert", "normalised in front", False),
    ("llama", "offset 0", True),
    ("gpt2", "offset 0", False),
    ("bloom", "alibi bias", True),
    ("t5", "t5-bias bias", True),
    ("gemma2", "soft cap of 1.5", True),
    ("gemma2", "output is normalised", True),
    ("llama", "output is normalised", False),
    ("qwen3", "queries and keys are normalised", True),
    ("olmo", "clipped at 0.9", True),
    ("mistral", "window of 5 tokens", True),
    ("llama", "window", False),
]


@pytest.mark.parametrize(("name", "words", "said"), FLAGS)
def test_flags_say_what_was_approximate_and_nothing_else(tiny, name, words, said):
    flags = scan(tiny(name), ScanOptions(layers=[0])).flags
    assert any(words in flag for flag in flags) is said
    assert len(flags) == len(set(flags))


def test_what_cannot_be_folded_takes_certificates(tiny):
    for name in ("gemma2", "olmo"):  # a norm on the output; clipped values
        for _, head in scan(tiny(name)).heads():
            cone, first, _ = head.certificates
            assert not cone.holds and not first.holds
            assert "values are linear" in cone.why and "values are linear" in first.why
    whys = [c.why for _, head in scan(tiny("llama")).heads() for c in head.certificates]
    assert not any("values are linear" in why for why in whys)


# --- certificates of the flow in front of the reader -----------------------------------------

SETTINGS = {
    "pre": (["N1c", "N2", "N4"], ["N2", "N4"]),
    "post": (["N1c", "N2", "N4"], ["N2", "N4"]),
    "peri": (["N1c", "N2", "N4"], ["N2", "N4"]),
    "none": (["T1", "T2", "T3", "T4", "T5"], ["T4", "T5"]),
}


@pytest.mark.parametrize("norm", SETTINGS)
def test_theorems_of_a_raw_stream_are_not_said_of_normalised_tokens(norm):
    result = scan(orbit_models.tiny(norm=norm, norm_kind="rms", position="none"))
    of_heads, of_layers = SETTINGS[norm]
    for layer in result.layers:
        assert [c.name for c in layer.certificates] == of_layers
        for head in layer.heads:
            assert [c.name for c in head.certificates] == of_heads
    held = {c.name for _, head in result.heads() for c in head.certificates if c.holds}
    expected = {"pre": {"N1c", "N2"}, "post": set(), "peri": set(), "none": {"T3", "T4", "T5"}}
    assert held == expected[norm]


def test_a_layers_first_token_is_led_by_the_sum_of_its_value_maps():
    model = orbit_models.tiny(norm="pre", norm_kind="rms", seed=3)
    for layer in scan(model).layers:
        first = layer.certificates[0]
        total = sum(dense_value(head) for head in load(model).layer(layer.layer))
        values = sorted(torch.linalg.eigvals(total).tolist(), key=lambda z: -z.real)
        leads = values[0].imag == 0 and values[0].real > 0
        assert first.holds is leads
        assert first.margin == pytest.approx(leads * (values[0].real - values[1].real))
    assert {layer.certificates[0].holds for layer in scan(model).layers} == {True, False}


def planted_values(diagonal):
    """Return a raw stream of one layer and one head with V = diag(diagonal)."""
    d = len(diagonal)
    sizes = {"hidden_size": d, "num_attention_heads": 1, "num_hidden_layers": 1}
    model = orbit_models.tiny(norm="none", position="none", mlp=False, **sizes)
    attention = model.model.layers[0].self_attn
    attention.qkv_proj.weight.data[2 * d :] = torch.eye(d, dtype=torch.float64)
    attention.o_proj.weight.data = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    return model


def test_t4_of_a_wide_layer_says_at_least_its_mean_and_never_calls_it_the_abscissa(monkeypatch):
    model = planted_values([4.0, 1.0, 0.0, 0.0, 0.0, -1.0, -1.0, -1.0])  # mean 0.25, abscissa 4
    narrow = scan(model).layers[0]
    assert narrow.ov_abscissa == pytest.approx(4.0)
    assert narrow.certificates[0].margin == pytest.approx(4.0)
    assert "at least like exp(4 t)" in narrow.certificates[0].why
    monkeypatch.setattr("orbitlens.scanning.layers.SPECTRUM_LIMIT", 4)
    wide = scan(model).layers[0]
    leader = wide.certificates[0]
    assert wide.ov_abscissa is None
    assert leader.holds and leader.margin == pytest.approx(0.25)
    assert "at least like exp(0.249 t)" in leader.why  # 0.25, less what rounding may cost
    assert (
        scan(model, ScanOptions(exact=True)).layers[0].certificates[0].margin == narrow.ov_abscissa
    )


def test_t4_of_a_wide_layer_says_nothing_where_its_mean_is_not_positive(monkeypatch):
    model = planted_values([4.0, -1.0, -1.0, -1.0, -1.0])  # mean 0, abscissa 4
    assert scan(model).layers[0].certificates[0].margin == pytest.approx(4.0)
    monkeypatch.setattr("orbitlens.scanning.layers.SPECTRUM_LIMIT", 4)
    leader = scan(model).layers[0].certificates[0]
    assert not leader.holds
    assert "ask for exact spectra" in leader.why


# --- options ---------------------------------------------------------------------------------


def test_a_subset_of_layers_gives_the_same_readings(tiny):
    whole = scan(tiny("gpt2"))
    some = scan(tiny("gpt2"), ScanOptions(layers=[2, 0]))
    assert some.layers == (whole.layers[0], whole.layers[2])
    assert some.cost.bytes_read < whole.cost.bytes_read


@pytest.mark.parametrize("layers", [[3], [-1], [0, 7], []])
def test_layers_that_do_not_exist_are_refused(tiny, layers):
    with pytest.raises(InputError, match="layers 0 to 2"):
        scan(tiny("gpt2"), ScanOptions(layers=layers))


def test_a_layer_that_only_one_stack_has_is_scanned_there(tiny):
    found = scan(tiny("t5"), ScanOptions(layers=[2]))
    assert [(layer.stack, layer.layer) for layer in found.layers] == [("encoder", 2)]


def test_a_context_adds_what_a_rotary_encoding_leaves(tiny):
    checkpoint = tiny("llama-grouped")
    found = scan(checkpoint, ScanOptions(context=9))
    for layer in found.layers:
        heads = list(load_layer(checkpoint, layer.layer))
        for head, reading in zip(heads, layer.heads, strict=True):
            effect = rotary_effect(head, 9)
            assert reading.rotary.context == 9
            assert reading.rotary.survival == effect.size_survival
            assert reading.rotary.rates.max == effect.rates.largest
            assert reading.rotary.energy == tuple(frequency_energy(head).tolist())
            assert sum(reading.rotary.energy) == pytest.approx(1.0)
        drift = sum(averaged_drift(head, 9) for head in heads)
        rates = torch.linalg.eigvalsh(symmetric_part(drift))
        assert layer.rotary.rates.max == pytest.approx(rates[-1].item(), rel=1e-9)
        assert layer.rotary.rates.max != pytest.approx(layer.rates.max, rel=1e-3)
    assert not any("offset 0" in flag for flag in found.flags)


def averaged_drift(head, n):
    maps = maps_in_context(head, n)
    return maps.out @ maps.value.T @ maps.right @ maps.left.T


def test_without_a_context_nothing_is_said_of_one(tiny):
    found = scan(tiny("llama"))
    assert all(layer.rotary is None for layer in found.layers)
    assert all(head.rotary is None for _, head in found.heads())


def test_a_context_of_one_token_changes_no_rate(tiny):
    for layer, head in scan(tiny("llama"), ScanOptions(context=1)).heads():
        assert head.rotary.survival == pytest.approx(1.0, rel=1e-9)
        assert head.rotary.rates.max == pytest.approx(head.rates.max, rel=1e-9)
        assert layer.rotary.rates.min == pytest.approx(layer.rates.min, rel=1e-9)


@pytest.mark.parametrize(("name", "context"), [("llama", 0), ("llama", -3), ("gpt2", 8), ("t5", 8)])
def test_a_context_that_makes_no_sense_is_refused(tiny, name, context):
    with pytest.raises(InputError, match="context"):
        scan(tiny(name), ScanOptions(context=context))


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped"])
def test_the_identity_as_covariance_is_the_weights_only_reading(tiny, name):
    eye = torch.eye(24, dtype=torch.float64)
    given = {("decoder", layer): eye for layer in range(3)}
    for layer in scan(tiny(name), ScanOptions(covariances=given)).layers:
        for part in (layer, *layer.heads):
            size = max(abs(part.rates.min), abs(part.rates.max))
            found, expected = (dataclasses.astuple(x.rates) for x in (part.data_aware, part))
            assert found == pytest.approx(expected, abs=1e-9 * size)
            assert part.data_aware.expansion_index == pytest.approx(part.expansion_index, abs=1e-9)
            assert part.data_aware.regime is part.regime


def test_a_covariance_makes_the_reading_data_aware(tiny):
    checkpoint = tiny("gpt2")
    covariance = random_covariance(seeded(0), 24)
    found = scan(checkpoint, ScanOptions(covariances={("decoder", 1): covariance}))
    assert [layer.data_aware is None for layer in found.layers] == [True, False, True]
    assert [layer.predicted_log_change is None for layer in found.layers] == [True, False, True]
    layer = found.layers[1]
    heads = list(load_layer(checkpoint, 1))
    rates = layer_rates(heads, covariance)
    assert layer.data_aware.rates.max == pytest.approx(rates.largest, rel=1e-9)
    assert layer.data_aware.expansion_index == pytest.approx(rates.expansion_index, rel=1e-9)
    assert layer.data_aware.rates.max != pytest.approx(layer.rates.max, rel=1e-2)
    expected = predicted_log_change(heads, covariance)
    assert layer.predicted_log_change == pytest.approx(expected, rel=1e-9)


def test_the_covariance_of_one_stack_is_not_used_for_the_other(tiny):
    eye = torch.eye(24, dtype=torch.float64)
    found = scan(tiny("t5"), ScanOptions(covariances={("decoder", 0): eye}))
    given = [(layer.stack, layer.layer) for layer in found.layers if layer.data_aware is not None]
    assert given == [("decoder", 0)]


BROKEN = torch.full((24, 24), math.nan, dtype=torch.float64)


@pytest.mark.parametrize(
    ("covariance", "words"),
    [(torch.eye(23, dtype=torch.float64), "24 x 24 was expected"), (BROKEN, "NaN or infinity")],
)
def test_a_covariance_that_does_not_fit_is_refused(tiny, covariance, words):
    with pytest.raises(InputError, match=words):
        scan(tiny("gpt2"), ScanOptions(covariances={("decoder", 1): covariance}))


@pytest.mark.parametrize("place", [("encoder", 0), ("decoder", 3)])
def test_a_covariance_for_a_layer_that_does_not_exist_is_refused(tiny, place):
    eye = torch.eye(24, dtype=torch.float64)
    with pytest.raises(InputError, match="covariance"):
        scan(tiny("gpt2"), ScanOptions(covariances={place: eye}))


def test_a_covariance_for_a_layer_that_is_not_scanned_is_no_error(tiny):
    eye = torch.eye(24, dtype=torch.float64)
    options = ScanOptions(covariances={("decoder", i): eye for i in range(3)}, layers=[1])
    assert scan(tiny("gpt2"), options).layers[0].data_aware is not None


def test_wide_layers_are_estimated_and_flagged_unless_exact_is_asked_for(tiny, monkeypatch):
    exact = scan(tiny("gpt2"))
    monkeypatch.setattr("orbitlens.theory.rates.DENSE_LIMIT", 8)
    monkeypatch.setattr("orbitlens.scanning.layers.SPECTRUM_LIMIT", 8)
    estimated, asked = scan(tiny("gpt2")), scan(tiny("gpt2"), ScanOptions(exact=True))
    assert asked.layers == exact.layers
    assert asked.flags == exact.flags
    assert not any("estimated" in flag or "not computed" in flag for flag in exact.flags)
    assert any("estimated" in flag for flag in estimated.flags)
    assert any("not computed" in flag for flag in estimated.flags)
    for rough, layer in zip(estimated.layers, exact.layers, strict=True):
        assert 0 < rough.relative_error
        assert rough.rates.mean == pytest.approx(layer.rates.mean, rel=1e-9)
        slack = 6 * rough.relative_error * abs(layer.expansion_index) + 0.01
        assert rough.expansion_index == pytest.approx(layer.expansion_index, abs=slack)
        assert (rough.ov_abscissa, rough.ov_radius, rough.ov_copying) == (None, None, None)
        assert rough.heads == layer.heads
        assert not rough.certificates[0].holds


@pytest.mark.parametrize(("device", "words"), [("mps", "float64"), ("tpu", "unknown")])
def test_a_device_that_cannot_be_used_is_refused(tiny, device, words):
    with pytest.raises(InputError, match=words):
        scan(tiny("gpt2"), ScanOptions(device=device))


def test_auto_takes_the_cpu_where_there_is_nothing_else():
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert resolve_device("auto").type == expected
    assert resolve_device("cpu").type == "cpu"


# --- broken weights --------------------------------------------------------------------------

SPOILED = "transformer.h.1.attn.c_attn.weight"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused_by_name(saved, tmp_path, value):
    for file in saved("gpt2").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[SPOILED][3, 5] = value
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=SPOILED):
        scan(checkpoint)
    assert len(scan(checkpoint, ScanOptions(layers=[0, 2])).layers) == 2


# --- orientations ----------------------------------------------------------------------------


def test_maps_are_called_aligned_or_opposed_only_beyond_three_sigmas(tiny):
    for _, head in scan(tiny("gpt2")).heads():
        assert head.alignment_sigmas == pytest.approx(24 * head.alignment)
        expected = Orientation.NEUTRAL
        if abs(head.alignment_sigmas) >= 3:
            expected = Orientation.ALIGNED if head.alignment > 0 else Orientation.OPPOSED
        assert head.orientation is expected


def test_randomly_turned_maps_have_alignments_of_one_sigma():
    from orbitlens.theory.maps import HeadMaps
    from random_heads import random_head

    sigmas = [16 * HeadMaps.of(random_head(16, 3, seed)).alignment for seed in range(600)]
    spread = torch.tensor(sigmas, dtype=torch.float64)
    assert spread.std().item() == pytest.approx(1.0, abs=0.12)
    assert abs(spread.mean().item()) < 0.15


def test_maps_that_are_made_opposed_are_called_opposed(saved, tmp_path):
    """Values set to minus the scores: the alignment is -1 in head 0 of layer 0."""
    for file in saved("llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    place = "model.layers.0.self_attn."
    query, key = (tensors[f"{place}{name}.weight"][:6] for name in ("q_proj", "k_proj"))
    gain = tensors["model.layers.0.input_layernorm.weight"]
    tensors[f"{place}v_proj.weight"][:6] = key
    tensors[f"{place}o_proj.weight"][:, :6] = -(query * gain).T  # V^T = w_k (-w_q)^T: V = -c W
    save_file(tensors, tmp_path / "model.safetensors")
    head = scan(load_checkpoint(tmp_path)).layers[0].heads[0]
    assert head.alignment == pytest.approx(-1.0, abs=1e-9)
    assert (head.orientation, head.alignment_signs) == (Orientation.OPPOSED, (0, 6))
    other = scan(load_checkpoint(tmp_path)).layers[1].heads[0]
    assert other.alignment > -0.9


# --- real weights against dense maps ---------------------------------------------------------


def read(folder):
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name).double() for name in file.keys()}


def centred(weight):
    """Drop what a weight does to the direction (1, ..., 1), which LayerNorm never hands on."""
    d = weight.shape[0]
    return weight - torch.full((d, d), 1.0 / d, dtype=torch.float64) @ weight


def gpt2_layers(tensors, *, n_heads=3, centre=centred):
    layers = []
    for i in range(3):
        place = f"transformer.h.{i}."
        gain = tensors[f"{place}ln_1.weight"]
        fused = centre(torch.diag(gain) @ tensors[f"{place}attn.c_attn.weight"])
        layers.append((*fused.chunk(3, dim=1), tensors[f"{place}attn.c_proj.weight"], n_heads))
    return layers


def vit_layers(tensors, *, centre=centred):
    layers = []
    for i in range(4):
        place = f"vit.encoder.layer.{i}."
        gain = torch.diag(tensors[f"{place}layernorm_before.weight"])
        inputs = [
            centre(gain @ tensors[f"{place}attention.attention.{name}.weight"].T)
            for name in ("query", "key", "value")
        ]
        layers.append((*inputs, tensors[f"{place}attention.output.dense.weight"].T, 4))
    return layers


def llama_layers(tensors):
    layers = []
    for i in range(5):
        place = f"model.layers.{i}."
        gain = torch.diag(tensors[f"{place}input_layernorm.weight"])
        query, key, value = (
            gain @ tensors[f"{place}self_attn.{name}_proj.weight"].T for name in "qkv"
        )
        # Four key heads of eight columns for eight query heads: each is used twice in a row.
        twice = torch.arange(32).reshape(4, 1, 8).expand(4, 2, 8).flatten()
        key, value = key[:, twice], value[:, twice]
        layers.append((query, key, value, tensors[f"{place}self_attn.o_proj.weight"].T, 8))
    return layers


def albert_layers(tensors):
    place = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention."
    inputs = [tensors[f"{place}{name}.weight"].T for name in ("query", "key", "value")]
    return [(*inputs, tensors[f"{place}dense.weight"].T, 8)]  # shared by all twelve layers


REAL = {
    "gpt-nano-sort-hf": gpt2_layers,
    "vit-mnist-3class-hf": vit_layers,
    "stories260K-llama-hf": llama_layers,
    "rxnmapper-albert-hf": albert_layers,
}


def dense_heads(w_q, w_k, w_v, w_o, n_heads):
    """Return the d x d maps (W, V) of each head."""
    r = w_q.shape[1] // n_heads
    maps = []
    for h in range(n_heads):
        columns = slice(h * r, (h + 1) * r)
        w = w_q[:, columns] @ w_k[:, columns].T / math.sqrt(r)
        maps.append((w, (w_v[:, columns] @ w_o[columns]).T))
    return maps


def dense_rates(drift):
    rates = torch.linalg.eigvalsh(symmetric_part(drift))
    size = rates.abs().sum()
    return {
        "min": (rates[0].item(), rates.abs().max().item()),
        "mean": (rates.mean().item(), rates.abs().max().item()),
        "max": (rates[-1].item(), rates.abs().max().item()),
        "expansion_index": ((rates.sum() / size).item(), 1.0),
    }


def dense_value_spectrum(v):
    spectrum, norm = torch.linalg.eigvals(v), torch.linalg.matrix_norm(v, 2).item()
    return {
        "ov_abscissa": (spectrum.real.max().item(), norm),
        "ov_radius": (spectrum.abs().max().item(), norm),
        "ov_copying": ((spectrum.sum().real / spectrum.abs().sum()).item(), 1.0),
    }


def dense_head(w, v):
    """Return (value, what its error is measured against) of every number of a head."""
    alignment = ((v * w).sum() / (v.norm() * w.norm())).item()
    symmetry = ((w * w.T).sum() / w.square().sum()).item()
    norm, speed = v.norm().item(), torch.linalg.matrix_norm(v, 2).item()
    return {
        **dense_rates(v @ w.T),
        **dense_value_spectrum(v),
        "alignment": (alignment, 1.0),
        "alignment_sigmas": (w.shape[0] * alignment, w.shape[0]),
        "qk_symmetry": (symmetry, 1.0),
        "qk_norm": (w.norm().item(), w.norm().item()),
        "ov_norm": (norm, norm),
        "ov_speed_limit": (speed, speed),
    }


def dense_layer(maps):
    total = sum(v for _, v in maps)
    inner = sum((v * w).sum() for w, v in maps)
    norms = sum(v.norm() * w.norm() for w, v in maps)
    return {
        **dense_rates(sum(v @ w.T for w, v in maps)),
        **dense_value_spectrum(total),
        "alignment": ((inner / norms).item(), 1.0),
        "ov_trace": (total.trace().item(), total.norm().item()),
    }


def deviation(reading, expected):
    """Return the largest deviation of a scanned head or layer from its dense numbers."""
    worst = 0.0
    for name, (value, scale) in expected.items():
        found = getattr(reading.rates if name in {"min", "mean", "max"} else reading, name)
        worst = max(worst, abs(found - value) / scale)
    return worst


def worst_deviation(result, layers):
    """Return the largest deviation over a whole scan; one dense layer may stand for all."""
    worst = 0.0
    references = [dense_heads(*layer) for layer in layers]
    summed = [dense_layer(maps) for maps in references]
    single = [[dense_head(w, v) for w, v in maps] for maps in references]
    for layer in result.layers:
        which = layer.layer % len(layers)
        worst = max(worst, deviation(layer, summed[which]))
        assert len(layer.heads) == len(single[which])
        for head, expected in zip(layer.heads, single[which], strict=True):
            worst = max(worst, deviation(head, expected))
    return worst


def test_the_scan_of_a_tiny_model_equals_dense_maps(tiny, saved):
    result, layers = scan(tiny("gpt2")), gpt2_layers(read(saved("gpt2")), n_heads=4)
    assert worst_deviation(result, layers) < 1e-9
    assert worst_deviation(result, layers[::-1]) > 1e-3


@pytest.mark.parametrize("name", REAL)
def test_scans_of_real_weights_equal_dense_maps(shared_model, name):
    folder = shared_model(name)
    result = scan(load_checkpoint(folder))
    layers = REAL[name](read(folder))
    assert result.model.n_layers == {"rxnmapper-albert-hf": 12}.get(name, len(layers))
    assert worst_deviation(result, layers) < 1e-9
    assert on_json(result)["layers"]


@pytest.mark.parametrize("name", REAL)
def test_regimes_and_signs_of_real_heads_follow_the_dense_maps(shared_model, name):
    folder = shared_model(name)
    layers = [dense_heads(*layer) for layer in REAL[name](read(folder))]
    distinct = ScanOptions(layers=range(len(layers)))
    for layer, reading in scan(load_checkpoint(folder), distinct).heads():
        w, v = layers[layer.layer][reading.head]
        rates = torch.linalg.eigvalsh(symmetric_part(v @ w.T))
        floor = 1e-9 * rates.abs().max()
        signs = bool((rates > floor).any()), bool((rates < -floor).any())
        names = {(True, True): "mixed", (True, False): "diverging", (False, True): "converging"}
        assert reading.regime.value == names[signs]
        _, sizes, rows = torch.linalg.svd(v)
        basis = rows[sizes > 1e-9 * sizes[0]].T
        form = torch.linalg.eigvalsh(basis.T @ symmetric_part(v.T @ w) @ basis)
        if form.abs().min() > 1e-8 * form.abs().max():
            assert reading.alignment_signs == (int((form > 0).sum()), int((form < 0).sum()))


def test_a_reference_without_centring_or_gain_would_not_agree(shared_model):
    folder = shared_model("vit-mnist-3class-hf")
    result, tensors = scan(load_checkpoint(folder)), read(folder)
    assert worst_deviation(result, vit_layers(tensors, centre=lambda w: w)) > 1e-6
    gains = {name: 1 + 0 * t for name, t in tensors.items() if "layernorm_before.weight" in name}
    assert worst_deviation(result, vit_layers(tensors | gains)) > 1e-3


def test_a_reference_with_keys_of_another_group_would_not_agree(shared_model):
    folder = shared_model("stories260K-llama-hf")
    result = scan(load_checkpoint(folder))
    layers = llama_layers(read(folder))
    shuffled = [(q, k.roll(8, dims=1), v, o, n) for q, k, v, o, n in layers]
    assert worst_deviation(result, shuffled) > 1e-3


def mean_turn(n, *, d_head=8, base=10_000.0):
    """Return the mean over offsets 0 to n - 1 of what lies between queries and keys."""
    total = torch.zeros(d_head, d_head, dtype=torch.float64)
    half = d_head // 2
    for offset in range(n):
        for k in range(half):
            angle = offset * base ** (-2 * k / d_head)
            block = [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
            total[k::half, k::half] += torch.tensor(block, dtype=torch.float64)
    return total / n


@pytest.mark.parametrize("n", [2, 100])
def test_a_rotary_context_of_a_real_model_equals_its_dense_average(shared_model, n):
    folder = shared_model("stories260K-llama-hf")
    found = scan(load_checkpoint(folder), ScanOptions(context=n, layers=[0, 4]))
    layers, turn = llama_layers(read(folder)), torch.block_diag(*[mean_turn(n)] * 8)
    for reading in found.layers:
        w_q, *others = layers[reading.layer]
        here, there = dense_heads(w_q, *others), dense_heads(w_q @ turn, *others)
        assert deviation(reading.rotary, dense_rates(sum(v @ w.T for w, v in there))) < 1e-9
        for head, (w, v), (plain_w, _) in zip(reading.heads, there, here, strict=True):
            assert deviation(head.rotary, dense_rates(v @ w.T)) < 1e-9
            sizes = [nuclear(symmetric_part(v @ m.T)) for m in (w, plain_w)]
            assert head.rotary.survival == pytest.approx(sizes[0] / sizes[1], rel=1e-9)
            assert abs(head.rotary.survival - 1) > 1e-4


def nuclear(matrix):
    return torch.linalg.eigvalsh(matrix).abs().sum().item()
