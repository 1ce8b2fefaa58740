"""The study of vision tokenizers: its data, its closed forms, one arm, and what controls do."""

import gzip
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.lab.tasks import images as files
from orbitlens.orbit.moto import MoTo, TokenNorm, patches_of
from orbitlens_papers.bench import Bench, Scale, Settings
from orbitlens_papers.claim import Finding, Kind, Outcome, PaperVerdict, Verdict, paper_verdict
from orbitlens_papers.estimate import Estimate
from orbitlens_papers.jobs import Job
from orbitlens_papers.vision_tokens import STUDY, claims, exact, gains, training
from orbitlens_papers.vision_tokens.claims import IMAGES, LABELS
from orbitlens_papers.vision_tokens.images import read_digits
from orbitlens_papers.vision_tokens.training import ImageSetup

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
SMALL = ImageSetup(width=16, layers=1, steps=3, batch=8, n_judged=50, n_decoded=40)


@pytest.fixture
def bench(tmp_path):
    return Bench(Settings(scale=Scale.SMOKE, seeds=2), tmp_path)


def write(folder, *, n=300, side=28, labels=None, cut=0, n_labels=None):
    """Write files in MNIST's format; `cut` bytes are missing from the images."""
    folder.mkdir(exist_ok=True)
    numbers = torch.arange(n) % 10 if labels is None else torch.tensor(labels)
    pixels = torch.randint(256, (n, side, side), generator=torch.Generator().manual_seed(0))
    body = struct.pack(">4i", 2051, n, side, side) + pixels.byte().numpy().tobytes()
    (folder / IMAGES).write_bytes(gzip.compress(body[: len(body) - cut]))
    count = n if n_labels is None else n_labels
    told = struct.pack(">2i", 2049, count) + bytes(numbers.tolist()[:count])
    (folder / LABELS).write_bytes(gzip.compress(told))
    return str(folder / IMAGES)


# --- data ------------------------------------------------------------------------------------


def test_the_parts_share_no_image_and_the_pool_is_normalised(tmp_path):
    data = read_digits(write(tmp_path / "whole"))
    assert (len(data.pool), len(data.judged), data.patch, data.side) == (150, 150, 7, 28)
    assert "300" in data.source and "MNIST" in data.source
    assert float(data.pool.mean()) == pytest.approx(0, abs=1e-5)
    assert float(data.pool.std()) == pytest.approx(1, abs=1e-5)
    both = torch.cat([data.pool, data.judged]).flatten(1)
    assert len(torch.unique(both, dim=0)) == 300


def test_without_a_file_the_small_digits_are_used_and_named():
    data = read_digits(None)
    assert (len(data.pool), len(data.judged), data.patch) == (1000, 797, 2)
    assert data.source == claims.INSTEAD


def test_the_real_files_are_read():
    if not (SHARED / IMAGES).is_file():
        pytest.skip("MNIST's files are not beside the checkout")
    data = read_digits(str(SHARED / IMAGES))
    assert (len(data.pool), len(data.judged), data.side) == (5000, 5000, 28)
    assert torch.bincount(data.judged_labels).min() > 400


def _damage(folder, how):
    file, labels = folder / IMAGES, folder / LABELS
    if how == "no gzip at all":
        file.write_bytes(b"PK\x03\x04 something else")
    elif how == "cut short":
        file.write_bytes(file.read_bytes()[:-4000])
    elif how == "scrambled":
        packed = bytearray(file.read_bytes())
        packed[12:16] = b"\xff\xff\xff\xff"
        file.write_bytes(packed)
    elif how == "no labels":
        labels.unlink()
    elif how == "empty":
        file.write_bytes(b"")


@pytest.mark.parametrize("how", ["no gzip at all", "cut short", "scrambled", "no labels", "empty"])
def test_a_broken_file_is_refused_with_its_name_and_the_fallback(tmp_path, how):
    write(tmp_path)
    _damage(tmp_path, how)
    with pytest.raises(InputError) as caught:
        read_digits(str(tmp_path / IMAGES))
    named = LABELS if how == "no labels" else IMAGES
    assert str(tmp_path / named) in str(caught.value)
    assert "without a folder of data" in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"side": 14}, "14 x 14"),
        ({"labels": [11] * 300}, "up to 11"),
        ({"cut": 100}, "Is it whole"),
        ({"n_labels": 200}, "200 labels"),
        ({"side": 27}, "27 x 27"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, wrong, words):
    file = write(tmp_path, **wrong)
    with pytest.raises(InputError, match=words) as caught:
        read_digits(file)
    assert "without a folder of data" in str(caught.value)


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    file = write(tmp_path / "large")
    monkeypatch.setattr(files, "MOST_BYTES", 1000)
    with pytest.raises(InputError, match="more than 1,000 bytes"):
        read_digits(file)


# --- closed forms ----------------------------------------------------------------------------


