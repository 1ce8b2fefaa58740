"""Products by oneDNN and by compiled code: only where nothing else changes but rounding."""

import pytest
import torch
from torch.autograd import forward_ad

from orbitlens.running import products
from orbitlens.running._compiled import multiply
from orbitlens.running.threads import SMALL_MODEL, torch_threads

LARGE = SMALL_MODEL
needs_call = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, products.CALL),
    reason="this torch has no oneDNN",
)


@pytest.fixture
def faster(monkeypatch):
    """Have oneDNN be the faster one, and count what it multiplies."""
    monkeypatch.setattr(products, "has_half_width", lambda: True)
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
            x.double() @ x.double().T
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
def test_the_processor_decides(monkeypatch, tmp_path, capability, maker, expected):
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\nvendor_id\t: {maker}\n", encoding="ascii")
    monkeypatch.setattr(products, "CPU_INFO", info)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    products.has_half_width.cache_clear()
    assert products.has_half_width() == expected
    monkeypatch.setattr(products, "CPU_INFO", tmp_path / "none")  # another system
    products.has_half_width.cache_clear()
    assert not products.has_half_width()
    products.has_half_width.cache_clear()


# --- float64, by compiled code ---------------------------------------------------------------


@pytest.fixture
def compiled(monkeypatch):
    """Have compiled code be the faster one, and count what it multiplies."""
    monkeypatch.setattr(products, "has_half_width", lambda: True)
    calls, run = [], multiply.multiply_tensors

    def counted(a, b):
        calls.append((tuple(a.shape), tuple(b.shape)))
        return run(a, b)

    monkeypatch.setattr(multiply, "multiply_tensors", counted)
    return calls


def exact(*shape, seed=1):
    """Return whole numbers, whose products are exact in any order."""
    source = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 10, shape, generator=source).double()


SHAPES = [  # edges of panels (16), of rows (12, 4), of what is multiplied at once (256, 192, 256)
    ((96, 64), (64, 96)),
    ((193, 257), (257, 17)),
    ((8, 513), (513, 261)),
    ((13, 70), (70, 600)),
    ((395, 40), (40, 40)),
    ((5, 96, 64), (5, 64, 33)),
    ((5, 96, 64), (64, 33)),
    ((96, 64), (5, 64, 33)),
    ((1, 96, 64), (5, 64, 33)),
    ((5, 96, 64), (1, 64, 33)),
    ((5, 1, 96, 64), (64, 33)),
    ((1, 96, 64), (5, 1, 64, 33)),
]
LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: x.mT.contiguous().mT,
    "every second": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
    "behind others": lambda x: torch.cat([x, x], dim=-2)[..., x.shape[-2] :, :],
}


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiled_products_of_whole_numbers_are_exact(compiled, shapes, layout, n_threads):
    a, b = (exact(*shape, seed=k) for k, shape in enumerate(shapes))
    with torch_threads(n_threads):
        found = products.product(LAYOUTS[layout](a), LAYOUTS[layout](b))
    wanted = torch.tensor((a.numpy().astype(int) @ b.numpy().astype(int)).astype(float))
    assert len(compiled) >= (max(a.dim(), b.dim()) > 2 or a.shape[-2] * b.numel() >= 2**19)
    assert found.shape == wanted.shape
    assert torch.equal(found, wanted)


def test_threads_share_rows_and_stacks(compiled):
    for a, b in ((exact(500, 200), exact(200, 200)), (exact(6, 70, 200), exact(6, 200, 200))):
        with torch_threads(3):
            found = products.product(a, b)
        assert torch.equal(found, torch.matmul(a, b))
    assert len(compiled) == 2


def test_what_is_no_number_stays_none(compiled):
    a, b = exact(96, 64), exact(64, 128)
    a[3, 5], a[7, 1], b[9, 2] = torch.nan, torch.inf, -torch.inf
    found, wanted = products.product(a, b), torch.matmul(a, b)
    assert len(compiled) == 1
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.nan_to_num(), wanted.nan_to_num())


@pytest.mark.parametrize("call", [torch.matmul, torch.Tensor.matmul, lambda a, b: a @ b])
def test_matrices_of_float64_go_to_compiled_code_beside_a_model(compiled, call):
    a, b = exact(96, 64), exact(64, 96)
    with torch.no_grad(), products.fast_products(LARGE):
        assert torch.equal(call(a, b), torch.matmul(a, b))
        call(a.float(), b.float()), call(a[:7], b), call(a[0], b), call(a[:20], b[:, :20])
        with pytest.raises(RuntimeError):
            call(a, b.T)
    assert compiled[0] == ((96, 64), (64, 96)) and len(compiled) == 2  # once by `torch.matmul`


def test_derivatives_of_float64_products_are_torchs(compiled):
    a, b = exact(96, 64), exact(64, 96)
    moving = a.clone().requires_grad_(True)
    products.product(moving, b).sum().backward()
    assert torch.equal(moving.grad, b.sum(dim=1).expand(96, 64))
    _, moved = torch.func.jvp(lambda x: products.product(x, b), (a,), (a,))
    assert torch.equal(moved, a @ b)
    stacked = torch.vmap(lambda x: products.product(x, b))(a[None].repeat(3, 1, 1))
    assert torch.equal(stacked[2], a @ b)
    assert compiled == []
