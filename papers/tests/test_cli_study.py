"""`orbitlens study` as a user meets it: lists, runs, files, refusals."""

import json
import subprocess
import sys

import pytest

from orbitlens.draw.figure import Curve, Figure, Panel
from orbitlens_papers import registry
from orbitlens_papers.bench import Scale, Settings
from orbitlens_papers.claim import Claim, Kind, Outcome, Protocol, Side
from orbitlens_papers.estimate import largest
from orbitlens_papers.result import result_from_json
from orbitlens_papers.study import Parts, Study
from small_llama import refused
from small_llama import run as run_command

NAMES = ("token-dynamics", "breaking-symmetry")


def run(*arguments):
    outcome = run_command(*arguments)
    assert outcome.code == 0, outcome.err
    return outcome.out


def one(bench):
    return Outcome(
        result=largest([0.5], of="numbers"),
        control=largest([2.0], of="numbers"),
        data={"y": [1.0, 2.0]},
    )


def stopped(bench):
    raise KeyboardInterrupt


def claim(key, **changes):
    given = {
        "key": key,
        "text": "a <b>bold</b> [red]claim[/red]",
        "source": "arXiv 0000.00000, nowhere",
        "protocol": Protocol.AS_STATED,
        "kind": Kind.THEORY,
        "measured": "a number",
        "side": Side.BELOW,
        "threshold": 1.0,
        "why": "because",
        "control": "the opposite",
    }
    return Claim(**(given | changes))


def drawn(result):
    panel = Panel(layers=[Curve(x=[0.0, 1.0], y=result.data("1")["y"])])
    return (Figure(name="tiny", title="Tiny", caption="Words.", panels=[panel]),)


@pytest.fixture
def tiny(monkeypatch):
    """A study that takes no time, in place of the real ones."""

    def make(data_files=None, minutes=10, **measures):
        study = Study(
            name="tiny",
            title="A tiny study",
            paper="arXiv 0000.00000",
            question="Is it small?",
            gap="everything",
            read="nothing",
            claims=tuple(claim(key) for key in measures),
            parts=lambda: Parts(measures=measures, figures=drawn),
            data_files=data_files or {},
            minutes=minutes,
        )
        monkeypatch.setattr(registry, "STUDIES", {"tiny": study})

    make(**{"1": one})
    return make


def test_list_and_show_name_every_study_and_claim():
    output = run("study", "list")
    assert all(name in output for name in NAMES)
    shown = run("study", "show", "2402.05969")
    assert "a causal mask and two layers" in shown
    assert max(len(line) for line in (output + shown).splitlines()) <= 80


def test_a_run_shows_numbers_writes_files_and_is_reused(tiny, tmp_path):
    out, file = tmp_path / "out", tmp_path / "result.json"
    first = run("study", "run", "tiny", "--scale", "smoke", "--out", out, "--json", file)
    assert "holds" in first
    assert "0.5, wanted below 1" in first
    assert "failed, as it must" in first
    assert "[red]claim[/red]" in first  # words of a claim are no markup
    assert "reproduced" in first
    assert {"tiny.html", "tiny.png", "tiny-smoke.json"} <= {f.name for f in out.iterdir()}
    found = result_from_json(json.loads(file.read_text()))
    assert found.verdicts[Kind.THEORY] == "reproduced"
    assert "1 of 1 claims were measured before" in run(
        "study", "run", "all", "--scale", "smoke", "--out", out
    )


def test_a_long_study_says_so_before_it_starts_and_in_the_list(tiny, tmp_path):
    note, words = "tiny: up to 30 minutes on two cores", "Up to 30 minutes."
    for minutes, scale, said in (
        (30, "default", True),
        (10, "default", False),
        (30, "smoke", False),
    ):
        tiny(minutes=minutes, **{"1": one})
        outcome = run_command("study", "run", "tiny", "--scale", scale, "--out", tmp_path)
        assert (note in outcome.err) == said
        assert (words in " ".join(run("study", "list").split())) == (minutes == 30)


def test_json_on_stdout_is_nothing_but_json(tiny, tmp_path):
    text = run("study", "run", "tiny", "--out", tmp_path, "--json", "-", "--no-figures")
    assert json.loads(text)["study"] == "tiny"
    assert not list(tmp_path.glob("*.png"))


def test_one_claim_alone_gives_no_verdict_on_the_paper_and_no_figures(tiny, tmp_path):
    tiny(**{"1": one, "2": stopped})
    output = run("study", "run", "tiny", "--claim", "1", "--out", tmp_path)
    assert "holds" in output
    assert "verdict on the paper" not in output
    assert {file.name for file in tmp_path.glob("tiny-default*")} >= {"tiny-default-part.json"}
    assert not (tmp_path / "tiny-default.json").exists()
    assert not list(tmp_path.glob("*.png"))


