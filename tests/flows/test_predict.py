"""Certificates never disagree with what is simulated; weaker predictions are told apart."""

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path

import jaxtyping
import pytest
import torch

from orbitlens.flows.examples import example_system
from orbitlens.flows.integrate import IntegrateOptions, integrate_flow
from orbitlens.flows.outcome import Fate, fate
from orbitlens.flows.prediction import Ground, heads_of, predict
from orbitlens.flows.system import Mask, system_of_maps
from slow_flow import ENCODINGS, normal, random_system, seeded

EYE = torch.eye(2, dtype=torch.float64)


def diagonal(*values):
    return torch.diag(torch.tensor(values, dtype=torch.float64))


def tokens(seed, n=12, d=3):
    return normal(seeded(seed), n, d)


@pytest.fixture(scope="module")
def benchmark():
    """Return benchmarks/prediction.py, whose 2,000 systems a setting are few hundred here."""
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "prediction.py"
    spec = importlib.util.spec_from_file_location("prediction_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def unchecked_shapes():
    """Hundreds of runs go without the tests' own check of shapes: other tests have it on."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


# --- certificates come true ------------------------------------------------------------------

SETTINGS = [f"{mask.value}, {p}" for mask in Mask for p in ("none", "absolute", "rotary", "alibi")]


@pytest.mark.parametrize("setting", SETTINGS)
def test_certificates_agree_with_what_is_simulated(benchmark, setting, unchecked_shapes):
    trials = [benchmark.trial(seed, setting=setting, n_tokens=6) for seed in range(160)]
    certified = [t for t in trials if t.source is Ground.CERTIFICATE]
    assert len(certified) > 25
    assert not benchmark.failures(trials)
    theorems = {t.theorem for t in certified}
    expected = {"T3"}
    expected |= {"T4"} if setting.startswith("causal") else set()
    expected |= {"T2"} if setting.endswith(("none", "absolute")) else set()
    assert theorems == expected


def test_the_benchmark_counts_a_wrong_certificate(benchmark):
    good = benchmark.trial(2, setting="full, none", n_tokens=6)
    assert good.source is Ground.CERTIFICATE
    bad = replace(good, found=Fate.MIXED)
    assert benchmark.failures([good, bad]) == [bad]
    assert "50.0% of 2" in benchmark.share([good, bad])
    for table in (
        benchmark.agreement_table,
        benchmark.confusion_table,
        benchmark.reliability_table,
        benchmark.abscissa_table,
    ):
        assert all(line.startswith("|") for line in table([good, bad]))


@pytest.mark.parametrize("name", ["symmetric-pd", "symmetric-nd"])
@pytest.mark.parametrize("mask", list(Mask))
def test_a_certificate_of_the_whole_cloud_comes_true(name, mask):
    for seed in range(6):
        system, x = replace(example_system(name, seed=seed), mask=mask), tokens(seed)
        prediction = predict(system, x)
        assert prediction.source is Ground.CERTIFICATE
        assert prediction.why.startswith("T2")
        assert prediction.fate is (Fate.DIVERGING if name == "symmetric-pd" else Fate.CONVERGING)
        until = 30.0 if prediction.fate is Fate.DIVERGING else 400.0  # convergence is slow
        assert fate(integrate_flow(system, x, until=until)) is prediction.fate


def test_convergence_by_t2_needs_a_long_run():
    """Like t^(-1/2): a short run has not halved the cloud, and its fate is mixed."""
    system, x = example_system("anti-aligned", d_model=2), 0.3 * tokens(1, d=2)
    assert predict(system, x).fate is Fate.CONVERGING
    assert fate(integrate_flow(system, x, until=2.0)) is Fate.MIXED
    assert fate(integrate_flow(system, x, until=200.0)) is Fate.CONVERGING


# --- when a certificate is issued ------------------------------------------------------------


def side_rate(system, x):
    """Return the rate of T3 for a start; None where it does not hold."""
    certificate = next(c for c in predict(system, x).certificates if c.name == "T3")
    return certificate.numbers.get("rate")


def test_half_spaces_certify_only_tokens_on_one_side():
    system = system_of_maps(-EYE, diagonal(0.5, -1.0))
    right = torch.tensor([[1.0, 0.3], [0.2, -2.0]], dtype=torch.float64)
    assert side_rate(system, right) == pytest.approx(0.5)
    assert side_rate(system, -right) == pytest.approx(0.5)
    assert side_rate(system, torch.cat([right, -right])) is None
    assert predict(system, right).why.startswith("T3")
    assert predict(system, right).fate is Fate.DIVERGING


def test_a_drift_must_push_to_the_tokens_side():
    system = system_of_maps(-EYE, diagonal(0.5, -1.0))
    right = torch.tensor([[1.0, 0.3], [0.2, -2.0]], dtype=torch.float64)
    with_drift = replace(system, drift=torch.tensor([0.1, -5.0], dtype=torch.float64))
    against = replace(system, drift=torch.tensor([-0.1, 0.0], dtype=torch.float64))
    assert predict(with_drift, right).source is Ground.CERTIFICATE
    assert predict(with_drift, -right).source is not Ground.CERTIFICATE
    assert predict(against, right).source is not Ground.CERTIFICATE


def test_the_fastest_half_space_counts():
    system = system_of_maps(-EYE, diagonal(0.2, 0.9))
    both = torch.tensor([[1.0, 1.0], [2.0, 0.5]], dtype=torch.float64)
    first_only = torch.tensor([[1.0, 1.0], [2.0, -0.5]], dtype=torch.float64)
    assert side_rate(system, both) == pytest.approx(0.9)
    assert side_rate(system, first_only) == pytest.approx(0.2)


def test_a_zero_eigenvalue_that_rounding_made_positive_certifies_nothing():
    """V singular: along its left null vector nothing grows, whatever sign 1e-17 has."""
    issued = 0
    for seed in range(40):
        source = seeded(seed)
        s = torch.linalg.qr(normal(source, 3, 3))[0] + 0.2 * normal(source, 3, 3)
        v = s @ diagonal(-1.0, -0.5, 0.0) @ torch.linalg.inv(s)
        null = torch.linalg.inv(s)[2]
        x = normal(source, 6, 3)
        x = x * torch.sign(x @ null)[:, None]  # all on one side of it
        issued += predict(system_of_maps(normal(source, 3, 3), v), x).why.startswith("T3")
    assert issued == 0


def test_positions_added_at_the_input_are_part_of_the_start():
    """T3 asks where tokens start; the encoding carries one of them to the other side."""
    system = system_of_maps(-EYE, diagonal(0.5, -1.0))
    x = torch.tensor([[1.0, 0.3], [0.2, -2.0]], dtype=torch.float64)
    across = torch.tensor([[-3.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert predict(system, x).source is Ground.CERTIFICATE
    assert predict(replace(system, positions=across), x).source is not Ground.CERTIFICATE
    assert predict(replace(system, positions=-across), x).source is Ground.CERTIFICATE


def test_the_leader_certifies_divergence_under_a_causal_mask_alone():
    v = torch.tensor([[0.3, -2.0], [2.0, 0.3]], dtype=torch.float64)  # no real eigenvalue
    for encoding in ("none", "rotary", "alibi"):
        base, _ = random_system(0, d=2, r=2, encoding=encoding)
        system = replace(base, w_v=EYE[None], w_o=v.T[None].contiguous())
        assert predict(system, tokens(0, d=2)).source is not Ground.CERTIFICATE
        causal = predict(replace(system, mask=Mask.CAUSAL), tokens(0, d=2))
        assert causal.why.startswith("T4")
        assert causal.fate is Fate.DIVERGING


def test_a_leader_that_converges_says_nothing_of_the_others():
    system = replace(example_system("random", seed=1), mask=Mask.CAUSAL)
    shrinking = replace(system, w_o=system.w_o - 5 * torch.eye(3, dtype=torch.float64))
    assert predict(shrinking, tokens(0)).source is not Ground.CERTIFICATE


def test_several_heads_are_certified_by_their_leader_alone():
    system, x = random_system(3, heads=2, mask="causal")
    grown = replace(system, w_v=6 * system.w_v)
    prediction = predict(grown, x)
    assert prediction.source in {Ground.CERTIFICATE, Ground.CLOSURE}
    if prediction.source is Ground.CERTIFICATE:
        assert prediction.why.startswith("T4")
    names = [c.name for c in prediction.certificates]
    assert names == ["T3", "T4", "T5"]  # of the sum of the heads
    assert not prediction.certificates[0].holds


# --- hypotheses dropped ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"b_q": torch.tensor([[0.5, 0.1]], dtype=torch.float64)},
        {"drift": torch.tensor([0.5, 0.1], dtype=torch.float64)},
        {"window": 3},
        {"alibi_slopes": torch.tensor([0.5], dtype=torch.float64)},
    ],
)
def test_t2_is_not_issued_where_a_hypothesis_fails(changes):
    system, x = example_system("anti-aligned", d_model=2), tokens(4, d=2)
    assert predict(system, x).source is Ground.CERTIFICATE
    assert predict(replace(system, **changes), x).source is not Ground.CERTIFICATE


def test_a_bias_makes_the_cloud_end_elsewhere():
    """Visibly: with a drift the anti-aligned cloud does not converge to 0."""
    system, x = example_system("anti-aligned", d_model=2), 0.2 * tokens(4, d=2)
    pushed = replace(system, drift=torch.tensor([2.0, 0.0], dtype=torch.float64))
    assert fate(integrate_flow(pushed, x, until=100.0)) is not Fate.CONVERGING


def test_signs_alone_are_an_indication_that_can_fail(unchecked_shapes):
    sources = {predict(example_system(name), tokens(0)).source for name in ("pd", "hd", "nd")}
    assert sources == {Ground.INDICATION}
    options = IntegrateOptions(max_steps=2000)
    fates = [
        fate(
            integrate_flow(
                example_system("nd", seed=seed), tokens(seed), until=200.0, options=options
            )
        )
        for seed in range(40)
    ]
    assert 0 < sum(found is not Fate.CONVERGING for found in fates) < 20


@pytest.mark.parametrize(
    "changes",
    [
        {"unnormalised": True},
        {"noise": 0.1},
        {"positions": torch.ones(12, 3).double(), "reinjected": True},
    ],
)
def test_nothing_is_predicted_where_no_theorem_speaks(changes):
    prediction = predict(replace(example_system("aligned"), **changes), tokens(0))
    assert prediction.source is Ground.NONE
    assert prediction.certificates == ()


def test_the_closure_speaks_where_nothing_else_does():
    """Low rank: no signs; tokens on both sides, no half-space; full attention, no leader."""
    w = torch.zeros(1, 4, 2, dtype=torch.float64)
    w[0, 0, 0] = w[0, 1, 1] = 1.0
    base, x = random_system(0, d=4, r=2, n=10)
    gathers = replace(base, w_q=w, w_k=w, w_v=w, w_o=-w.transpose(1, 2).contiguous())
    prediction = predict(gathers, x)
    assert (prediction.source, prediction.fate) == (Ground.CLOSURE, Fate.CONVERGING)
    assert "-1.00" in prediction.why
    spin = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    turns = replace(gathers, w_o=(spin @ w[0].T)[None].contiguous())
    assert predict(turns, x).fate is Fate.MIXED


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_can_be_asked(encoding):
    system, x = random_system(6, encoding=encoding, mask="causal-window", biased=True)
    prediction = predict(system, x)
    assert prediction.fate in set(Fate)
    assert prediction.why
    assert (prediction.source is Ground.NONE) == (encoding == "reinjected")


def test_the_temperature_is_part_of_the_scores():
    system, x = random_system(6)
    (cold,), (hot,) = heads_of(system), heads_of(replace(system, beta=3.0))
    assert torch.allclose(hot.w_q * hot.scale, 3 * cold.w_q * cold.scale)
    speeds = [
        next(c.margin for c in predict(s, x).certificates if c.name == "T5")
        for s in (system, replace(system, beta=3.0))
    ]
    assert speeds[0] == pytest.approx(speeds[1])  # the speed limit is of V alone
    assert math.isfinite(speeds[0])
