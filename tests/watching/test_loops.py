"""Watch in other people's loops: Trainers, Accelerate, the lab; and what trackers get."""

import importlib.util
import sys
import types
from pathlib import Path

import pytest
import torch
import transformers

import tiny_models
from orbitlens.errors import InputError, MissingPackageError
from orbitlens.lab.run import RunConfig, run_hash
from orbitlens.lab.training import train
from orbitlens.watching.api import Watch
from orbitlens.watching.looking import watched
from orbitlens.watching.tracking import opened_log

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SIZES = {**tiny_models.GPT2, "bos_token_id": 0, "eos_token_id": 0}
ROWS = torch.randint(0, 40, (32, 16), generator=torch.Generator().manual_seed(0))


def gpt2():
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES)).train()


def losses_of(trainer):
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def trainer(folder, callbacks, steps=6):
    args = transformers.TrainingArguments(
        str(folder),
        max_steps=steps,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        per_device_train_batch_size=4,
        dataloader_pin_memory=False,
    )
    data = [{"input_ids": row, "labels": row} for row in ROWS]
    return transformers.Trainer(gpt2(), args, train_dataset=data, callbacks=callbacks)


def test_trainer_reads_tokens_and_loss_and_trains_to_the_same_bits(tmp_path):
    watch = Watch(every=2, tokens_every=4, path=tmp_path / "run")
    plain = losses_of(trainer(tmp_path / "a", []))
    seen = trainer(tmp_path / "b", [watch.callback()])
    assert losses_of(seen) == plain
    run = watched(tmp_path / "run")
    assert [r.step for r in run.readings] == [1, 2, 4, 6]
    assert [r.step for r in run.readings if r.tokens is not None] == [1, 4]
    assert run.readings[0].loss == pytest.approx(plain[0], abs=1e-3)
    assert not seen.model._forward_hooks  # nothing is left behind


def test_trainer_stops_on_an_alarm(tmp_path):
    watch = Watch(every=1, stop_on=["not-finite"])
    made = trainer(tmp_path, [watch.callback()])
    with torch.no_grad():
        made.model.transformer.h[0].attn.c_attn.weight[0, 0] = float("nan")
    made.train()
    assert made.state.global_step == 1 and watch.last.stop


class FakeLightning(torch.nn.Module):
    """A module around a model, as LightningModules are."""

    def __init__(self):
        super().__init__()
        self.inner = gpt2()


def run_lightning(callback, module, steps=4):
    """Call a callback as Lightning's loop does."""
    state = types.SimpleNamespace(global_step=0, should_stop=False)
    callback.on_train_start(state, module)
    for step in range(steps):
        module.inner(input_ids=ROWS[:2], labels=ROWS[:2])
        state.global_step = step + 1
        callback.on_train_batch_end(state, module, None, None, step)
    callback.on_train_end(state, module)
    return state


def test_lightning_callback_finds_the_model_inside_and_stops(monkeypatch):
    if importlib.util.find_spec("pytorch_lightning") is None:
        stand_in = types.ModuleType("pytorch_lightning")
        stand_in.Callback = object
        monkeypatch.setitem(sys.modules, "pytorch_lightning", stand_in)
    watch = Watch(every=2, tokens_every=2, stop_on=["not-finite"])
    module = FakeLightning().train()
    assert not run_lightning(watch.lightning(), module).should_stop
    assert watch.last.step == 4 and watch.last.tokens is not None
    with torch.no_grad():
        module.inner.transformer.h[0].attn.c_attn.weight[0, 0] = float("nan")
    assert run_lightning(watch.lightning(), module).should_stop


def test_lightning_that_is_not_installed_is_named(monkeypatch):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match="pip install lightning"):
        Watch().lightning()


def test_a_model_prepared_by_accelerate_is_read():
    from accelerate import Accelerator

    model = Accelerator(cpu=True).prepare(gpt2())
    reading = Watch()(model, 0, {"input_ids": ROWS[:2], "labels": ROWS[:2]})
    assert reading.tokens is not None


def test_a_training_run_of_the_lab_is_the_same_with_and_without(tmp_path):
    config = RunConfig(task="copy", layers=2, heads=2, width=16, steps=60, batch=4, judged=8)
    plain = train(config, tmp_path / "plain")
    seen = train(config, tmp_path / "seen", watch=True)
    assert (plain.loss, plain.accuracy) == (seen.loss, seen.accuracy)
    logs = [(tmp_path / k / run_hash(config) / "metrics.jsonl") for k in ("plain", "seen")]
    kept = [[line.split('"seconds"')[0] for line in log.read_text().splitlines()] for log in logs]
    assert kept[0] == kept[1]
    run = watched(tmp_path / "seen" / run_hash(config))
    assert [r.step for r in run.readings] == [1, 25, 50]
    assert run.readings[0].tokens is not None


def test_trackers_get_numbers_by_name_and_step(monkeypatch):
    got = []
    Watch(log=lambda numbers, *, step: got.append((step, numbers)))(gpt2(), 3, ROWS[:2])
    ((step, numbers),) = got
    assert step == 3 and numbers["watch/alarms"] == 0.0
    assert {"watch/freezing/layer_0", "watch/cosine/layer_3"} <= set(numbers)
    stand_in = types.ModuleType("mlflow")
    stand_in.__spec__ = importlib.util.spec_from_loader("mlflow", loader=None)
    stand_in.log_metrics = lambda metrics, step=None: got.append((step, metrics))
    monkeypatch.setitem(sys.modules, "mlflow", stand_in)
    Watch(log="mlflow")(gpt2(), 5)
    assert got[-1][0] == 5


def test_a_tracker_that_is_unknown_or_not_installed_is_refused_at_once(monkeypatch):
    with pytest.raises(InputError, match="Known: tensorboard"):
        Watch(log="paper")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="pip install wandb"):
        opened_log("wandb", None)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")  # the example trains on any machine
def test_the_example_warns_before_its_loss_shows_it(tmp_path):
    spec = importlib.util.spec_from_file_location("watch_gpt2", EXAMPLES / "watch_gpt2.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    run = example.main(str(tmp_path))
    first = run.episodes()[0]
    assert first.alarm.kind.value in ("gathering", "collapse")
    worse = [r.step for r in run.readings if r.loss > run.readings[0].loss + 0.5]
    assert worse and first.raised < worse[0]