def test_a_control_that_does_not_fail_is_loud(tiny, tmp_path):
    tiny(
        **{
            "1": lambda bench: Outcome(
                result=largest([0.5], of="numbers"),
                control=largest([0.5], of="numbers"),
                data={"y": [1.0, 2.0]},
            )
        }
    )
    output = run("study", "run", "tiny", "--out", tmp_path)
    assert "DID NOT FAIL" in output
    assert "undecided" in output


def test_an_interrupted_run_says_where_it_stands_and_resumes(tiny, tmp_path):
    tiny(**{"1": one, "2": stopped})
    outcome = run_command("study", "run", "tiny", "--out", tmp_path)
    assert outcome.code == 130
    assert "the same command resumes" in outcome.err
    tiny(**{"1": one, "2": one})
    assert "1 of 2 claims were measured before" in run("study", "run", "tiny", "--out", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "token-dynamic"), "Did you mean 'token-dynamics'"),
        (("run", "braking-symmetry"), "Did you mean 'breaking-symmetry'"),
        (("run", "all", "--scale", "huge"), "smoke, default, full"),
        (("run", "all", "--seeds", "-3"), "expected 1 to 1000"),
        (("run", "all", "--text", "no-such-file"), "there is no such file"),
        (("run", "all", "--data", "no-such-folder"), "there is no such folder"),
    ],
)
def test_bad_input_is_refused(arguments, message, tmp_path):
    given = arguments if arguments[0] == "show" else (*arguments, "--out", tmp_path)
    refused("study", *given, says=[message])


def test_a_result_says_which_data_was_used_and_is_measured_anew_with_other_data(tiny, tmp_path):
    folder, out = tmp_path / "data", tmp_path / "out"
    folder.mkdir()
    tiny(data_files={"real.zip": "numbers made up"}, **{"1": one})
    assert "without it numbers made up" in run("study", "show", "tiny")
    without = run("study", "run", "tiny", "--out", out, "--data", folder)
    assert "real.zip: not given; in its place numbers made up" in without
    (folder / "real.zip").write_text("data")
    used = run("study", "run", "tiny", "--out", out, "--data", folder)
    assert "real.zip: used" in used
    assert "measured before" not in used
    again = run("study", "run", "tiny", "--out", out, "--data", folder)
    assert "1 of 1 claims were measured before" in again
    found = result_from_json(json.loads((out / "tiny-default.json").read_text()))
    assert found.sources == ("real.zip: used",)


def test_a_folder_that_cannot_be_written_is_refused(tiny, tmp_path):
    place = tmp_path / "file"
    place.write_text("in the way")
    refused(
        "study",
        "run",
        "tiny",
        "--out",
        place / "deep",
        says=["cannot be written", "Choose another"],
    )


def test_settings_know_their_seeds():
    assert Settings(scale=Scale.SMOKE).n_seeds >= 2
    assert Settings(seeds=7).n_seeds == 7


def test_without_the_entry_point_there_is_no_such_command(tmp_path):
    code = (
        "import importlib.metadata as m; m.entry_points = lambda **k: (); "
        "from orbitlens.cli.app import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "study", "list"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "No such command" in done.stderr


# --- verify ----------------------------------------------------------------------------------


def kept(tmp_path):
    """Store the result of the tiny study where `verify` looks for it."""
    run("study", "run", "tiny", "--out", tmp_path / "out", "--no-figures")
    file = tmp_path / "results" / "tiny.json"
    file.parent.mkdir()
    file.write_text((tmp_path / "out" / "tiny-default.json").read_text())
    return file


def verified(tmp_path, *words):
    folders = ("--results", tmp_path / "results", "--out", tmp_path / "out")
    return run_command("study", "verify", *words, *folders)


def test_a_stored_number_that_is_measured_again_is_the_same(tiny, tmp_path):
    kept(tmp_path)
    found = verified(tmp_path)
    assert found.code == 0
    assert "the same number" in found.out
    assert "drawn with --draw" in found.out


def test_a_stored_number_that_was_changed_is_found(tiny, tmp_path):
    file = kept(tmp_path)
    data = json.loads(file.read_text())
    data["findings"][0]["result"] |= {"value": 3.0, "low": 3.0, "high": 3.0}
    file.write_text(json.dumps(data))
    found = verified(tmp_path, "tiny")
    assert found.code == 1
    assert "ANOTHER VERDICT" in found.out


def test_a_claim_that_took_too_long_is_not_drawn(tiny, tmp_path):
    file = kept(tmp_path)
    data = json.loads(file.read_text())
    data["findings"][0]["seconds"] = 1000.0
    file.write_text(json.dumps(data))
    assert "left out" in verified(tmp_path).out
    assert "the same number" in verified(tmp_path, "--claim", "1").out
