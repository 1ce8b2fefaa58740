"""The experiment of docs/watch.md: its statistics, definitions and runs, and what is planted."""

import importlib
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from orbitlens.watching.alarm import evidence
from orbitlens.watching.record import plain_data
from orbitlens.watching.thresholds import DEFAULT
from orbitlens.watching.watch_reading import TokenReading, WatchReading

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
DOCS = BENCHMARKS.parent / "docs"


@pytest.fixture(scope="module", autouse=True)
def _importable():
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


def part(name):
    return importlib.import_module(name)


@pytest.fixture
def judging():
    return part("_watch_judging")


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- statistics ------------------------------------------------------------------------------


def test_the_auroc_of_two_shifted_gaussians_is_the_closed_form(judging):
    for shift in (0.0, 0.7, 2.0):
        failed, well = (drawn(3000, seed=1) + shift).tolist(), drawn(3000, seed=2).tolist()
        expected = 0.5 * (1 + math.erf(shift / 2))  # the difference has deviation sqrt(2)
        assert abs(judging.auroc(failed, well) - expected) < 0.02


def test_ties_count_half_and_an_infinite_value_beats_all(judging):
    assert judging.auroc([1.0], [1.0]) == 0.5
    assert judging.auroc([math.inf, 2.0], [1.0, 3.0]) == 0.75
    assert math.isnan(judging.auroc([], [1.0]))


def test_a_threshold_is_exceeded_by_new_settings_as_seldom_as_was_asked(judging):
    """Over many draws of 71 settings a new one exceeds it in a share just below the one asked."""
    chance, passed, n_draws = torch.Generator().manual_seed(0), 0.0, 4000
    for _ in range(n_draws):
        values = torch.rand(71, generator=chance).sort(descending=True).values.tolist()
        passed += 1 - judging.threshold_at(values, 0.05)  # the chance of a uniform new value
    assert 0.035 < passed / n_draws < 0.05  # 3 / 72
    assert judging.threshold_at([3.0, 2.0, 1.0], 0.05) == 3.0  # of few none may pass


def test_runs_of_one_setting_count_once(judging):
    assert judging.largest_by_setting([(0, 1.0), (1, 5.0), (0, 2.0)]) == [5.0, 2.0]


def seen(judging, warned, onset, *, setting=0, value=1.0):
    kind = "well" if onset is None else "broke"
    found = judging.Outcome(kind=kind, onset=onset)
    course = judging.Course(steps=[5], values=[value])
    return judging.Judged(setting=setting, rate=0.1, outcome=found, course=course, warned=warned)


def test_warning_times_count_silence_as_never(judging):
    runs = [seen(judging, 10, 40), seen(judging, 50, 40), seen(judging, None, 40)]
    assert [run.ahead for run in runs] == [30, -10, -math.inf]
    assert judging.median_ahead(runs) == -10
    assert judging.share_in_time(runs) == pytest.approx(1 / 3)
    assert judging.median_ahead([*runs, seen(judging, None, 40)]) == -math.inf


def test_intervals_draw_settings_and_not_runs(judging):
    # Two settings that disagree, a hundred runs each: runs alone would give a narrow interval.
    runs = [seen(judging, 10, 40, setting=0)] * 100 + [seen(judging, None, 40, setting=1)] * 100
    assert judging.interval(runs, judging.share_in_time) == (0.0, 1.0)


