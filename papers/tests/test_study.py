"""Running a study: what is done is kept, what changed is measured anew, nothing is half written."""

import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from orbitlens.errors import InputError, MissingPackageError, TrainingError
from orbitlens.lab import ownership
from orbitlens_papers import cached
from orbitlens_papers.bench import Bench, Scale, Settings, WorkerError, scale_of
from orbitlens_papers.claim import Claim, Kind, Outcome, PaperVerdict, Protocol, Side
from orbitlens_papers.estimate import largest
from orbitlens_papers.registry import STUDIES, study_of
from orbitlens_papers.result import merged, result_from_json
from orbitlens_papers.running import run_study
from orbitlens_papers.study import Parts, Study
from orbitlens_papers.verifying import Again, verify_claim

SMOKE = Settings(scale=Scale.SMOKE)
CALLS = []


def claim(key):
    return Claim(
        key=key,
        text="zero is below one",
        source="no paper, anywhere",
        protocol=Protocol.AS_STATED,
        kind=Kind.THEORY,
        measured="zero",
        side=Side.BELOW,
        threshold=1.0,
        why="one is above zero",
        control="two",
    )


def measure(bench):
    CALLS.append(bench.scale)
    draw = float(bench.generator("draw").initial_seed() % 7) / 10
    return Outcome(result=largest([draw], of="numbers"), control=largest([2.0], of="numbers"))


def broken(bench):
    raise KeyboardInterrupt


def study(**changes):
    given = {
        "name": "tiny",
        "title": "A tiny study",
        "paper": "no paper",
        "question": "Is zero small?",
        "gap": "everything",
        "read": "nothing",
        "claims": (claim("1"), claim("2")),
    } | changes
    measures = given.pop("measures", {"1": measure, "2": measure})
    return Study(parts=lambda: Parts(measures=measures, figures=lambda result: ()), **given)


def test_a_study_says_where_its_paper_says_so_and_at_which_scale_it_was_tested():
    stray = replace(claim("1"), source="somewhere else")
    with pytest.raises(InputError, match="expected where the paper says so"):
        study(claims=(stray, claim("2")))
    small = replace(claim("1"), protocol=Protocol.SCALED)
    with pytest.raises(InputError, match="say at which scale"):
        study(claims=(small, claim("2")))
    assert study(claims=(small, claim("2")), at="a tenth of it").at


@pytest.fixture(autouse=True)
def _count():
    CALLS.clear()


def test_a_second_run_reuses_what_is_done(tmp_path):
    first = run_study(study(), SMOKE, tmp_path)
    assert len(CALLS) == 2
    assert first.verdicts[Kind.THEORY] is PaperVerdict.REPRODUCED
    second = run_study(study(), SMOKE, tmp_path)
    assert len(CALLS) == 2
    assert second.reused == 2
    assert second.findings == first.findings


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_study(study(measures={"1": measure, "2": broken}), SMOKE, tmp_path)
    assert len(CALLS) == 1
    found = run_study(study(), SMOKE, tmp_path)
    assert len(CALLS) == 2  # the first claim was kept
    assert found.reused == 1


def test_other_settings_are_measured_anew(tmp_path):
    run_study(study(), SMOKE, tmp_path)
    for settings in (Settings(scale=Scale.DEFAULT), replace(SMOKE, seeds=7)):
        assert run_study(study(), settings, tmp_path).reused == 0
    assert run_study(study(), SMOKE, tmp_path, fresh=True).reused == 0


def test_models_matter_to_the_claims_that_look_at_them(tmp_path):
    looks = study(on_models=frozenset({"2"}))
    run_study(looks, SMOKE, tmp_path)
    found = run_study(looks, replace(SMOKE, models=("a-model",)), tmp_path)
    assert found.reused == 1


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"result": 3}'])
def test_a_damaged_outcome_is_measured_again(tmp_path, damage):
    run_study(study(), SMOKE, tmp_path)
    next(tmp_path.glob("tiny-smoke-1-*.json")).write_text(damage)
    assert run_study(study(), SMOKE, tmp_path).reused == 1
    assert len(CALLS) == 3


def test_some_claims_alone_are_a_part_that_judges_no_paper(tmp_path):
    part = run_study(study(), replace(SMOKE, claims=("2",)), tmp_path)
    assert [one.claim.key for one in part.findings] == ["2"]
    assert len(CALLS) == 1
    assert part.part
    assert part.verdicts == {}
    assert result_from_json(json.loads(json.dumps(part.to_json()))) == part
    assert run_study(study(), SMOKE, tmp_path).reused == 1  # the whole run goes on from the part


