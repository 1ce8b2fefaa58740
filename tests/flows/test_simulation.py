"""The verb `simulate`: one result for heads, layers and systems, as the command shows it."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from orbitlens.cli.app import app
from orbitlens.errors import InputError, ResultError
from orbitlens.flows.agreement import FlowAgreement, agreement_of
from orbitlens.flows.examples import example_system
from orbitlens.flows.integrate import IntegrateOptions, integrate_flow
from orbitlens.flows.outcome import Fate, fate
from orbitlens.flows.prediction import Ground, Prediction, predict
from orbitlens.flows.setup import SimulateOptions
from orbitlens.flows.simulation import Simulation, simulate
from orbitlens.flows.system import Geometry, Mask, system_of_heads, system_of_maps
from orbitlens.running.model import load
from orbitlens.theory.clouds import mean_cosine
from slow_flow import normal, random_system, seeded

EYE = torch.eye(3, dtype=torch.float64)
SHORT = SimulateOptions(n_tokens=6, until=1.0)
ZOO = "orbit-nano-rotary"


def command(*arguments):
    return CliRunner().invoke(app, ["simulate", *arguments])


def test_a_named_system_gives_what_its_parts_give():
    result = simulate("anti-aligned", SHORT)
    tokens = normal(seeded(0), 6, 3)
    system = example_system("anti-aligned")
    alone = integrate_flow(system, tokens, until=1.0)
    assert torch.equal(result.trajectory.final, alone.final)
    assert result.prediction == predict(system, tokens)
    assert result.name == "anti-aligned"


def test_heads_and_layers_of_a_model_are_simulated():
    model = load(ZOO)
    head = simulate(model.head(0, 1), SHORT)
    free = simulate(model.head(0, 1), replace(SHORT, geometry=Geometry.FREE))
    by_hand = simulate(system_of_heads([model.head(0, 1)]), SHORT)
    assert torch.equal(free.trajectory.final, by_hand.trajectory.final)
    assert head.geometry is Geometry.SPHERE
    assert head.name == "head 0.1"
    layer = simulate(model.layer(0), SHORT)
    assert layer.trajectory.unit_tokens.shape[2] == model.head(0, 0).d_model
    assert not torch.equal(layer.trajectory.final, head.trajectory.final)


@pytest.mark.parametrize("geometry", ["sphere", "free"])
def test_a_layer_has_one_speed_limit_and_nothing_proved_that_its_run_denies(geometry, tmp_path):
    file = tmp_path / "run.json"
    given = ("--head", "orbit-nano-none:0", "--tokens", "12", "--geometry", geometry)
    done = command(*given, "--json", str(file))
    assert done.exit_code == 0, done.output
    headings = [line.split(maxsplit=1) for line in done.output.splitlines() if line[:1] == " "]
    names = [words[1].split(":")[0] for words in headings if words[0] == "held"]
    assert len(names) == len(set(names))  # every theorem once, of all heads together
    assert names.count("T5") == (geometry == "free")
    said = {words[0]: words[1] for words in headings if len(words) == 2}
    if "proved" in said:
        assert said["agreement"].strip() in {"yes", "too early to tell"}
    else:
        assert said["agreement"].strip() in {"nothing was predicted", "too early to tell"}
    run = Simulation.load(file)
    held = {c.name: c.numbers for c in run.prediction.certificates if c.holds}
    lengths, times = run.trajectory.tokens.norm(dim=-1), run.trajectory.times
    if "T5" in held:
        limit = lengths[0].max() * torch.exp(held["T5"]["rate"] * times)
        assert held["T5"]["drift"] == 0.0
        assert bool((lengths.amax(dim=1) <= limit * (1 + 1e-5)).all())
        slower = lengths[0].max() * torch.exp(0.1 * held["T5"]["rate"] * times)
        assert not bool((lengths.amax(dim=1) <= slower).all())  # the bound can be broken
    if "T4" in held:
        rate, start = held["T4"]["rate"], held["T4"]["start"]
        first = lengths[:, 0] + held["T4"]["less"]
        assert bool((first >= start * torch.exp(rate * times) * (1 - 1e-5)).all())


def test_what_has_no_flow_is_refused_with_the_way_to_it():
    with pytest.raises(InputError, match=r"model\.head"):
        simulate(load(ZOO), SHORT)
    with pytest.raises(InputError, match="no system is called"):
        simulate("algined", SHORT)


@pytest.mark.parametrize("given", [["--mask", "full"], ["--dim", "4"], ["--system", "random"]])
def test_the_command_refuses_with_a_head_what_the_head_has_itself(given):
    done = command("--head", f"{ZOO}:0.1", *given)
    assert done.exit_code != 0
    assert given[0] in str(done.exception or done.output)


def test_a_mask_that_is_not_the_systems_own_is_refused():
    head = load(ZOO).head(0, 1)
    with pytest.raises(InputError, match="mask full was asked for"):
        simulate(head, replace(SHORT, mask=Mask.FULL))
    same = simulate(head, replace(SHORT, mask=Mask.CAUSAL))
    assert torch.equal(same.trajectory.final, simulate(head, SHORT).trajectory.final)


def test_the_command_gives_the_verbs_result_to_the_last_digit(tmp_path):
    file = tmp_path / "result.json"
    arguments = ["--tokens", "6", "--until", "1", "--json", str(file)]
    assert command("--system", "random", *arguments).exit_code == 0
    kept, made = Simulation.load(file), simulate("random", SHORT)
    assert torch.equal(kept.trajectory.unit_tokens, made.trajectory.unit_tokens)
    assert json.loads(file.read_text()) == json.loads(json.dumps(made.to_json()))
    assert command("--head", f"{ZOO}:0.1", *arguments).exit_code == 0
    made = simulate(load(ZOO).head(0, 1), SHORT, name=f"{ZOO}:0.1")
    assert torch.equal(Simulation.load(file).trajectory.unit_tokens, made.trajectory.unit_tokens)


def test_the_terminal_shows_what_the_summary_says():
    shown = " ".join(command("--system", "aligned", "--tokens", "6", "--until", "1").output.split())
    for left, right in simulate("aligned", SHORT).lines():
        assert f"{left} {right}" in shown


def test_a_result_is_saved_loaded_tabulated_and_drawn(tmp_path):
    result = simulate("hd", replace(SHORT, geometry=Geometry.SPHERE))
    again = Simulation.load(result.save(tmp_path / "flow.json"))
    assert again.summary() == result.summary()
    assert again.options == result.options
    assert torch.equal(again.trajectory.unit_tokens, result.trajectory.unit_tokens)
    table = result.to_pandas()
    assert len(table) == 65
    assert {"time", "log_size", "log_scale"} <= set(table.columns)
    assert len(repr(result).splitlines()) <= 3
    assert "agreement" in result._repr_html_()
    assert result.plot().data
    with pytest.raises(ResultError):
        result.trajectory.load(tmp_path / "flow.json")


# --- agreement -------------------------------------------------------------------------------


def run(system, tokens, until, **options):
    return integrate_flow(system, tokens, until=until, options=IntegrateOptions(**options))


def agreement(system, tokens, until, **options):
    return agreement_of(predict(system, tokens), run(system, tokens, until, **options))


def test_a_proved_rate_too_slow_to_show_is_too_early_to_tell():
    """T2: like t^(-1/2). A run of 2 has not halved the cloud."""
    system, tokens = example_system("anti-aligned", d_model=2), 0.3 * normal(seeded(1), 12, 2)
    assert predict(system, tokens).source is Ground.CERTIFICATE
    assert agreement(system, tokens, 2.0) is FlowAgreement.TOO_EARLY
    assert agreement(system, tokens, 200.0) is FlowAgreement.YES


def test_a_run_that_met_its_limit_on_steps_tells_nothing():
    system, tokens = example_system("aligned"), normal(seeded(0), 8, 3)
    assert agreement(system, tokens, 50.0, max_steps=2) is FlowAgreement.TOO_EARLY


def test_the_opposite_of_a_prediction_is_never_a_yes():
    system, tokens = example_system("aligned"), normal(seeded(0), 8, 3)
    grown, shrunk = run(system, tokens, 5.0), run(example_system("anti-aligned"), tokens, 300.0)
    for source in (Ground.CERTIFICATE, Ground.INDICATION, Ground.CLOSURE):
        # A theorem speaks of the long run: what tokens do before does not refute it.
        failed = FlowAgreement.TOO_EARLY if source is Ground.CERTIFICATE else FlowAgreement.NO
        outlook = replace(predict(system, tokens), source=source, fate=Fate.DIVERGING)
        assert agreement_of(outlook, grown) is FlowAgreement.YES
        assert agreement_of(outlook, shrunk) is failed
        assert agreement_of(replace(outlook, fate=Fate.CONVERGING), grown) is failed
        assert agreement_of(replace(outlook, fate=Fate.MIXED), grown) is failed


def test_tokens_that_ran_away_refute_a_proof_that_they_converge():
    system, tokens = example_system("aligned"), normal(seeded(0), 8, 3)
    outlook = replace(predict(system, tokens), fate=Fate.CONVERGING)
    assert outlook.source is Ground.CERTIFICATE
    assert agreement_of(outlook, run(system, tokens, 40.0)) is FlowAgreement.NO


def test_a_proof_is_not_contradicted_by_what_tokens_do_first():
    """T4: the leader grows like exp(0.01 t) in one direction, and shrinks like exp(-t) at first."""
    v = torch.diag(torch.tensor([0.01, -1.0, -1.0], dtype=torch.float64))
    system = replace(system_of_maps(0 * EYE, v), mask=Mask.CAUSAL)
    tokens = torch.tensor([[1e-3, 1.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    assert predict(system, tokens).why.startswith("T4")
    soon, late = run(system, tokens, 3.0), run(system, tokens, 3000.0)
    assert fate(soon) is Fate.CONVERGING
    assert agreement_of(predict(system, tokens), soon) is FlowAgreement.TOO_EARLY
    assert agreement_of(predict(system, tokens), late) is FlowAgreement.YES


def test_a_run_in_which_nothing_happened_yet_tells_nothing():
    system, tokens = example_system("rotation"), normal(seeded(0), 8, 3)
    outlook = replace(predict(example_system("aligned"), tokens), source=Ground.CLOSURE)
    for expected in Fate:
        said = replace(outlook, fate=expected)
        assert agreement_of(said, run(system, tokens, 1e-3)) is FlowAgreement.TOO_EARLY
    turned = run(system, torch.tensor([[1.0, 0.0, 0.0]]).double(), 5.0)  # of one length for ever
    assert agreement_of(outlook, turned) is FlowAgreement.NO
    assert agreement_of(replace(outlook, fate=Fate.MIXED), turned) is FlowAgreement.YES


def tendency(trajectory, geometry):
    """Return the sign of what happened, from its definition: of the largest length, or of C."""
    x, scale = trajectory.unit_tokens[[0, -1]], trajectory.log_scale[[0, -1]]
    if geometry is Geometry.FREE:
        sizes = x.norm(dim=-1).amax(dim=-1).log() + scale
        return sizes[1].item() - sizes[0].item()
    first, last = mean_cosine(x[0]), mean_cosine(x[1])
    return first - last  # the cosine falls where directions spread


@pytest.mark.parametrize("geometry", list(Geometry))
def test_yes_is_never_said_where_tokens_went_the_other_way(geometry):
    said = dict.fromkeys(FlowAgreement, 0)
    for number in range(40):
        system, tokens = random_system(number, n=5, d=3, r=3, geometry=geometry, mask="causal")
        trajectory = run(system, tokens, float(1 + number % 5), rtol=1e-4)
        went = tendency(trajectory, geometry)
        outlooks = [predict(system, tokens)]
        outlooks += [
            Prediction(fate=expected, source=source, why="", certificates=())
            for expected in Fate
            for source in Ground
        ]
        for outlook in outlooks:
            answer = agreement_of(outlook, trajectory, geometry)
            said[answer] += 1
            assert (answer is FlowAgreement.NONE) is (outlook.source is Ground.NONE)
            if answer is FlowAgreement.YES and outlook.fate is not Fate.MIXED:
                assert went > 0 if outlook.fate is Fate.DIVERGING else went < 0
            if answer is FlowAgreement.YES:
                assert outlook.fate is fate(trajectory, geometry)
    assert min(said.values()) > 0  # every answer is given


def test_an_expectation_that_points_the_other_way_has_failed_before_the_end():
    tokens = normal(seeded(0), 8, 3)
    slow = run(system_of_maps(EYE, -0.05 * EYE), tokens, 5.0)  # shrinks, not yet by half
    outlook = replace(predict(example_system("aligned"), tokens), source=Ground.CLOSURE)
    assert agreement_of(replace(outlook, fate=Fate.CONVERGING), slow) is FlowAgreement.TOO_EARLY
    assert agreement_of(replace(outlook, fate=Fate.DIVERGING), slow) is FlowAgreement.NO


def test_nothing_predicted_is_not_agreement():
    system = replace(example_system("aligned"), unnormalised=True)
    assert agreement(system, 0.1 * normal(seeded(0), 8, 3), 1.0) is FlowAgreement.NONE


# --- certificates are about the flow at hand -------------------------------------------------


def held(system, tokens):
    return {c.name: c for c in predict(system, tokens).certificates if c.holds}


def test_a_drift_voids_what_is_proved_without_one():
    """W = I, V = -I, drift 5: tokens end near 4, and T2 said that all converge to 0."""
    system = replace(system_of_maps(EYE, -EYE), drift=torch.full((3,), 5.0).double())
    tokens = normal(seeded(0), 8, 3)
    assert set(held(system, tokens)) == {"T1", "T5"}  # a speed limit that counts the drift
    assert {"T1", "T2", "T5"} <= set(held(replace(system, drift=None), tokens))
    causal = replace(system, mask=Mask.CAUSAL)
    assert "a point" in held(causal, tokens)["T4"].why
    assert "to 0" in held(replace(causal, drift=None), tokens)["T4"].why


def test_several_heads_have_the_certificates_of_their_sum():
    """Heads I and -3I: "diverge" was printed, tokens converge; two heads I grow like exp(2t)."""
    tokens = normal(seeded(0), 8, 3)
    maps = torch.stack([EYE, -3 * EYE])
    for mask in Mask:
        system = replace(system_of_maps(torch.stack([EYE, EYE]), maps), mask=mask)
        assert not {"T1", "T2", "T3"} & set(held(system, tokens))
        assert predict(system, tokens).fate is not Fate.DIVERGING or mask is Mask.FULL
    assert held(system, tokens)["T4"].margin == pytest.approx(-2.0)
    twice = system_of_maps(torch.stack([EYE, EYE]), torch.stack([EYE, EYE]))
    assert [c.name for c in predict(twice, tokens).certificates] == ["T3", "T4", "T5"]
    assert held(twice, tokens)["T5"].margin == pytest.approx(2.0)


def test_starts_that_do_not_move_are_not_proved_to_diverge():
    zero = torch.zeros(4, 3, dtype=torch.float64)
    for mask in Mask:
        system = replace(example_system("aligned"), mask=mask)
        assert predict(system, zero).source is not Ground.CERTIFICATE
    v = torch.diag(torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64))
    system = replace(system_of_maps(-EYE, v), mask=Mask.CAUSAL)
    tokens = normal(seeded(0), 4, 3)
    assert predict(system, tokens).why.startswith("T4")
    tokens[0, 0] = 0.0  # the leader in the stable subspace
    assert predict(system, tokens).source is not Ground.CERTIFICATE
    pushed = replace(system, drift=torch.tensor([0.5, 0.0, 0.0], dtype=torch.float64))
    assert predict(pushed, tokens).fate is Fate.DIVERGING