def test_r2_is_one_for_an_invertible_map_and_less_where_something_is_lost(generator):
    x = torch.randn(200, 6, generator=generator, dtype=torch.float64)
    square = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    tokens = x @ square + 3.0  # the intercept takes the shift
    assert training.linear_r2(tokens[:100], x[:100], tokens[100:], x[100:]) == pytest.approx(1)
    # Half of six independent coordinates: half of the spread.
    half = x[:, :3]
    assert training.linear_r2(half[:100], x[:100], half[100:], x[100:]) == pytest.approx(
        0.5, abs=0.1
    )


def test_no_linear_tokens_beat_principal_components(generator):
    data = read_digits(None)
    rows = patches_of(data.judged, 2).double().flatten(0, 1)
    _, vectors = torch.linalg.eigh(torch.cov(rows.T))
    best = gains.best_r2(data, 2)
    tokens = rows @ vectors.flip(1)[:, :2]
    assert training.linear_r2(tokens, rows, tokens, rows) == pytest.approx(best, abs=1e-6)
    drawn = rows @ torch.randn(4, 2, generator=generator, dtype=torch.float64)
    assert training.linear_r2(drawn, rows, drawn, rows) < best
    assert gains.best_r2(data, 4) == pytest.approx(1)


class Says:
    """A model that answers what it is told."""

    def __init__(self, answers):
        self.answers = answers

    def __call__(self, pixel_values):
        found = torch.nn.functional.one_hot(self.answers, 10).float()
        return type("Output", (), {"logits": found})()

    def eval(self):
        return self

    def train(self):
        return self


def test_by_the_labels_of_others_even_a_perfect_model_guesses():
    labels = torch.arange(100) % 10
    found = training.judge(Says(labels), torch.zeros(100, 1, 2, 2), labels)
    assert found["accuracy"] == 1
    assert found["by_others"] == pytest.approx(0.1)


def test_the_mean_over_all_ways_to_hand_labels_out_is_what_shuffling_gives(generator):
    labels = torch.randint(3, (500,), generator=generator)
    answers = torch.where(labels == 0, 0, torch.randint(10, (500,), generator=generator))
    found = training.judge(Says(answers), torch.zeros(500, 1, 2, 2), labels)
    shuffled = [
        float((answers == labels[torch.randperm(500, generator=generator)]).double().mean())
        for _ in range(300)
    ]
    assert found["by_others"] == pytest.approx(sum(shuffled) / 300, abs=0.003)


def test_normalisation_alone_keeps_order_and_couples_tokens_but_layer_norm_does_not(generator):
    assert exact.order_error(TokenNorm(), generator) < 1e-12
    assert exact.reach(TokenNorm(), generator) > 1e-3
    assert exact.reach(torch.nn.LayerNorm(32, dtype=torch.float64), generator) == 0


def test_the_check_of_order_sees_a_layer_that_knows_places(generator):
    assert exact.order_error(exact.drawn_moto(generator, n_fixed=16), generator) > 1e-3
    assert exact.order_error(exact.drawn_moto(generator, replaces=True), generator) < 1e-12


def test_parameters_are_those_of_the_formulas(bench):
    counts = exact.few_parameters(bench).data["counts"]
    width, pixels = 32, 4
    moto = width * 4 + 2 * width * width + 2 * width
    assert counts["MoTo"] - counts["plain"] == moto
    assert counts["both"] - counts["MoTo"] == width * pixels + pixels
    assert sum(p.numel() for p in MoTo(384).parameters()) == 384 * 4 + 2 * 384**2 + 2 * 384


def test_a_model_of_deit_s_has_its_22_million_parameters():
    from orbitlens.orbit import OrbitConfig, OrbitForImageClassification

    with torch.device("meta"):
        model = OrbitForImageClassification(OrbitConfig(num_hidden_layers=12, **exact.SMALL_S))
    assert exact.n_parameters(model) == pytest.approx(22.05e6, rel=0.005)


def test_a_control_with_a_fixed_layout_does_not_depend_on_the_process(bench):
    torch.manual_seed(1)
    first = exact.keeps_order(bench).control
    torch.manual_seed(2)
    assert exact.keeps_order(bench).control == first


# --- arms ------------------------------------------------------------------------------------


def trained(setup, seed=0):
    return training.train_and_judge(Job(setup=setup, seed=seed))


def test_a_pair_shares_its_images_and_first_weights():
    data = read_digits(None)
    plain = training.build_model(SMALL, data, 5).state_dict()
    for changes in ({"modulation": "moto"}, {"token_prop": 0.5}, {"modulation": "moto-random"}):
        other = training.build_model(replace(SMALL, **changes), data, 5).state_dict()
        assert all(torch.equal(value, other[name]) for name, value in plain.items())
    again = training.build_model(SMALL, data, 6).state_dict()
    assert any(not torch.equal(value, again[name]) for name, value in plain.items())


def test_a_run_is_the_same_twice_and_another_with_another_seed():
    first, second = (trained(SMALL, 3) for _ in range(2))
    assert first == second
    assert trained(SMALL, 4) != first