def test_a_claim_that_is_not_there_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(InputError, match=r"no claim 9\. Expected some of: 1 2"):
        run_study(study(), replace(SMOKE, claims=("9",)), tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_a_part_put_into_a_whole_leaves_the_rest_with_the_run_it_is_from(tmp_path):
    whole = run_study(study(), SMOKE, tmp_path)
    later = replace(SMOKE, claims=("2",), base_seed=50, seeds=5)
    both = merged(whole, run_study(study(), later, tmp_path), ["1", "2"])
    old, new = both.findings
    assert (old.origin.seeds, old.origin.base_seed) == (whole.seeds, whole.base_seed)
    assert new.origin is None
    assert (both.seeds, both.base_seed, both.part) == (5, 50, False)
    assert both.verdicts[Kind.THEORY] is PaperVerdict.REPRODUCED
    assert result_from_json(json.loads(json.dumps(both.to_json()))) == both
    again = merged(both, run_study(study(), replace(later, base_seed=90), tmp_path), ["1", "2"])
    assert again.findings[0].origin == old.origin  # not that of the result in between


def test_parts_of_other_scales_or_with_gaps_are_not_put_together(tmp_path):
    whole = run_study(study(), SMOKE, tmp_path)
    default = replace(SMOKE, scale=Scale.DEFAULT, claims=("2",))
    with pytest.raises(InputError, match="cannot be put together: scale"):
        merged(whole, run_study(study(), default, tmp_path), ["1", "2"])
    part = run_study(study(), replace(SMOKE, claims=("2",)), tmp_path)
    with pytest.raises(InputError, match="no result has claims 3"):
        merged(whole, part, ["1", "2", "3"])


def test_a_claim_is_verified_with_the_seeds_of_the_run_it_is_from(tmp_path):
    whole = run_study(study(), SMOKE, tmp_path)
    later = replace(SMOKE, claims=("2",), base_seed=50)
    both = merged(whole, run_study(study(), later, tmp_path), ["1", "2"])
    for key in ("1", "2"):
        assert verify_claim(study(), both, key, Again(), tmp_path).same_number


def test_nothing_half_written_is_left(tmp_path):
    run_study(study(), SMOKE, tmp_path)
    assert {file.name for file in tmp_path.glob(".*")} == {".lock-tiny"}


def test_a_text_counts_by_its_content_wherever_it_lies(tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("one text")
    second.write_text("one text")
    run_study(study(), replace(SMOKE, text=str(first)), tmp_path / "out")
    assert run_study(study(), replace(SMOKE, text=str(second)), tmp_path / "out").reused == 2
    times = first.stat()
    first.write_text("two text")  # as long as before, and of the same time
    os.utime(first, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert run_study(study(), replace(SMOKE, text=str(first)), tmp_path / "out").reused == 0


def test_a_model_counts_by_its_content(tmp_path):
    from orbitlens.checkpoint.zoo import zoo_path

    model = tmp_path / "model"
    shutil.copytree(zoo_path("orbit-nano-none"), model)
    seen = replace(SMOKE, models=(str(model),))
    looking = study(on_models=frozenset({"1"}))
    run_study(looking, seen, tmp_path / "out")
    os.utime(model / "model.safetensors")  # touched, not changed
    assert run_study(looking, seen, tmp_path / "out").reused == 2
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"note": "changed"}))
    assert run_study(looking, seen, tmp_path / "out").reused == 1  # the claim that looks at none


@pytest.mark.parametrize("package", ["orbitlens", "orbitlens_papers"])
def test_any_change_of_code_is_measured_anew(tmp_path, monkeypatch, package):
    """Also of a module that the measure only calls."""
    homes = {}
    for name in ("orbitlens", "orbitlens_papers"):
        homes[name] = tmp_path / name
        (homes[name] / "deep").mkdir(parents=True)
        (homes[name] / "deep" / "module.py").write_text("x = 1\n")
    monkeypatch.setattr(cached, "files", homes.get)
    run_study(study(), SMOKE, tmp_path / "out")
    assert run_study(study(), SMOKE, tmp_path / "out").reused == 2
    (homes[package] / "deep" / "module.py").write_text("x = 2\n\n")
    again = run_study(study(), SMOKE, tmp_path / "out")
    assert again.reused == 0
    monkeypatch.setattr(cached, "package_versions", lambda: {"torch": "of tomorrow"})
    assert run_study(study(), SMOKE, tmp_path / "out").reused == 0


def test_training_runs_of_other_code_are_not_read(tmp_path):
    folders = []

    def noting(bench):
        folders.append(bench.folder)
        return measure(bench)

    noted = study(measures={"1": noting, "2": noting})
    result = run_study(noted, SMOKE, tmp_path)
    assert set(folders) == {tmp_path / "runs" / result.provenance.code}


def test_a_second_process_in_the_same_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ownership, "PATIENCE", 0.1)
    with ownership.locked(tmp_path / ".lock-tiny", "taken"):
        with pytest.raises(TrainingError, match="another process is running the study tiny"):
            run_study(study(), SMOKE, tmp_path)
        assert CALLS == []
        run_study(study(name="other"), SMOKE, tmp_path)  # another study may share the folder
    assert run_study(study(), SMOKE, tmp_path).reused == 0