def test_the_interval_of_an_auroc_is_that_of_comparing_all_pairs_in_every_draw(judging):
    runs = [
        seen(judging, None, 40 if n % 3 else None, setting=n // 2, value=value)
        for n, value in enumerate((drawn(40) + 0.3 * (torch.arange(40) % 3)).tolist())
    ]
    found = judging.auroc_interval(runs)
    assert found == pytest.approx(judging.interval(runs, judging.auroc_in_time))
    assert found[0] < judging.auroc_in_time(runs) < found[1]


def test_an_auroc_at_one_rate_is_blind_to_what_the_rate_says(judging):
    def run(rate, onset, value):
        return replace(seen(judging, None, onset, value=value), rate=rate)

    by_rate = [run(0.1, 40, 0.1), run(0.1, None, 0.1), run(0.01, 40, 0.01), run(0.01, None, 0.01)]
    assert judging.auroc_at_one_rate(by_rate) == 0.5
    own = [run(0.1, 40, 2.0), run(0.1, None, 1.0), run(0.01, 40, 4.0), run(0.01, None, 3.0)]
    assert judging.auroc_at_one_rate(own) == 1.0
    assert judging.auroc_in_time(own) == 0.75


# --- failure and its onset -------------------------------------------------------------------


def test_a_run_that_learned_and_lost_it_broke_where_it_left_its_best(judging):
    losses = [4.0 - 0.05 * t for t in range(30)] + [2.5] * 40 + [3.5] * 40
    found = judging.outcome(losses, [3.3] * len(losses))
    assert found.kind == "broke"
    # The mean of ten losses is above 2.6 as soon as one or two of them are 3.5.
    assert found.onset in {71, 72}


def test_a_run_that_never_learned_more_stalled_where_it_got_there(judging):
    losses = [4.3 - 0.05 * t for t in range(20)] + [3.3] * 80
    found = judging.outcome(losses, [3.3] * len(losses))
    assert (found.kind, found.onset) == ("stalled", 24)  # mean of ten: 3.405 at 23, 3.375 at 24
    late = judging.outcome(losses, [3.3] * len(losses), overdue=50)
    assert (late.kind, late.onset) == ("stalled", 50)  # but all pass there: it is told by its delay


def test_a_run_is_overdue_when_nearly_all_sound_ones_have_left(judging):
    assert judging.overdue_at([*range(1, 101), None]) == 95
    falling = [3.4 - 0.01 * t for t in range(60)]
    left = judging.left_at(falling, [3.3] * 60)
    assert judging.smoothed(falling)[left] < 3.25 <= judging.smoothed(falling)[left - 1]


def test_an_auroc_in_time_compares_both_runs_up_to_one_step(judging):
    slow = judging.Course(steps=[0, 50, 90], values=[0.0, 1.0, 9.0])  # large only after the onset
    early = judging.Course(steps=[0, 50, 90], values=[0.0, 2.0, 2.0])
    failed = replace(seen(judging, None, 60), course=early)
    well = replace(seen(judging, None, None), course=slow)
    assert judging.auroc_in_time([failed, well]) == 1.0
    assert judging.auroc_strict([failed, well]) == 0.0


def test_a_run_below_the_unigram_line_went_well_and_one_at_it_did_not(judging):
    for end, kind in ((3.2, "well"), (3.3, "stalled")):
        assert judging.outcome([end] * 60, [3.3] * 60).kind == kind


def test_a_loss_that_is_not_finite_is_a_failure_however_low_it_was(judging):
    found = judging.outcome([2.0] * 30 + [None], [3.3] * 31)
    assert (found.kind, found.onset) == ("broke", 30)


def test_hard_batches_are_no_failure(judging):
    noise = drawn(100).tolist()
    losses, unigram = [2.5 + n for n in noise], [3.3 + n for n in noise]
    assert judging.outcome(losses, unigram).kind == "well"


# --- groups ----------------------------------------------------------------------------------


def test_groups_share_no_seed_and_no_setting_and_all_settings_differ():
    runs = part("_watch_runs")
    learned, judged = (group.settings() for group in (runs.LEARNED, runs.JUDGED))
    for found in (learned, judged):
        assert len({json.dumps(chosen, sort_keys=True) for chosen in found.values()}) == len(found)
    assert not set(runs.LEARNED.seeds) & set(runs.JUDGED.seeds)
    assert not set(learned) & set(judged)
    for name in ("lr", "width", "init", "warmup"):
        assert not set(runs.LEARNED.choices[name]) & set(runs.JUDGED.choices[name])


READINGS = (
    *("freezing", "score_bound", "score_top", "sharpness", "sharpness_mean", "cosine"),
    *("cosine_mean", "cosine_last", "log_spread", "effective_rank", "stable_rank_qk"),
    *("stable_rank_ov", "alignment", "attention_update", "block_update", "massive"),
    *("max_logit", "spectral_norm", "sign_alignment", "sign_alignment_max"),
)


def made_reading(step, freezing, cosine, rank):
    """Return a reading of two layers, the second as given, as a run's file has it."""
    tokens = TokenReading(
        n_tokens=8,
        cosine=(0.1, 0.1, cosine),
        log_spread=(0.0,) * 3,
        effective_rank=(5.0, 5.0, rank),
        direction_rank=(5.0, 5.0, rank),
        massive=(1.0, 1.0),
        massive_position=(0, 0),
        attention_update=(1.0, 1.0),
        block_update=(1.0, 1.0),
        sharpness=((0.1,), (0.1,)),
        largest_score=((1.0,), (1.0,)),
        written=((0.1,), (0.1,)),
    )
    heads, growth = {"freezing": ((0.5,), (freezing,))}, {"freezing": ((0.0,), (0.0,))}
    return plain_data(
        WatchReading(
            step=step, loss=None, seconds=0.0, n_tokens=8, heads=heads, growth=growth, tokens=tokens
        )
    )


def made_run(number, *, fails, seed=0):
    """Return a run whose rank falls long before it fails; its other readings are noise."""
    steps, at = 96, list(range(0, 97, 8))
    chance = drawn(len(READINGS), len(at), seed=1000 * number + seed).abs() + 0.1
    readings = dict(zip(READINGS, chance.tolist(), strict=True))
    ranks = [6 - 0.4 * k if fails else 5 + 0.1 * v for k, v in enumerate(chance[0].tolist())]
    tail = [3.6] * 26 if fails else [2.5] * 26
    losses = [max(2.5, 4 - 0.05 * t) for t in range(70)] + tail
    return {
        **{"setting": number, "seed": seed, "chosen": {"lr": 0.1}},
        **{"losses": losses, "unigram": [3.3] * steps, "at": at, "readings": readings},
        "gradients": (drawn(steps, seed=number).abs() + 0.5).tolist(),
        "watched": [
            made_reading(step, 1.0 + noise, 0.2 + 0.01 * noise, rank)
            for step, noise, rank in zip(at, chance[1].tolist(), ranks, strict=True)
        ],
    }


@pytest.fixture
def few_draws(judging, monkeypatch):
    """Intervals of these tests need no thousand draws."""
    monkeypatch.setattr(judging, "DRAWS", 10)


def made_runs(first):
    return [made_run(n, fails=bool(n % 2)) for n in range(first, first + 30)]


def test_a_planted_signal_is_found_ahead_of_time_and_noise_is_not(few_draws):
    learning = part("_watch_learning")
    frozen = learning.learn(made_runs(0))
    whole = learning.judge(made_runs(30), frozen)
    json.dumps(whole, allow_nan=False)
    found = whole["detectors"]
    noise = found["spectral_norm"]
    for name, least in (("collapse", 1.0), (learning.ANY, 0.85)):  # here noise of others joins
        assert found[name]["auroc"]["value"] >= least and found[name]["ahead"]["value"] > 30
    assert noise["auroc"]["value"] < 0.8 and noise["ahead"]["value"] is None
    assert found["loss rise"]["in_time"]["value"] == 0.0  # the loss shows nothing before
    assert found["loss rise"]["auroc_ever"]["value"] == 1.0
    counts = whole["alarms"]["collapse"]
    assert (counts["in_time"], counts["failed"], counts["sound"]) == (15, 15, 15)
    assert counts["threshold"] == learning.limits_of(frozen)["collapse"]


def test_courses_of_alarms_pass_their_thresholds_where_the_library_raises_alarms():
    learning, alarms = part("_watch_learning"), part("_watch_alarms")
    runs = made_runs(0)
    limits = {"freezing": 2.5, "collapse": 4.0, "gathering": 0.5}
    raised = [alarms.first_alarms(run, alarms.with_learned(limits)) for run in runs]
    assert {kind.value for steps in raised for kind in steps} == {"freezing", "collapse"}
    for run, steps in zip(runs, raised, strict=True):
        courses = alarms.alarm_courses(run)
        for kind in alarms.LEARNED:
            limit = limits[kind.value] * (-1 if kind.value == "collapse" else 1)
            assert courses[kind.value].first_above(limit - 1e-9) == steps.get(kind)
    assert learning.KINDS == tuple(limits)[1:] + tuple(limits)[:1]


def test_the_alarms_of_the_library_have_the_thresholds_that_were_frozen_and_judged():
    frozen = json.loads((DOCS / "watch-frozen.json").read_text(encoding="utf-8"))
    for name, limit in part("_watch_learning").limits_of(frozen).items():
        assert getattr(DEFAULT, name) == limit
    judged = json.loads((DOCS / "watch-detectors.json").read_text(encoding="utf-8"))["alarms"]
    for kind, known in evidence().items():
        row = judged[kind.value]
        assert known.threshold == row["threshold"]
        assert (known.in_time, known.failed) == (row["in_time"], row["failed"])
        assert (known.false, known.sound) == (row["false"], row["sound"])


def test_no_detector_sees_what_comes_later():
    found = part("_watch_courses")
    run = made_run(1, fails=True)
    cut = run | {name: run[name][:60] for name in ("losses", "unigram", "gradients")}
    cut |= {"at": run["at"][:8], "readings": {k: v[:8] for k, v in run["readings"].items()}}
    whole, part_of = found.courses(run), found.courses(cut)
    for name, course in part_of.items():
        n = len(course.steps)
        assert list(course.values) == list(whole[name].values[:n]), name
        assert list(course.steps) == list(whole[name].steps[:n]), name


# --- runs ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small():
    """Return the lab's sound setting, made small."""
    runs, acts = part("_watch_runs"), part("_watch_acts")
    chosen = acts.SOUND | {"layers": 2}
    return replace(runs.run_config(chosen, 0, None), steps=24, batch=2)


def test_slow_readings_are_those_of_attention_formed_in_full(small):
    slow, runs = part("_slow_readings"), part("_watch_runs")
    for qk_norm in (False, True):
        config = replace(small, qk_norm=qk_norm, init=0.3)
        task = runs.task_of(config)
        model = runs.build_model(config, task).eval()
        ids = task.batch("valid", 0, 2, 0).inputs
        attention, inputs = model.model.layers[0].self_attn, slow._inputs(model, ids)
        with torch.no_grad():
            patterns = model(ids, output_attentions=True).attentions
            scores = slow.scores_of(attention, inputs[attention.qkv_proj])
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        found = scores.masked_fill(hidden, -math.inf).softmax(-1)
        torch.testing.assert_close(found, patterns[0], rtol=1e-4, atol=1e-5)
        weights = [m.weight for name in slow.MAPS for m in slow._maps(model, name)]
        largest = max(torch.linalg.matrix_norm(w, 2).item() for w in weights)
        assert slow.slow_readings(model, ids)["spectral_norm"] == pytest.approx(largest, rel=1e-4)


def test_one_sided_tokens_are_told_from_balanced_ones_for_wide_and_tall_maps():
    slow = part("_slow_readings")
    for shape in ((1, 5, 9), (1, 9, 5)):
        weight = drawn(*shape)
        right = torch.linalg.svd(weight[0]).Vh[0]
        signs = torch.tensor([1.0, 1.0, 1.0, -1.0], dtype=torch.float64)
        for tokens, side in ((right.expand(4, -1), 1.0), (signs[:, None] * right, 0.5)):
            norms, sides = slow.one_sided(weight, tokens[None])
            assert sides.item() == side
            assert norms.item() == pytest.approx(torch.linalg.matrix_norm(weight[0], 2).item())


def test_a_run_that_goes_on_unchanged_is_the_run_itself(small):
    runs = part("_watch_runs")
    whole, _ = runs.train_logged(small)
    _, states = runs.train_logged(small, keep_states=True, until=20)
    assert [state.step for state in states] == [0, 8, 16]
    rest = runs.train_on(small, states[-1])
    assert rest.losses == whole.losses[16:]
    other = runs.train_on(replace(small, qk_norm=True), states[-1])
    assert other.losses[0] != whole.losses[16] and len(other.losses) == 8


def test_a_run_that_explodes_is_logged_to_its_last_loss(small):
    runs = part("_watch_runs")

    def spoil(model, step):
        if step == 10:
            model.model.layers[0].mlp.up_proj.weight.fill_(math.nan)

    logged, _ = runs.train_logged(small, plant=spoil)
    line = logged.to_json()
    assert len(line["losses"]) == 11 and line["losses"][-1] is None
    json.dumps(line, allow_nan=False)
    assert part("_watch_judging").outcome(line["losses"], line["unigram"]).kind == "broke"


def test_planted_failures_move_their_own_reading_and_the_control_neither(small, monkeypatch):
    acts = part("_watch_acts")
    monkeypatch.setattr(acts, "FROM", 8)
    monkeypatch.setattr(acts, "GROWTH", 1.5)
    monkeypatch.setattr(acts, "PULL", 0.4)
    last, still = {}, replace(small, lr=1e-6)  # sound runs gather directions too, at first
    for name, plant in acts.PLANTS.items():
        readings = part("_watch_runs").train_logged(still, plant=plant)[0].readings
        last[name] = {key: readings[key][-1] for key in ("sharpness_mean", "cosine_last")}
    frozen, gathered = last["attention freezes"], last["tokens are averaged"]
    assert last["directions collapse"]["cosine_last"] > 0.98
    assert frozen["sharpness_mean"] > 0.6 > 3 * last["nothing"]["sharpness_mean"]
    assert gathered["sharpness_mean"] < 1.5 * last["nothing"]["sharpness_mean"]
    assert gathered["cosine_last"] > 0.8
    assert max(frozen["cosine_last"], last["nothing"]["cosine_last"]) < 0.5