def test_labels_teach_and_shuffled_ones_do_not():
    learning = replace(SMALL, steps=400, batch=32, n_judged=797, width=32)
    true, mixed = (trained(replace(learning, shuffled=s)) for s in (False, True))
    assert true["accuracy"] > 0.4
    assert mixed["accuracy"] < 0.25


def test_pictures_have_a_layout_whose_shares_sum_to_one_and_falling_spectra():
    row = trained(replace(SMALL, modulation="moto", pictures=True))
    shares = torch.tensor(row["layout"]).sum(dim=0)
    torch.testing.assert_close(shares, torch.ones(4, 4), rtol=0, atol=0.01)
    assert len(row["image"]) == 8
    for values in row["spectra"].values():
        assert values == sorted(values, reverse=True) and len(values) == 16
    assert "layout" not in trained(replace(SMALL, pictures=True))


# --- verdicts --------------------------------------------------------------------------------


def made_up(bench, gained):
    """Return rows of all arms at 0.7, with both designs better by what each pair gains."""
    rows = {
        name: [{"accuracy": 0.7, "by_others": 0.1, "looks": []}] * len(gained)
        for name in gains.setups(bench)
    }
    rows["both, 200"] = [{**rows["both, 200"][0], "accuracy": 0.7 + g} for g in gained]
    rows[gains.SHUFFLED] = [{**rows["both, 200"][0], "accuracy": 0.1 + g} for g in gained]
    return rows


@pytest.mark.parametrize(
    ("gained", "verdict"),
    [
        ((0.02, 0.01, 0.03, 0.02), Verdict.HOLDS),
        ((0.02, -0.01, 0.01, -0.02), Verdict.UNDECIDED),
        ((-0.02, -0.01, -0.03, -0.02), Verdict.NOT_SEEN),
    ],
)
def test_a_gain_holds_above_zero_and_is_not_seen_below_and_its_control_fails(
    tmp_path, monkeypatch, gained, verdict
):
    bench = Bench(Settings(scale=Scale.DEFAULT), tmp_path)
    monkeypatch.setattr(gains, "runs", lambda bench: made_up(bench, gained))
    claim = next(claim for claim in STUDY.claims if claim.key == "3a")
    found = Finding(claim=claim, outcome=STUDY.measures["3a"](bench))
    assert found.control_failed
    assert found.verdict is verdict


def test_pairs_of_short_runs_share_images_and_first_weights_and_read_no_pixels(bench):
    rows = gains.short_runs(bench)
    assert {row["number"] for own in rows.values() for row in own} == {
        rows["both, 200"][0]["number"]
    }
    assert all("r2" not in row for own in rows.values() for row in own)


def test_a_gain_of_every_pair_is_found_early_too(tmp_path, monkeypatch):
    bench = Bench(Settings(scale=Scale.DEFAULT), tmp_path)
    own = [0.01 * (k % 5) for k in range(24)]
    monkeypatch.setattr(gains, "short_runs", lambda bench: made_up(bench, own))
    claim = next(claim for claim in STUDY.claims if claim.key == "7a")
    found = Finding(claim=claim, outcome=STUDY.measures["7a"](bench))
    assert (found.verdict, found.control_failed) == (Verdict.HOLDS, True)


def test_tokens_wide_enough_make_4a_untestable_and_it_says_so(bench, monkeypatch):
    rows = {name: [{"r2": 1.0, "r2_others": 0.0}] * 2 for name in gains.setups(bench)}
    monkeypatch.setattr(gains, "runs", lambda bench: rows)
    found = gains.keeps_pixels(bench)
    assert "4 pixels fit into tokens of 16" in found.obstacle
    assert found.data["source"] == claims.INSTEAD


def test_a_reconstruction_is_never_called_reproduced(tmp_path):
    """Even if all that can be tested held, there is no verdict on the paper."""

    def exactly(value):
        return Estimate(value=value, low=value, high=value, n=1, how="")

    findings = []
    for claim in STUDY.claims:
        sign = 1 if claim.side.value == "above" else -1
        good, bad = exactly(claim.threshold + sign), exactly(claim.threshold - sign)
        outcome = Outcome(result=good, control=bad)
        if claim.key == "6a":
            outcome = exact.paper_itself(Bench(Settings(scale=Scale.SMOKE), tmp_path))
        findings.append(Finding(claim=claim, outcome=outcome))
    assert [f.claim.key for f in findings if f.verdict is Verdict.NOT_TESTABLE] == ["6a"]
    assert paper_verdict(findings, Kind.EXPERIMENT) is PaperVerdict.RECONSTRUCTION
    assert {claim.key for claim in STUDY.claims if claim.core} == set(
        "3a 3b 3c 6a 7a 7b 7c".split()
    )


def test_every_word_about_the_designs_says_that_they_are_reconstructed():
    assert "reconstruction" in STUDY.title and "reconstructions" in STUDY.gap
    for claim in STUDY.claims:
        named = "MoTo" in claim.text or "TokenProp" in claim.text
        assert named == ("as reconstructed" in claim.text or claim.key == "6a"), claim.key
