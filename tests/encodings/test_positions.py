"""The verb: verdicts, losses that confirm them, and repairs that restore a checkpoint."""

import shutil
from pathlib import Path

import pytest

import orbitlens as ol
from orbitlens.encodings.api import AS_WEIGHTS_SAY, _bases_alike
from orbitlens.encodings.options import PositionsOptions
from orbitlens.encodings.repair import write_repaired
from orbitlens.encodings.rows import row_orders
from orbitlens.encodings.trial import HypothesisTrial
from orbitlens.encodings.words import ranges
from orbitlens.errors import InputError
from orbitlens.families.architecture import Pairing
from orbitlens.running.texts import passage
from small_llama import refused, run

QUICK = PositionsOptions(max_tokens=512, bases=(100.0, 1e4))


def broken(folder, target, layers):
    """Copy a model with the rows of some layers where neighbours pair up."""
    model = ol.load(folder)
    stack = model.architecture.stacks[0]
    orders = {}
    for layer in layers:
        spec = stack.layers[layer].rotary
        orders |= row_orders(stack, layer, Pairing.NEIGHBOURS, spec.d_rotary)
    inverse = {name: order.argsort() for name, order in orders.items()}
    write_repaired(Path(model.checkpoint.path), target, inverse)
    return target


def assert_restored(repaired, sound):
    """Check that a repaired copy has the weights of the sound model, and its loss."""
    weights = "model.safetensors"
    assert (repaired / weights).read_bytes() == (sound / weights).read_bytes()
    after, before = (
        ol.positions(each, passage(), options=PositionsOptions(max_tokens=512, bases=()))
        for each in (repaired, sound)
    )
    assert after.trials[0].loss == pytest.approx(before.trials[0].loss, abs=1e-6)


@pytest.fixture(scope="module")
def zoo():
    return Path(ol.load("orbit-nano-rotary").checkpoint.path)


@pytest.mark.parametrize("layers", [(0, 1, 2, 3), (2,)])
def test_a_wrong_conversion_is_named_confirmed_and_repaired_to_the_byte(layers, zoo, tmp_path):
    folder = broken(zoo, tmp_path / "broken", layers)
    sound = ol.positions(zoo, passage(), options=QUICK)
    found = ol.positions(folder, passage(), repair_to=tmp_path / "repaired", options=QUICK)
    assert [layer.layer for layer in found.disagreeing()] == list(layers)
    assert found.repair.by_rows == layers
    assert found.repair.confirmed
    losses = {trial.name: trial.loss for trial in found.trials}
    assert losses["as loaded"] > losses[AS_WEIGHTS_SAY] + 0.05
    assert losses[AS_WEIGHTS_SAY] == pytest.approx(sound.trials[0].loss, abs=1e-6)
    for file in zoo.iterdir():
        assert (tmp_path / "repaired" / file.name).read_bytes() == file.read_bytes()
    assert "disagree" in found.summary()
    assert "trained with neighbours, 16" in found.summary()


def test_a_sound_model_is_called_sound_and_is_best_as_it_is(zoo):
    found = ol.positions(zoo, passage(), options=QUICK)
    assert found.repair is None
    assert found.summary().startswith(
        "The weights agree with the config: all 4 layers rotated in halves, all 16 coordinates"
    )
    assert all(trial.is_worse for trial in found.trials[1:])


def test_a_wrong_base_in_the_config_shows_in_the_loss(zoo, tmp_path):
    folder = tmp_path / "based"
    shutil.copytree(zoo, folder)
    config = (folder / "config.json").read_text()
    assert '"rotary_base": 10000' in config
    (folder / "config.json").write_text(
        config.replace('"rotary_base": 10000', '"rotary_base": 100')
    )
    found = ol.positions(folder, passage(), options=QUICK, repair_to=tmp_path / "repaired")
    assert not list(found.disagreeing())
    assert found.repair.base == 1e4
    assert "A base of 10000 fits better" in found.summary()
    assert_restored(tmp_path / "repaired", zoo)


def test_of_bases_that_the_loss_does_not_tell_apart_the_usual_one_is_taken():
    def trial(base, loss, deviation=0.01):
        return HypothesisTrial(
            name=f"base {base:g}", loss=loss, difference=loss - 3.0, deviation=deviation, base=base
        )

    assert _bases_alike([trial(1e5, 1.80), trial(1e4, 1.82), trial(500.0, 2.5)]) == (1e4, 1e5)
    assert _bases_alike([trial(1e5, 1.80), trial(1e4, 2.0)]) == (1e5,)
    assert _bases_alike([trial(1e5, 3.0), trial(1e4, 3.1)]) == ()


def test_a_layer_that_should_be_rotated_and_is_not_is_found(zoo, tmp_path):
    folder = tmp_path / "left-out"
    shutil.copytree(zoo, folder)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("{", '{"rotary_layers": [0, 2, 3],', 1))
    found = ol.positions(folder, passage(), options=QUICK, repair_to=tmp_path / "repaired")
    assert [layer.layer for layer in found.disagreeing()] == [1]
    assert found.repair.rotated == (1,)
    assert found.repair.confirmed
    assert_restored(tmp_path / "repaired", zoo)