@pytest.mark.parametrize("text", ["{}", "[]", "3", "null", '"x"', '{"findings": {}}'])
def test_what_is_no_result_of_a_study_is_refused(text):
    with pytest.raises(InputError, match="this is not the result of a study"):
        result_from_json(json.loads(text))


def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(tmp_path):
    place = tmp_path / "file"
    place.write_text("in the way")
    with pytest.raises(InputError, match="cannot be written"):
        run_study(study(), SMOKE, place)
    assert not CALLS


def test_a_result_survives_json(tmp_path):
    found = run_study(study(), SMOKE, tmp_path)
    again = result_from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert again == found
    with pytest.raises(InputError, match="not the result of a study"):
        result_from_json({"study": "tiny"})


def test_a_generator_depends_on_names_and_seeds_alone(tmp_path):
    first, second = (Bench(SMOKE, tmp_path) for _ in range(2))
    first.generator("something else")
    assert first.generator("a", 1).initial_seed() == second.generator("a", 1).initial_seed()
    assert first.generator("a", 1).initial_seed() != first.generator("a", 2).initial_seed()


def test_work_is_spread_and_comes_back_in_order(tmp_path):
    bench = Bench(Settings(scale=Scale.SMOKE), tmp_path)
    assert bench.map(abs, [-3, 2, -1]) == [3, 2, 1]


def test_an_executor_is_used_where_one_is_given(tmp_path):
    seen, steps = [], []

    def note(number):
        seen.append(threading.current_thread() is threading.main_thread())
        return -number

    with ThreadPoolExecutor(2) as pool:
        bench = Bench(SMOKE, tmp_path, executor=pool, step=steps.append)
        assert bench.map(note, [1, 2, 3]) == [-1, -2, -3]
        with pytest.raises(ZeroDivisionError):
            bench.map(lambda number: 1 / number, [1, 0])
    assert not any(seen)
    assert steps[2] == 1.0


def test_a_worker_that_dies_is_named_and_not_traced(tmp_path):
    class Broken(Executor):
        def submit(self, function, /, *arguments, **named):
            future = Future()
            future.set_exception(BrokenExecutor("gone"))
            return future

    with pytest.raises(WorkerError, match="the same command goes on"):
        Bench(SMOKE, tmp_path, executor=Broken()).map(abs, [1, 2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"measures": {"1": measure}}, "do not match"),
        ({"claims": (claim("1"), claim("1"))}, "share a key"),
        ({"claims": (replace(claim("1"), core=False),), "measures": {"1": measure}}, "no core"),
    ],
)
def test_a_study_that_does_not_fit_together_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        study(**changes).measures  # noqa: B018 - they are looked up there


@pytest.mark.parametrize("name", list(STUDIES))
def test_every_study_is_found_by_name_and_by_paper(name):
    assert study_of(name).name == name
    assert study_of(STUDIES[name].paper.removeprefix("arXiv ")).name == name


def test_every_core_claim_of_every_study_has_a_control():
    claims = [claim for study in STUDIES.values() for claim in study.claims]
    assert len(claims) > 20
    assert all(claim.control for claim in claims if claim.core)


@pytest.mark.parametrize("name", list(STUDIES))
def test_every_claim_of_every_study_has_a_measure(name):
    study = STUDIES[name]
    assert set(study.measures) == {claim.key for claim in study.claims}
    assert callable(study.figures)


def test_a_study_whose_package_is_missing_says_which(monkeypatch):
    def without():
        raise ModuleNotFoundError("No module named 'no_such_package'", name="no_such_package")

    lacking = replace(study(), parts=without, needs=("torch", "no_such_package"))
    assert lacking.missing == ("no_such_package",)
    with pytest.raises(MissingPackageError, match="pip install no_such_package"):
        lacking.measures  # noqa: B018


def test_the_list_needs_no_package_that_only_some_studies_need():
    needed = sorted({name for study in STUDIES.values() for name in study.needs})
    assert {"cvxpy", "causallearn", "tokenizers"} <= set(needed)
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in (*needed, "transformers"))
    code = (
        f"import sys; {blocked}"
        "from orbitlens_papers.registry import STUDIES; from orbitlens_papers.terminal import "
        "list_view, show_view; from rich.console import Console; "
        "[Console().print(part) for part in list_view(STUDIES.values())]; "
        "[list(show_view(study)) for study in STUDIES.values()]; "
        "assert not {'torch', 'scipy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in STUDIES)


def test_unknown_names_get_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'token-dynamics'"):
        study_of("token-dynamic")
    with pytest.raises(InputError, match="smoke, default, full"):
        scale_of("huge")
    with pytest.raises(InputError, match="seeds"):
        Settings(seeds=-1)


def test_claims_with_seeds_of_their_own_take_more_where_more_are_asked_for(tmp_path):
    bench = Bench(Settings(base_seed=5), tmp_path)
    assert bench.first_seeds(8) == range(5, 13)
    more = Bench(Settings(base_seed=5, seeds=12), tmp_path)
    assert more.first_seeds(8) == range(5, 17)
