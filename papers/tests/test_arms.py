"""The arms of arXiv 2512.03058: stored losses are those of the stored runs, of the plans' runs."""

import json
import math
from pathlib import Path

import pytest

from orbitlens.lab.run import run_hash
from orbitlens_papers.bench import Bench, Scale, Settings
from orbitlens_papers.token_dynamics import arms
from orbitlens_papers.token_dynamics.claims import CLAIMS

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
RUNS = [json.loads(file.read_text()) for file in (ROOT / "docs/experiments/arms").glob("*.json")]


@pytest.fixture
def bench(tmp_path):
    return Bench(Settings(scale=Scale.DEFAULT), tmp_path)


def test_every_loss_that_is_judged_is_that_of_a_stored_run():
    by_name = {(r["plan"], r["arm"], r["seed"], r.get("noise", False)): r["loss"] for r in RUNS}
    judged = {
        (plan, arm, int(seed), noise): loss
        for noise, plans in ((False, arms.stored()), (True, arms.stored()["noise"]))
        for plan, own in plans.items()
        if plan != "noise"
        for arm, by_seed in own.items()
        for seed, loss in by_seed.items()
    }
    assert judged.items() <= by_name.items()


@pytest.mark.parametrize("plan", list(arms.COMPARED))
def test_all_arms_that_are_compared_have_three_seeds_or_more_and_a_control(plan):
    for arm in (*arms.COMPARED[plan], arms.HURT):
        assert len(arms.stored()[plan][arm]) >= 3
    for arm in arms.COMPARED[plan]:
        assert len(arms.stored()["noise"][plan][arm]) >= 2


@pytest.mark.parametrize("plan", list(arms.COMPARED))
def test_the_study_trains_the_very_runs_that_are_stored(plan):
    file = DATA / (arms.MNIST if plan == arms.IMAGES else "tinyshakespeare.txt")
    if not file.is_file():
        pytest.skip(f"shared/data/{file.name} is not there")
    for run in RUNS:
        if run["plan"] == plan and run["arm"] in arms.COMPARED[plan] and not run.get("noise"):
            config = arms.run_of(plan, run["arm"], run["seed"], str(file))
            assert run_hash(config) == run["run"]


def test_a_comparison_is_the_mean_difference_over_seeds(bench):
    outcome = arms.compare(bench, plan="arms-rotary", worse="plain", better="diagonal")
    own = arms.stored()["arms-rotary"]
    gaps = [own["plain"][seed] - own["diagonal"][seed] for seed in own["plain"]]
    assert outcome.result.n == len(gaps)
    assert outcome.result.value == pytest.approx(math.fsum(gaps) / len(gaps))
    assert outcome.positive.low > 0.1  # averaging is known to lose


def test_turned_round_a_comparison_has_the_other_sign(bench):
    one, other = (
        arms.compare(bench, plan="arms-narrow", worse=a, better=b).result.value
        for a, b in (("plain", "released-positive"), ("released-positive", "plain"))
    )
    assert one == pytest.approx(-other)


def test_at_full_scale_a_text_is_asked_for(tmp_path):
    full = Bench(Settings(scale=Scale.FULL), tmp_path)
    outcome = arms.compare(full, plan="arms-narrow", worse="plain", better="released-positive")
    assert "give a file of text" in outcome.obstacle


def test_at_full_scale_images_are_those_of_mnist(tmp_path):
    full = Bench(Settings(scale=Scale.FULL, data=str(tmp_path)), tmp_path)
    outcome = arms.compare(full, plan="arms-mnist", worse="plain", better="released-positive")
    assert arms.MNIST in outcome.obstacle


def test_claims_of_the_paper_are_judged_on_what_was_rebuilt_from_its_code():
    own = {claim.key: claim for claim in CLAIMS}
    assert all("released experiments" in own[key].source for key in ("6a", "6b", "7a", "7b", "7c"))
    assert not own["7e"].core
