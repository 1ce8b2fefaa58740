"""Packed weights, number by number against loops written from each format's definition.

The packers here are loops too: what they pack is known, so that a reader which mixes up an order,
a zero or a group cannot pass.
"""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.checkpoint.packed import PackedSource
from orbitlens.checkpoint.safetensors_file import SafetensorsSource
from orbitlens.checkpoint.stored_file import DiskFile
from orbitlens.errors import CheckpointError
from orbitlens.heads.layers import load_layer
from orbitlens.scanning.api import scan
from small_llama import CONFIG, refused, small_weights, write_small_llama

N_IN, N_OUT, GROUP = 64, 32, 16


def opened(tmp_path, tensors, **settings):
    file = tmp_path / "model.safetensors"
    save_file({name: value.contiguous() for name, value in tensors.items()}, file)
    return PackedSource(SafetensorsSource([DiskFile(file)]), settings, "here")


def random_numbers(bits, shape, seed=0):
    return np.random.default_rng(seed).integers(0, 2**bits, size=shape)


def random_scales(shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).half()


# --- GPTQ ------------------------------------------------------------------------------------


def stream_of_bits(numbers, bits):
    """Return numbers as 32-bit words: one long integer, cut."""
    whole = sum(int(number) << (bits * place) for place, number in enumerate(numbers))
    words = [whole >> (32 * k) & 0xFFFFFFFF for k in range(len(numbers) * bits // 32)]
    return np.array(words, dtype=np.uint32).view(np.int32)


def gptq_parts(bits, *, stored_less=1, order=None, seed=0):
    """Return the parts of a weight, and the weight by the definition, in float64."""
    n_groups = N_IN // GROUP
    q, zeros = random_numbers(bits, (N_IN, N_OUT), seed), random_numbers(bits, (n_groups, N_OUT), 9)
    zeros[0, 0], zeros[0, 1] = 0, 2**bits - 1  # the ends of the range: 0 - 1 wraps around
    scales = random_scales((n_groups, N_OUT))
    groups = np.arange(N_IN) // GROUP if order is None else order
    stored = (zeros - stored_less) % 2**bits
    parts = {
        "x.qweight": np.stack([stream_of_bits(q[:, o], bits) for o in range(N_OUT)], axis=1),
        "x.qzeros": np.stack([stream_of_bits(row, bits) for row in stored]),
    }
    tensors = {name: torch.from_numpy(value) for name, value in parts.items()}
    tensors |= {"x.scales": scales, "x.g_idx": torch.tensor(groups, dtype=torch.int32)}
    weight = np.empty((N_OUT, N_IN))
    for o in range(N_OUT):
        for i in range(N_IN):
            weight[o, i] = scales[groups[i], o].item() * (q[i, o] - zeros[groups[i], o])
    return tensors, weight


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("shuffled", [False, True])
def test_gptq_is_read_to_the_bit(tmp_path, bits, shuffled):
    order = np.random.default_rng(3).permutation(np.arange(N_IN) // GROUP) if shuffled else None
    tensors, weight = gptq_parts(bits, order=order)
    source = opened(tmp_path, tensors, quant_method="gptq", bits=bits, group_size=GROUP)
    assert source.tensors["x.weight"].shape == (N_OUT, N_IN)
    assert source.tensors["x.weight"].dtype == f"GPTQ-{bits}"
    assert set(source.tensors) == {"x.weight"}
    np.testing.assert_array_equal(source.read("x.weight").double().numpy(), weight)


def test_gptqs_second_format_stores_zeros_as_they_are(tmp_path):
    tensors, weight = gptq_parts(4, stored_less=0)
    settings = {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}
    found = opened(tmp_path, tensors, **settings).read("x.weight")
    np.testing.assert_array_equal(found.double().numpy(), weight)
    # the control: read as the first format, every number is off by its scale
    wrong = opened(tmp_path, tensors, quant_method="gptq", bits=4).read("x.weight")
    assert not np.array_equal(wrong.double().numpy(), weight)


def test_gptq_without_an_order_has_groups_one_after_another(tmp_path):
    tensors, weight = gptq_parts(4)
    del tensors["x.g_idx"]
    source = opened(tmp_path, tensors, quant_method="gptq", bits=4, group_size=GROUP)
    np.testing.assert_array_equal(source.read("x.weight").double().numpy(), weight)
    with pytest.raises(CheckpointError, match="groups of 7"):
        opened(tmp_path, tensors, quant_method="gptq", bits=4, group_size=7)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"x.scales": torch.ones(4, 31).half()}, "scales of shape"),
        ({"x.scales": torch.ones(4, 32, dtype=torch.int32)}, "parts of types"),
        ({"x.qzeros": torch.ones(3, 4, dtype=torch.int32)}, "zeros of shape"),
        ({"x.g_idx": torch.zeros(0, dtype=torch.int32)}, "bits a number"),
        ({"x.g_idx": torch.zeros(50, dtype=torch.int32)}, "bits a number"),
        ({"x.g_idx": torch.full((N_IN,), 4, dtype=torch.int32)}, "groups that are not there"),
        ({"x.g_idx": torch.full((N_IN,), -1, dtype=torch.int32)}, "groups that are not there"),
    ],
)
def test_parts_of_gptq_that_do_not_fit_are_refused(tmp_path, change, says):
    tensors, _ = gptq_parts(4)
    with pytest.raises(CheckpointError, match=says):
        opened(tmp_path, tensors | change, quant_method="gptq", bits=4).read("x.weight")


