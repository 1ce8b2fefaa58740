"""A switch is declared once: config, runs, options, sweep files and docs follow from it."""

import inspect
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from orbitlens.cli.app import app
from orbitlens.cli.switch_options import with_switches
from orbitlens.errors import InputError
from orbitlens.families import orbit as reader
from orbitlens.lab.run import RunConfig, run_config
from orbitlens.lab.sweep_file import read_sweep
from orbitlens.orbit import OrbitConfig
from orbitlens.orbit.config import switch_fields
from orbitlens.orbit.switches import SWITCHES, Switches, declared_switches, switch

DOCS = Path(__file__).resolve().parents[2] / "docs"
# What the model's config and a run have beside switches: sizes, and what training needs.
SIZES = {
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "max_position_embeddings", "layer_norm_eps", "initializer_range"),
    *("relative_attention_num_buckets", "relative_attention_max_distance"),
    *("image_size", "patch_size", "num_channels", "use_cache", "tie_word_embeddings"),
    *("pad_token_id", "bos_token_id", "eos_token_id"),
}
OF_A_RUN = {
    *("task", "options", "layers", "heads", "width", "inner", "steps", "batch", "lr", "warmup"),
    *("weight_decay", "clip", "init", "judged", "measure", "seed"),
}
OF_TRAIN = {
    *("task", "layers", "heads", "width", "steps", "batch", "lr", "file", "settings", "seeds"),
    *("out", "tracker", "watch", "json_file"),
}


@dataclass(frozen=True, kw_only=True)
class More(Switches):
    """The declaration with one more switch."""

    colour: str = switch("red", "colour of the tokens", values=("red", "blue"))


def parameters(command):
    return set(inspect.signature(command).parameters)


def train_command():
    return next(
        each.callback for each in app.registered_commands if each.callback.__name__ == "train"
    )


def test_a_config_has_every_switch_and_its_sizes_and_nothing_else():
    own = set(OrbitConfig.__annotations__) - {"model_type"}
    assert own == SIZES  # none is written out a second time
    for name, each in SWITCHES.items():
        assert getattr(OrbitConfig(), name) == each.default


def test_a_run_has_every_switch_and_nothing_of_them_twice():
    assert {each.name for each in fields(RunConfig)} == set(SWITCHES) | OF_A_RUN
    assert set(RunConfig.__annotations__) == OF_A_RUN
    assert set(RunConfig().switches) == set(SWITCHES)


def test_train_has_an_option_for_every_switch_and_nothing_else():
    assert parameters(train_command()) == set(SWITCHES) | OF_TRAIN


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_is_a_key_of_sweep_files_and_its_wrong_values_have_a_line(tmp_path, name):
    file = tmp_path / "sweep.toml"
    default = SWITCHES[name].default
    written = str(default).lower() if not isinstance(default, str) else f"'{default}'"
    file.write_text(f"[base]\ntask = 'copy'\n{name} = {written}\n")
    assert getattr(read_sweep(file).cells[0].config(0), name) == default
    file.write_text(f"[base]\ntask = 'copy'\n{name} = 'sideways'\n")
    with pytest.raises(InputError, match=rf"line 3: \[base\] {name}"):
        read_sweep(file)


@pytest.fixture
def table(monkeypatch):
    """The function that writes the table of switches."""
    monkeypatch.syspath_prepend(str(DOCS))
    from generated.lab import switches

    return switches


def test_the_table_of_the_docs_is_current_and_has_a_row_for_every_switch(table):
    page = (DOCS / "lab.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- generated: switches -->")[2].partition("<!-- end generated -->")[0]
    assert shown.strip() == table()
    rows = [line.split("|")[1].strip(" `") for line in shown.strip().splitlines()[2:]]
    assert rows == list(SWITCHES)


def test_a_new_switch_reaches_config_options_and_docs_from_its_declaration_alone(table):
    declared = declared_switches(More)
    assert "| `colour` | `red`, `blue` | `red` | colour of the tokens |" in table(declared)
    assert switch_fields(More)().colour == "red"

    shown = {}

    def command(task: str, switches: dict[str, object], seeds: int = 1) -> None:
        shown.update(switches)

    own = typer.Typer()
    own.command()(with_switches(command, declared))
    result = CliRunner().invoke(own, ["copy", "--colour", "blue", "--residual", "0,2", "--no-mlp"])
    assert result.exit_code == 0, result.output
    assert shown == {"colour": "blue", "residual": [0, 2], "mlp": False}
    assert "red, blue" in CliRunner().invoke(own, ["--help"]).output


def test_an_option_not_given_leaves_the_default_to_the_config():
    assert run_config({"task": "copy"}) == RunConfig(task="copy")
    for each in SWITCHES.values():
        assert inspect.signature(train_command()).parameters[each.name].default is None


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("position", "polar", "position 'polar' is unknown. Choose one of: none, learned"),
        ("mlp", 1, "mlp is 1; expected true or false"),
        ("decay", 0.0, "decay is 0.0; expected a finite number above 0 and at most 1"),
        ("decay", 1.5, "at most 1"),
        ("token_prop", -1.0, "0 or more"),
        ("token_prop", float("inf"), "finite"),
        ("rotary_base", 1.0, "above 1"),
        ("penalty_weight", float("nan"), "finite"),
        ("penalty_weight", True, "finite number"),
        ("residual", "some", "or a list of layers"),
    ],
)
def test_a_value_that_a_switch_does_not_take_is_refused_with_those_it_takes(name, bad, message):
    with pytest.raises(InputError) as caught:
        SWITCHES[name].check(bad)
    assert message in str(caught.value)
    SWITCHES[name].check(SWITCHES[name].default)


def test_the_reader_of_checkpoints_knows_every_declared_value():
    assert tuple(reader.POSITIONS) == SWITCHES["position"].values
    assert reader.NORMS == SWITCHES["norm"].values
    assert reader.AXES == SWITCHES["axes"].values
    assert set(reader.REFINEMENTS) == set(SWITCHES["refinement"].values)


def test_the_declaration_needs_neither_torch_nor_transformers():
    code = (
        "import sys, orbitlens.orbit.switches; print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
