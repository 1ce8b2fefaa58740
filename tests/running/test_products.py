"""Products of a running model by oneDNN: only where nothing else changes but rounding."""

import pytest
import torch
from torch.autograd import forward_ad

from orbitlens.running import products
from orbitlens.running.threads import SMALL_MODEL

LARGE = SMALL_MODEL
needs_call = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, products.CALL),
    reason="this torch has no oneDNN",
)


@pytest.fixture
def faster(monkeypatch):
    """Have oneDNN be the faster one, and count what it multiplies."""
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    calls = []
    multiply = getattr(torch.ops.mkldnn, products.CALL)

    def counted(x, *rest):
        calls.append(tuple(x.shape))
        return multiply(x, *rest)

    monkeypatch.setattr(torch.ops.mkldnn, products.CALL, counted)
    return calls


@pytest.fixture
def linear():
    torch.manual_seed(0)
    return torch.nn.Linear(96, 40)


def inputs(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@needs_call
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3, 5, 96), (96,), (1, 96), (7, 2, 3, 96)])
def test_products_are_those_of_float64_to_rounding(faster, shape, bias):
    linear, x = torch.nn.Linear(96, 40, bias=bias), inputs(*shape)
    with torch.no_grad(), products.fast_products(LARGE):
        found = linear(x)
    wanted = torch.nn.functional.linear(
        x.double(), linear.weight.double(), linear.bias.double() if bias else None
    )
    assert faster == [shape]
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() < 2e-6


@needs_call
def test_strided_inputs_are_read_as_they_lie(faster, linear):
    x = inputs(5, 4, 192)[..., ::2].transpose(0, 1)
    with torch.no_grad(), products.fast_products(LARGE):
        found = linear(x)
    assert len(faster) == 1
    assert (found - linear(x.contiguous())).abs().max() < 2e-6


@needs_call
def test_products_by_columns_are_those_of_float64_to_rounding(faster):
    bias, x, weight = inputs(40), inputs(7, 96), inputs(96, 40)
    with torch.no_grad(), products.fast_products(LARGE):
        found = torch.addmm(bias, x, weight)
        scaled = torch.addmm(bias, x, weight, beta=2.0)
    assert faster == [(7, 96)]
    wanted = bias.double() + x.double() @ weight.double()
    assert (found - wanted).abs().max() < 1e-5
    assert (scaled - wanted - bias).abs().max() < 1e-5


@needs_call
def test_a_bias_that_is_no_row_is_added_by_torch(faster):
    table, x, weight = inputs(7, 40), inputs(7, 96), inputs(96, 40)
    with torch.no_grad(), products.fast_products(LARGE):
        found = torch.addmm(table, x, weight)
    assert faster == []
    assert (found - table - x @ weight).abs().max() < 1e-5


@needs_call
def test_small_models_other_types_and_what_is_outside_are_left_alone(faster, linear):
    x = inputs(3, 96)
    with torch.no_grad():
        with products.fast_products(SMALL_MODEL - 1):
            linear(x)
        with products.fast_products(LARGE):
            linear.double()(x.double())
            torch.matmul(x, x.T)
        linear.float()(x)
    assert faster == []


@needs_call
def test_gradients_are_those_of_torch(faster, linear):
    x = inputs(3, 96).requires_grad_()
    with products.fast_products(LARGE):
        linear(x).sum().backward()
    assert faster == []
    assert torch.allclose(x.grad, linear.weight.sum(dim=0).expand(3, 96), atol=1e-6)


@needs_call
def test_forward_derivatives_are_not_lost(faster, linear):
    x, moved = inputs(3, 96), inputs(2, 3, 96)[1]
    wanted = moved @ linear.weight.T
    with torch.no_grad(), products.fast_products(LARGE):
        _, by_function = torch.func.jvp(linear, (x,), (moved,))
        with forward_ad.dual_level():
            by_level = forward_ad.unpack_dual(linear(forward_ad.make_dual(x, moved))).tangent
    assert faster == []
    assert torch.allclose(by_function, wanted, atol=1e-6)
    assert by_level is not None
    assert torch.allclose(by_level, wanted, atol=1e-6)


@needs_call
def test_vectorised_calls_go_where_they_did(faster, linear):
    x = inputs(2, 3, 96)
    with torch.no_grad(), products.fast_products(LARGE):
        found = torch.vmap(linear)(x)
    assert faster == []
    assert torch.allclose(found, linear(x), atol=1e-6)


@needs_call
def test_after_an_error_products_are_torchs_again(faster, linear):
    with pytest.raises(RuntimeError), torch.no_grad(), products.fast_products(LARGE):
        linear(inputs(3, 95))
    faster.clear()
    with torch.no_grad():
        linear(inputs(3, 96))
    assert faster == []


@pytest.mark.parametrize(
    ("capability", "maker", "expected"),
    [
        ("AVX512", "AuthenticAMD", True),
        ("AVX512", "GenuineIntel", False),
        ("AVX2", "AuthenticAMD", False),
    ],
)
@needs_call
def test_the_processor_decides(monkeypatch, tmp_path, capability, maker, expected):
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\nvendor_id\t: {maker}\n", encoding="ascii")
    monkeypatch.setattr(products, "CPU_INFO", info)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    products.onednn_is_faster.cache_clear()
    assert products.onednn_is_faster() == expected
    monkeypatch.setattr(products, "CPU_INFO", tmp_path / "none")  # another system
    products.onednn_is_faster.cache_clear()
    assert not products.onednn_is_faster()
    products.onednn_is_faster.cache_clear()