def test_gptq_laid_out_for_one_kernel_is_refused_by_name(tmp_path):
    with pytest.raises(CheckpointError, match="marlin"):
        opened(tmp_path, gptq_parts(4)[0], quant_method="gptq", checkpoint_format="marlin")


# --- AWQ -------------------------------------------------------------------------------------


def awq_words(numbers):
    """Pack columns eight to a word, in AWQ's order: 0 2 4 6 1 3 5 7 from the lowest bits on."""
    rows, columns = numbers.shape
    words = np.zeros((rows, columns // 8), dtype=np.uint32)
    for word in range(columns // 8):
        for place, column in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
            words[:, word] |= numbers[:, 8 * word + column].astype(np.uint32) << 4 * place
    return torch.from_numpy(words.view(np.int32))


def test_awq_is_read_to_the_bit(tmp_path):
    q, zeros = random_numbers(4, (N_IN, N_OUT)), random_numbers(4, (N_IN // GROUP, N_OUT), 5)
    scales = random_scales(zeros.shape)
    tensors = {"x.qweight": awq_words(q), "x.qzeros": awq_words(zeros), "x.scales": scales}
    source = opened(tmp_path, tensors, quant_method="awq", bits=4, version="gemm")
    weight = np.array(
        [
            [scales[i // GROUP, o].item() * (q[i, o] - zeros[i // GROUP, o]) for i in range(N_IN)]
            for o in range(N_OUT)
        ]
    )
    assert source.tensors["x.weight"].shape == (N_OUT, N_IN)
    np.testing.assert_array_equal(source.read("x.weight").double().numpy(), weight)


@pytest.mark.parametrize("settings", [{"version": "gemv"}, {"bits": 3}])
def test_other_layouts_of_awq_are_refused_by_name(tmp_path, settings):
    with pytest.raises(CheckpointError, match=r"AWQ.*read is 'gemm'"):
        opened(tmp_path, {}, quant_method="awq", **settings)


# --- bitsandbytes ----------------------------------------------------------------------------

TABLE = torch.linspace(-1.0, 1.0, 16) ** 3


def json_bytes(data):
    return torch.tensor(list(json.dumps(data).encode()), dtype=torch.uint8)


def four_bit_parts(shape=(6, 40), block=64, *, nested=False):
    """Return the parts of a weight, and the weight by the definition."""
    n = math.prod(shape)
    q = random_numbers(4, n)
    n_blocks = -(-n // block)
    packed = [q[2 * k] << 4 | (q[2 * k + 1] if 2 * k + 1 < n else 0) for k in range(-(-n // 2))]
    state = {"quant_type": "nf4", "blocksize": block, "dtype": "bfloat16", "shape": list(shape)}
    sizes = torch.rand(n_blocks, generator=torch.Generator().manual_seed(2)) + 0.5
    parts = {
        "x.weight": torch.tensor(packed, dtype=torch.uint8)[:, None],
        "x.weight.quant_map": TABLE,
        "x.weight.absmax": sizes,
    }
    if nested:
        places = torch.from_numpy(random_numbers(8, n_blocks, 7)).to(torch.uint8)
        outer, table = torch.tensor([0.25, 2.0])[: -(-n_blocks // 2)], torch.linspace(-1, 1, 256)
        state |= {"nested_blocksize": 2, "nested_dtype": "float32", "nested_offset": 0.75}
        sizes = torch.stack(
            [table[places[b].item()] * outer[b // 2] + 0.75 for b in range(n_blocks)]
        )
        parts |= {
            "x.weight.absmax": places,
            "x.weight.nested_absmax": outer,
            "x.weight.nested_quant_map": table,
        }
    parts["x.weight.quant_state.bitsandbytes__nf4"] = json_bytes(state)
    weight = torch.stack([TABLE[q[k]] * sizes[k // block] for k in range(n)]).reshape(shape)
    return parts, weight


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("shape", [(6, 40), (3, 5)])
def test_four_bits_of_bitsandbytes_are_read_to_the_bit(tmp_path, nested, shape):
    parts, weight = four_bit_parts(shape, nested=nested, block=64)
    source = opened(tmp_path, parts, quant_method="bitsandbytes", load_in_4bit=True)
    assert source.tensors["x.weight"].shape == shape
    assert set(source.tensors) == {"x.weight"}
    assert torch.equal(source.read("x.weight"), weight)


def test_eight_bits_of_bitsandbytes_are_rows_times_their_scale(tmp_path):
    q = torch.from_numpy(random_numbers(8, (6, 40)) - 128).to(torch.int8)
    scales = torch.rand(6, generator=torch.Generator().manual_seed(1))
    parts = {"x.weight": q, "x.SCB": scales, "x.weight_format": torch.tensor(0, dtype=torch.uint8)}
    source = opened(tmp_path, parts, load_in_8bit=True)
    expected = q.double() * scales.double()[:, None] / 127
    torch.testing.assert_close(source.read("x.weight").double(), expected, rtol=2e-7, atol=0)
    assert set(source.tensors) == {"x.weight"}
    tiled = parts | {"x.weight_format": torch.tensor(2, dtype=torch.uint8)}
    with pytest.raises(CheckpointError, match="order of one kernel"):
        opened(tmp_path, tiled, load_in_8bit=True).read("x.weight")


@pytest.mark.parametrize(
    "state",
    [
        b"{", b"[]", b"{}", b'{"shape": [6, 40], "blocksize": 0}', b"\xff",
        b'{"shape": [6, -40], "blocksize": 64}', b'{"shape": [60, 40], "blocksize": 64}',
        b'{"shape": "6", "blocksize": 64}', b'{"shape": [6, 40], "blocksize": 32}',
        b'{"shape": [6, 40], "blocksize": 64, "nested_blocksize": 2}', b"[" * 4000, b"x" * 5000,
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_a_weight_of_four_bits_are_refused(tmp_path, state):
    parts, _ = four_bit_parts()
    parts["x.weight.quant_state.bitsandbytes__nf4"] = torch.tensor(list(state), dtype=torch.uint8)
    with pytest.raises(CheckpointError, match=r"the packed weight 'x\.weight'"):
        opened(tmp_path, parts, quant_method="bitsandbytes")


# --- whole models ----------------------------------------------------------------------------


def eight_bit_llama(folder):
    """Write the small model in bytes with a scale a row, and the same numbers plainly."""
    packed, plain = {}, {}
    for name, value in small_weights().items():
        packed[name] = plain[name] = value
        if name.endswith("_proj.weight"):
            scale = value.abs().amax(1)
            packed[name] = (value / scale[:, None] * 127).round().to(torch.int8)
            packed[name.replace("weight", "SCB")] = scale
            plain[name] = packed[name].float() * scale[:, None] / 127
    settings = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    packed_model = write_small_llama(folder / "packed", packed, quantization_config=settings)
    return packed_model, write_small_llama(folder / "plain", plain)


def test_a_packed_model_is_scanned_as_the_numbers_it_stands_for(tmp_path):
    packed, plain = (load_checkpoint(model) for model in eight_bit_llama(tmp_path))
    ours, theirs = load_layer(packed, 1), load_layer(plain, 1)
    for part in ("w_q", "w_k", "w_v", "w_o"):
        assert torch.equal(getattr(ours, part), getattr(theirs, part))
    found = scan(packed)
    assert found.layers == scan(plain).layers
    assert any("packed (bitsandbytes-int8)" in flag for flag in found.flags)
    assert packed.n_parameters == plain.n_parameters


def test_a_format_that_is_not_read_is_named(tmp_path):
    weights = {
        name.replace(".weight", ".W_q"): v.to(torch.uint8) for name, v in small_weights().items()
    }
    folder = write_small_llama(tmp_path, weights, quantization_config={"quant_method": "hqq"})
    refused("scan", folder, says=["'hqq'", "GPTQ, AWQ", "unquantised files"])


def test_integers_where_a_weight_should_be_name_the_format(tmp_path):
    weights, name = small_weights(), "model.layers.0.self_attn.k_proj.weight"
    weights[name] = weights[name].to(torch.int8)
    folder = write_small_llama(tmp_path, weights, quantization_config={"quant_method": "quanto"})
    refused("scan", folder, says=[repr(name), "'quanto'", "unquantised files"])


@pytest.mark.parametrize("settings", [[], "x", {}, {"quant_method": 3}, {"quant_method": "fp8"}])
def test_a_quantization_config_of_any_form_does_no_harm(tmp_path, settings):
    folder = write_small_llama(tmp_path, quantization_config=settings)
    assert len(scan(load_checkpoint(folder)).layers) == CONFIG["num_hidden_layers"]
