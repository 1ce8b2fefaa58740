"""Safetensors files that are cut, corrupted or absurd: nothing but our own errors comes out."""

import json
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.checkpoint.safetensors_file import SafetensorsSource
from orbitlens.checkpoint.stored_file import DiskFile
from orbitlens.errors import CheckpointError, OrbitlensError
from orbitlens.heads.layers import load_layer
from orbitlens.scanning.api import scan
from small_llama import SHAPES, refused, small_weights, write_small_llama

ROLES = [*(f"self_attn.{name}" for name in SHAPES), "input_layernorm"]
ALL_TENSORS = [f"model.layers.1.{role}.{part}" for role in ROLES for part in ("weight", "bias")]
GIT_LFS_POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


def read_everything(file):
    source = SafetensorsSource([DiskFile(file)])
    return {name: source.read(name) for name in source.tensors}


def with_header(header, data=b""):
    """Return a file whose header is `header`, an object or raw bytes."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


@pytest.fixture(scope="module")
def small_file():
    return save({"a.weight": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)})


@pytest.fixture
def model(tmp_path):
    return write_small_llama(tmp_path / "model")


# --- cut short -------------------------------------------------------------------------------


def test_a_file_cut_at_any_byte_is_refused(tmp_path, small_file):
    file = tmp_path / "cut.safetensors"
    for length in range(len(small_file)):
        file.write_bytes(small_file[:length])
        with pytest.raises(CheckpointError, match="not a whole safetensors file"):
            read_everything(file)
    file.write_bytes(small_file)
    assert set(read_everything(file)) == {"a.weight", "b"}


def test_a_file_with_bytes_added_is_refused(tmp_path, small_file):
    file = tmp_path / "long.safetensors"
    file.write_bytes(small_file + b"\0")
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        read_everything(file)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_scanning_a_cut_model_says_so(model, share):
    file = model / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    refused("scan", model, says=["model.safetensors", "not a whole safetensors file", "Fetch it"])


# --- corrupted -------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_flipped_header_bytes_raise_our_error_or_nothing(tmp_path_factory, small_file, data):
    n_header = 8 + struct.unpack("<Q", small_file[:8])[0]
    flips = data.draw(
        st.lists(st.tuples(st.integers(0, n_header - 1), st.integers(1, 255)), min_size=1)
    )
    damaged = bytearray(small_file)
    for place, flip in flips:
        damaged[place] ^= flip
    file = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    file.write_bytes(damaged)
    try:
        read_everything(file)
    except OrbitlensError:
        pass


@settings(max_examples=60, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_flipped_byte_anywhere_leaves_a_model_readable_or_refused(tmp_path_factory, place, flip):
    folder = tmp_path_factory.getbasetemp() / "flipped-model"
    write_small_llama(folder, small_weights(dtype=torch.bfloat16))
    file = folder / "model.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[int(place * len(damaged))] ^= flip
    file.write_bytes(damaged)
    try:
        json.dumps(scan(load_checkpoint(folder)).to_json(), allow_nan=False)
    except OrbitlensError:
        pass


@settings(max_examples=300, deadline=None)
@given(
    dtype=st.sampled_from(
        ["F32", "F64", "F8_E4M3", "F8_E8M0", "F4", "F6_E2M3", "C64", "BOOL", "X"]
    ),
    shape=st.lists(st.integers(-2, 2**64), max_size=3) | st.just([2]) | st.none(),
    offsets=st.lists(st.integers(-2, 2**64), max_size=3) | st.just([0, 8]),
    name=st.text(max_size=5),
)
def test_made_up_headers_raise_our_error_or_nothing(tmp_path_factory, dtype, shape, offsets, name):
    header = {name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}}
    file = tmp_path_factory.getbasetemp() / "made-up.safetensors"
    file.write_bytes(with_header(header, bytes(8)))
    try:
        read_everything(file)
    except OrbitlensError:
        pass


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1])
def test_absurd_header_sizes_are_refused_at_once(model, length):
    file = model / "model.safetensors"
    file.write_bytes(struct.pack("<Q", length) + file.read_bytes()[8:])
    refused("scan", model, says=["not a whole safetensors file"])


def test_a_header_over_the_formats_limit_is_refused_unread(tmp_path):
    file = tmp_path / "big.safetensors"
    with file.open("wb") as handle:  # sparse: takes no room on disk
        handle.write(struct.pack("<Q", 100_000_001))
        handle.truncate(200_000_000)
    with pytest.raises(CheckpointError, match="header of 100000001 bytes"):
        SafetensorsSource([DiskFile(file)])


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 8, b"hello", GIT_LFS_POINTER.encode(), b"<!DOCTYPE html>" * 99]
)
def test_what_is_no_safetensors_file_is_named_as_such(model, content):
    (model / "model.safetensors").write_bytes(content)
    refused("scan", model, says=["model.safetensors", "Git LFS pointer", "Fetch it again"])


def test_headers_that_are_json_but_not_a_header_are_refused(tmp_path):
    file = tmp_path / "odd.safetensors"
    for header in ([], 1, "a", None, {"a": 1}, {"a": {"dtype": "F32"}}, b"{" * 1000, b"\xff\xfe"):
        file.write_bytes(with_header(header))
        with pytest.raises(CheckpointError, match="not a whole safetensors file"):
            SafetensorsSource([DiskFile(file)])


# --- wrong contents --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_TENSORS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_none_is_named_with_its_tensor(tmp_path, name, bad):
    weights = small_weights()
    weights[name].view(-1)[-1] = bad
    folder = write_small_llama(tmp_path, weights)
    refused("scan", folder, says=[repr(name), "NaN or infinity"])


def test_a_nan_in_a_layer_that_is_not_read_does_not_matter(tmp_path):
    weights = small_weights()
    weights["model.layers.1.self_attn.q_proj.weight"][0, 0] = float("nan")
    folder = write_small_llama(tmp_path, weights)
    assert load_layer(load_checkpoint(folder), 0).n_heads == 2


def test_large_weights_whose_sum_overflows_are_not_taken_for_damage(tmp_path):
    weights = small_weights(dtype=torch.float16)
    weights["model.layers.0.self_attn.v_proj.weight"].fill_(6e4)
    layer = load_layer(load_checkpoint(write_small_llama(tmp_path, weights)), 0)
    assert layer.w_v.min() > 1e4


@pytest.mark.parametrize("size", [2e10, 1e30, 1e38])
def test_a_number_too_large_to_multiply_is_named_with_its_tensor(tmp_path, size):
    weights, name = small_weights(), "model.layers.1.self_attn.o_proj.weight"
    weights[name][0, 0] = -size
    says = [repr(name), f"a number of size {size:.0e}", "at most 1e+10"]
    refused("scan", write_small_llama(tmp_path, weights), says=says)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e9])
def test_readings_without_a_unit_do_not_depend_on_the_size_of_all_weights(tmp_path, size):
    def heads(factor, name):
        weights = {
            key: value * (factor if key.endswith("proj.weight") else 1.0)
            for key, value in small_weights(dtype=torch.float64).items()
        }
        scanned = scan(load_checkpoint(write_small_llama(tmp_path / name, weights)))
        return [head for layer in scanned.layers for head in layer.heads]

    for one, other in zip(heads(1.0, "whole"), heads(size, "scaled"), strict=True):
        for quantity in ("expansion_index", "alignment", "qk_symmetry", "ov_copying"):
            assert getattr(other, quantity) == pytest.approx(getattr(one, quantity), abs=1e-9)
        assert other.alignment_signs == one.alignment_signs


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool])
def test_packed_integers_are_refused(tmp_path, dtype):
    weights = small_weights()
    name = "model.layers.0.self_attn.k_proj.weight"
    weights[name] = weights[name].to(dtype)
    folder = write_small_llama(tmp_path, weights)
    refused("scan", folder, says=[repr(name), "not as floating point", "unquantised files"])


def test_quantised_tensors_of_other_names_are_shown(tmp_path):
    weights = {name.replace("weight", "qweight"): v for name, v in small_weights().items()}
    folder = write_small_llama(tmp_path, weights)
    refused("scan", folder, says=["self_attn.o_proj", "there is none", "q_proj.qweight"])


@pytest.mark.parametrize("name", ALL_TENSORS)
def test_wrong_shapes_are_named_with_both_shapes(tmp_path, name):
    weights = small_weights()
    expected = list(weights[name].shape)
    weights[name] = torch.ones(3, *expected[1:])
    folder = write_small_llama(tmp_path, weights)
    refused("scan", folder, says=[repr(name), str([3, *expected[1:]]), str(expected)])


def test_a_tensor_with_too_many_axes_is_refused(tmp_path):
    weights = small_weights()
    weights["model.layers.0.self_attn.q_proj.weight"] = torch.ones(8, 8, 1)
    refused("scan", write_small_llama(tmp_path, weights), says=["[8, 8, 1]", "[8, 8]"])


# --- fp8 scales ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 0), (3,), (8, 8, 1), (30, 8), (8, 0), (2,)])
def test_fp8_scales_that_do_not_fit_are_refused(tmp_path, shape):
    weights = small_weights()
    name = "model.layers.0.self_attn.q_proj.weight"
    weights[name] = weights[name].to(torch.float8_e4m3fn)
    weights[f"{name}_scale"] = torch.ones(shape)
    refused(
        "scan",
        write_small_llama(tmp_path, weights),
        says=[repr(name), "fp8 scale", str(list(shape)), "expected one number"],
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64, torch.bool])
def test_fp8_scales_that_are_no_real_numbers_are_refused(tmp_path, dtype):
    weights = small_weights()
    name = "model.layers.0.self_attn.q_proj.weight"
    weights[name] = weights[name].to(torch.float8_e4m3fn)
    weights[f"{name}_scale_inv"] = torch.ones(1, dtype=dtype)
    refused("scan", write_small_llama(tmp_path, weights), says=[f"{name}_scale_inv"])


def test_a_nan_scale_is_found(tmp_path):
    weights = small_weights()
    name = "model.layers.0.self_attn.q_proj.weight"
    weights[name] = weights[name].to(torch.float8_e4m3fn)
    weights[f"{name}_scale"] = torch.tensor([float("nan")])
    refused("scan", write_small_llama(tmp_path, weights), says=[repr(name), "NaN"])


def test_power_of_two_scales_are_applied(tmp_path):
    file = tmp_path / "mx.safetensors"
    scale = torch.tensor([4.0]).to(torch.float8_e8m0fnu)
    save_file({"a": torch.ones(2, 2).to(torch.float8_e4m3fn), "a_scale": scale}, file)
    assert SafetensorsSource([DiskFile(file)]).read("a").tolist() == [[4.0, 4.0], [4.0, 4.0]]