def test_a_model_that_should_not_be_rotated_and_is_is_found(tmp_path):
    source = Path(ol.load("orbit-nano-none").checkpoint.path)
    folder = tmp_path / "rotated"
    shutil.copytree(source, folder)
    config = (folder / "config.json").read_text()
    assert '"position": "none"' in config
    (folder / "config.json").write_text(
        config.replace('"position": "none"', '"position": "rotary"')
    )
    found = ol.positions(folder, passage(), options=QUICK, repair_to=tmp_path / "repaired")
    assert [layer.layer for layer in found.disagreeing()] == [0, 1, 2, 3]
    assert found.repair.unrotated == (0, 1, 2, 3)
    assert found.repair.confirmed
    assert_restored(tmp_path / "repaired", source)


def test_repairs_are_refused_where_nothing_confirms_them(zoo, tmp_path):
    with pytest.raises(InputError, match="nothing was written"):
        ol.positions(zoo, passage(), repair_to=tmp_path / "a", options=QUICK)
    folder = broken(zoo, tmp_path / "broken", (1,))
    with pytest.raises(InputError, match="Give a text"):
        ol.positions(folder, repair_to=tmp_path / "a")
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="exists already"):
        ol.positions(folder, passage(), repair_to=tmp_path / "there", options=QUICK)
    assert not (tmp_path / "a").exists()


def test_nothing_is_run_without_a_text_and_only_queries_and_keys_are_read(zoo, monkeypatch):
    model = ol.load(zoo)
    read = []
    source = type(model.checkpoint.source)
    whole = source.read
    monkeypatch.setattr(
        source, "read", lambda self, name: (read.append(name), whole(self, name))[1]
    )
    found = ol.positions(model)
    assert "module" not in vars(model)
    assert found.trials == ()
    assert {name.split(".")[-2] for name in read} == {"qkv_proj"}


def test_models_without_a_language_head_say_so(model_folder):
    with pytest.raises(InputError, match="no logits"):
        ol.positions(model_folder("bert"), [[5, 6, 7, 8, 9]] * 4)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deepseek_v2", "4 of 10 coordinates of a head are rotated by construction"),
        ("llama-yarn", "angles are scaled (yarn"),
        ("gemma3", "layers have bases of their own ("),
        ("gptj", "the config names no base: 10000"),
        ("bloom", "has no rotary encoding (alibi)"),
    ],
)
def test_what_was_read_and_what_was_not_is_said(name, said, model_folder):
    found = ol.positions(model_folder(name))
    assert said in " ".join(found.flags)
    assert found.layers


def test_heads_of_odd_width_leave_one_coordinate_out(tmp_path):
    import transformers

    config = transformers.GPT2Config(n_embd=27, n_head=3, n_layer=2, vocab_size=20, n_positions=16)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "odd")
    found = ol.positions(tmp_path / "odd")
    assert "heads of 9 coordinates: an odd one is left over" in " ".join(found.flags)
    assert {layer.best.width for layer in found.layers} == {8}


def test_a_learned_table_is_described(model_folder):
    found = ol.positions("orbit-nano-learned")
    assert found.table.n_rows == 128
    assert "All 128 rows" in found.summary()
    assert ol.positions(model_folder("vit")).table is not None


def test_results_are_saved_and_read_again(zoo, tmp_path):
    found = ol.positions(zoo, [list(range(1, 30))] * 4, options=QUICK)
    assert ol.Positions.load(found.save(tmp_path / "p.json")) == found
    assert len(found.to_pandas()) == 4
    assert found.plot() is not None
    assert "Losses" in found._repr_html_()


def test_the_command_prints_the_verdict_the_layers_and_the_losses(zoo, tmp_path):
    folder = broken(zoo, tmp_path / "broken", (2,))
    outcome = run(
        "positions", folder, "--text", passage(), "--max-tokens", "512",
        "--repair", tmp_path / "fixed", "--json", tmp_path / "p.json",
    )  # fmt: skip
    assert (outcome.code, outcome.err) == (0, "")
    said = " ".join(outcome.out.split())
    assert "layer 2 was trained with neighbours" in said
    assert "as the weights say" in said
    assert ol.Positions.load(tmp_path / "p.json").repair.written_to == str(tmp_path / "fixed")
    quick = ("--text", passage(), "--max-tokens", "256")
    refused("positions", zoo, *quick, "--repair", tmp_path / "no", says=("nothing was written",))


def test_runs_of_numbers_are_folded():
    assert ranges([3]) == "3"
    assert ranges([0, 1, 2, 5, 7, 8]) == "0 to 2, 5, 7 to 8"


def test_every_tiny_model_is_read_or_said_why_not(model_folder):
    for name in ("gpt2", "bloom", "mpt", "opt", "t5", "whisper", "albert", "lfm2", "phi", "gemma3"):
        found = ol.positions(model_folder(name))
        assert found.layers or found.flags
        assert found.summary()
