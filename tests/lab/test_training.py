"""Training: it learns, and a run killed at any moment ends with the same bits."""

import json
import math
import multiprocessing
import os
import random
import resource
import signal
import socket
import time

import pytest
import torch
from safetensors.torch import load

from orbitlens.errors import InputError, TrainingError
from orbitlens.lab import training
from orbitlens.lab.geometry import convergence
from orbitlens.lab.judging import judge
from orbitlens.lab.ownership import LOCK
from orbitlens.lab.recipe import (
    build_model,
    learning_rate,
    make_optimizer,
    orbit_config,
    training_batch,
)
from orbitlens.lab.run import RunConfig, RunResult, run_config, run_hash, task_of
from orbitlens.lab.run_state import LOG, MODEL, RESULT, STATE, read_state
from orbitlens.lab.tasks import build_task, judged_columns
from orbitlens.lab.tasks.base import stream_seed
from orbitlens.lab.training import train
from orbitlens.results.codec import decode

FORK = multiprocessing.get_context("fork")  # a fork has everything imported: kills can be many
TINY = {"digits": 1, "layers": 1, "heads": 2, "width": 8, "steps": 24, "batch": 8, "judged": 64}


def tiny(**changes):
    return run_config({"task": "addition", **TINY, "warmup": 4, **changes})


def weights(folder, config):
    return (folder / run_hash(config) / MODEL / "model.safetensors").read_bytes()


def log(folder, config):
    lines = (folder / run_hash(config) / LOG).read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def killed_after(seconds, job):
    """Run a job in a process, and kill -9 it; return whether it was still running."""
    process = FORK.Process(target=job)
    process.start()
    process.join(seconds)
    running = process.is_alive()
    if running:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return running


# --- it learns -------------------------------------------------------------------------------


def test_a_run_learns_and_leaves_a_model_a_log_and_a_result(tmp_path):
    config = run_config(
        {"task": "majority", "length": 9, "layers": 1, "heads": 2, "width": 16, "steps": 150}
        | {"batch": 64, "warmup": 10, "judged": 128, "lr": 0.01}
    )
    result = train(config, tmp_path)
    assert result.accuracy > 0.9
    assert result.loss < 0.3
    folder = tmp_path / run_hash(config)
    assert decode(RunResult, json.loads((folder / RESULT).read_text())) == result
    lines = log(tmp_path, config)
    assert [line["step"] for line in lines] == [50, 100, 150]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert "valid_loss" in lines[-1]
    assert not (folder / STATE).exists()


def test_a_saved_model_is_the_one_that_was_judged(tmp_path):
    from transformers import AutoModelForCausalLM

    config = tiny()
    result = train(config, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / run_hash(config) / MODEL)
    score = judge(model, task_of(config), split="test", n_examples=64, batch=8)
    assert score.loss == pytest.approx(result.loss, rel=1e-6)
    assert sum(p.numel() for p in model.parameters()) == result.parameters
    fresh = judge(
        build_model(config, task_of(config)), task_of(config), split="test", n_examples=64, batch=8
    )
    assert fresh.loss > score.loss  # the control: an untrained model scores worse


def test_a_model_of_a_text_has_its_tokenizer(tmp_path):
    from transformers import AutoTokenizer

    file = tmp_path / "text.txt"
    file.write_text("one two\nthree é " * 40, encoding="utf-8")
    options = {"task": "text", "file": str(file), "context": 8, "layers": 1, "heads": 1}
    config = run_config(options | {"width": 4, "steps": 1, "batch": 2})
    train(config, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / run_hash(config) / MODEL)
    task, text = task_of(config), "two\n three é"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert [task.characters[i] for i in ids] == list(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer("twoZ", add_special_tokens=False).input_ids == ids[:3]  # Z is not in the text


def test_images_are_learnt(tmp_path):
    config = run_config(
        {"task": "digits", "mask": "full", "layers": 1, "heads": 2, "width": 32, "steps": 100}
        | {"batch": 64, "warmup": 10, "measure": True}
    )
    result = train(config, tmp_path)
    assert result.accuracy > 0.4  # chance is 0.1
    assert len(result.measured["cosine"]) == 2


def test_a_run_that_is_done_is_not_repeated(tmp_path, monkeypatch):
    config = tiny()
    first = train(config, tmp_path)
    monkeypatch.setattr(training._Run, "go", lambda *_: pytest.fail("it was trained again"))
    assert train(config, tmp_path) == first


def test_seeds_and_settings_change_the_weights(tmp_path):
    configs = [tiny(steps=3), tiny(steps=3, seed=1), tiny(steps=3, lr=1e-3)]
    for config in configs:
        train(config, tmp_path)
    assert len({weights(tmp_path, config) for config in configs}) == 3


def test_the_rate_warms_up_and_falls_to_zero():
    config = tiny(lr=1.0, warmup=10, steps=110)
    assert learning_rate(config, 0) == pytest.approx(0.1)
    assert learning_rate(config, 9) == pytest.approx(1)
    assert learning_rate(config, 60) == pytest.approx(0.5)
    assert learning_rate(config, 110) == pytest.approx(0, abs=1e-12)
    assert learning_rate(tiny(lr=1.0, warmup=0), 0) == pytest.approx(1)


def test_the_loop_is_the_loop_one_would_write_by_hand(tmp_path):
    config = tiny(steps=20, refinement="none")
    train(config, tmp_path)
    task = task_of(config)
    model = build_model(config, task).train()
    optimizer = make_optimizer(model, config)
    for step in range(20):
        batch = training_batch(config, task, step)
        logits = model(input_ids=batch.inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        optimizer.step()
        optimizer.zero_grad()
    trained = load(weights(tmp_path, config))
    for name, value in model.state_dict().items():
        assert torch.allclose(trained[name], value, atol=1e-5), name


def test_two_processes_train_what_one_does(tmp_path, monkeypatch):
    """As `accelerate launch` starts them: the batch is split, gradients are averaged."""
    config = tiny(steps=12)
    train(config, tmp_path / "one")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in {**settings, "ACCELERATE_USE_CPU": "true"}.items():
        monkeypatch.setenv(name, value)

    def process(rank):
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)  # the fork has the parent's
        os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank)})
        shares = []
        loss = training._Run._loss
        training._Run._loss = lambda run, batch: (shares.append(run.world), loss(run, batch))[1]
        train(config, tmp_path / "two")
        assert set(shares) == {2}

    processes = [FORK.Process(target=process, args=(rank,)) for rank in range(2)]
    for each in processes:
        each.start()
    for each in processes:
        each.join(60)
    assert [each.exitcode for each in processes] == [0, 0]
    one, two = (load(weights(tmp_path / name, config)) for name in ("one", "two"))
    for name, value in one.items():
        assert torch.allclose(two[name], value, atol=1e-5), name
    ours, theirs = log(tmp_path / "two", config), log(tmp_path / "one", config)
    assert ours[0]["loss"] == pytest.approx(theirs[0]["loss"], rel=1e-4)


# --- killed, full, not a number --------------------------------------------------------------


def test_killed_at_ten_random_moments_a_run_ends_with_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "STATE_EVERY", 0.0)  # a state after every step
    config = tiny(steps=90)
    began = time.perf_counter()
    train(config, tmp_path / "whole")
    whole = time.perf_counter() - began
    moments, kills, steps, n_ended = random.Random(7), 0, set(), 0
    while kills < 10:
        folder = tmp_path / f"cut{n_ended}"
        alive = killed_after(moments.uniform(0, whole / 3), lambda: train(config, folder))  # noqa: B023
        kills += alive
        n_ended += not alive  # it ended between two kills: the next are for a new run
        state = read_state(folder / run_hash(config))
        steps.add(0 if state is None else state.step)
    assert len(steps) > 3  # kills at different moments, some of them in the middle
    for number in range(n_ended + 1):
        folder = tmp_path / f"cut{number}"
        train(config, folder)
        assert weights(folder, config) == weights(tmp_path / "whole", config)
        assert log(folder, config) == log(tmp_path / "whole", config)
        left = {path.name for path in (folder / run_hash(config)).iterdir()}
        assert left == {"config.json", LOG, MODEL, RESULT, LOCK}


def interrupted(config, folder, monkeypatch, step):
    """Leave the folder of a run that was killed after a step."""

    class Stop(Exception):
        pass

    def stop(self):
        save(self)
        if self.step >= step:
            raise Stop

    save = training._Run._save
    with monkeypatch.context() as patch:
        patch.setattr(training, "STATE_EVERY", 0.0)
        patch.setattr(training._Run, "_save", stop)
        with pytest.raises(Stop):
            train(config, folder)


def test_a_resume_without_the_optimizers_state_would_not_end_with_the_same_bits(
    tmp_path, monkeypatch
):
    config = tiny()
    train(config, tmp_path / "whole")
    interrupted(config, tmp_path / "cut", monkeypatch, 10)
    monkeypatch.setattr(training, "restore_moments", lambda *_: None)
    train(config, tmp_path / "cut")
    assert weights(tmp_path / "cut", config) != weights(tmp_path / "whole", config)


@pytest.mark.parametrize("refinement", ["guard-data", "penalty", "definite-half"])
def test_refinements_resume_with_the_same_bits(tmp_path, monkeypatch, refinement):
    config = tiny(refinement=refinement)
    train(config, tmp_path / "whole")
    interrupted(config, tmp_path / "cut", monkeypatch, 10)
    train(config, tmp_path / "cut")
    assert weights(tmp_path / "cut", config) == weights(tmp_path / "whole", config)


def test_a_full_disk_gives_a_clear_error_and_leaves_the_last_state(tmp_path, monkeypatch):
    config = tiny()
    train(config, tmp_path / "whole")
    interrupted(config, tmp_path / "cut", monkeypatch, 10)
    folder = tmp_path / "cut" / run_hash(config)
    before = (folder / STATE).read_bytes()
    receiver, sender = FORK.Pipe(duplex=False)

    def full():
        training.STATE_EVERY = 0.0
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, len(before) // 2))
        try:
            train(config, tmp_path / "cut")
        except TrainingError as error:
            sender.send(str(error))

    process = FORK.Process(target=full)
    process.start()
    assert receiver.poll(30)
    message = receiver.recv()
    process.join()
    assert "cannot be written" in message
    assert "the last state written is whole" in message
    assert (folder / STATE).read_bytes() == before
    assert not list(folder.glob(".draft-*"))
    train(config, tmp_path / "cut")
    assert weights(tmp_path / "cut", config) == weights(tmp_path / "whole", config)


def test_a_loss_that_is_no_number_stops_the_run_with_step_and_batch_seed(tmp_path):
    config = tiny(lr=1e18, clip=1e30, norm="none", warmup=0)
    task, model = task_of(config), build_model(config, task_of(config))
    optimizer, first = make_optimizer(model, config), None
    for step in range(50):
        batch = training_batch(config, task, step)
        loss = model(input_ids=batch.inputs, targets=batch.targets).loss
        if not math.isfinite(loss.item()):
            first = step
            break
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        optimizer.step()
        optimizer.zero_grad()
    assert first is not None
    assert first > 0
    seed = stream_seed(task.name, "train", first, 0)
    with pytest.raises(TrainingError, match=rf"loss of step {first} is .* \(batch seed {seed}\)"):
        train(config, tmp_path)
    assert not (tmp_path / run_hash(config) / RESULT).exists()


def test_a_state_that_was_damaged_is_refused(tmp_path, monkeypatch):
    config = tiny()
    interrupted(config, tmp_path, monkeypatch, 10)
    (tmp_path / run_hash(config) / STATE).write_bytes(b"nonsense")
    with pytest.raises(TrainingError, match="cannot be read"):
        train(config, tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="cannot be written"):
        train(tiny(), tmp_path / "file")


# --- the full mask ---------------------------------------------------------------------------


def answer_gradient(model, batch):
    """Return the largest gradient of the loss with respect to the embedding of an answer token."""
    x = model.get_input_embeddings()(batch.inputs).detach().requires_grad_()
    column = judged_columns(batch.targets)[0]
    targets = torch.full_like(batch.targets, -100)
    targets[:, column] = batch.targets[:, column]
    model(inputs_embeds=x, targets=targets).loss.backward()
    return x.grad[:, column + 1 :].abs().max().item()


@pytest.mark.parametrize(("mask", "leaks"), [("causal", False), ("full", True)])
def test_an_uncut_batch_leaks_the_answer_through_a_full_mask_alone(mask, leaks):
    """The control: what the cut prevents is real."""
    config = tiny(mask=mask)
    task = task_of(config)
    gradient = answer_gradient(build_model(config, task), task.batch("train", 0, 8, 0))
    assert (gradient > 0) == leaks


@pytest.mark.parametrize("name", ["addition", "copy", "text", "index"])
def test_with_a_full_mask_the_answer_is_not_in_any_batch(name):
    config = run_config({"task": name, "mask": "full", "width": 8, "heads": 2, "batch": 4})
    task, lengths = task_of(config), set()
    for step in range(40):
        batch, whole = training_batch(config, task, step), task.batch("train", step, 4, 0)
        n = batch.inputs.shape[1]
        lengths.add(n)
        assert judged_columns(batch.targets) == [n - 1]
        assert torch.equal(batch.inputs, whole.inputs[:, :n])
        assert torch.equal(batch.targets[:, -1], whole.targets[:, n - 1])
    columns = judged_columns(whole.targets)
    assert len(lengths) > min(2, len(columns)) - 1  # every answer token gets its turn


def test_with_a_full_mask_answers_are_judged_without_being_seen():
    """A model that copies what stands behind the judged position finds nothing there."""
    config = tiny(mask="full", digits=2)
    task, model = task_of(config), build_model(tiny(mask="full", digits=2), task_of(config))
    seen = []
    model.register_forward_pre_hook(
        lambda _, args, named: seen.append((named["input_ids"], named["targets"])), with_kwargs=True
    )
    judge(model, task, split="test", n_examples=8, batch=8)
    assert len(seen) == 3
    assert [targets.shape[1] for _, targets in seen] == [6, 7, 8]
    for inputs, targets in seen:
        assert judged_columns(targets) == [inputs.shape[1] - 1]


# --- judging ---------------------------------------------------------------------------------


class Oracle(torch.nn.Module):
    """Says the right answer, but for a chosen share of last digits."""

    def __init__(self, wrong):
        super().__init__()
        self.wrong, self.device = wrong, torch.device("cpu")
        self.config = RunConfig()

    def forward(self, input_ids, targets):
        wanted = targets[targets != -100]
        logits = torch.nn.functional.one_hot(wanted, 12).float() * 20
        rows = logits.view(len(targets), -1, 12)
        n = round(self.wrong * len(targets))
        rows[:n, -1] = rows[:n, -1].roll(1, -1)
        loss = torch.nn.functional.cross_entropy(logits, wanted)
        return type("Out", (), {"logits": logits, "loss": loss})


@pytest.mark.parametrize("wrong", [0.0, 0.25, 1.0])
def test_an_answer_counts_when_all_of_it_is_right(wrong):
    score = judge(Oracle(wrong), build_task("addition"), split="test", n_examples=32, batch=16)
    assert score.accuracy == 1 - wrong
    assert score.token_accuracy == 1 - wrong / 4
    assert (score.loss > 1) == (wrong > 0)


def test_convergence_sees_tokens_that_come_together():
    """No residual, no norm, uniform attention: one layer makes all tokens one."""
    config = tiny(residual="none", norm="none", mask="full", mlp=False, layers=2, position="none")
    task = task_of(config)
    model = build_model(config, task)
    with torch.no_grad():
        model.model.layers[0].self_attn.qkv_proj.weight[:16] = 0  # queries and keys
    found = convergence(model, task)
    assert found["log_distance_change"] < -8
    assert found["cosine"][1] == pytest.approx(1, abs=1e-5)
    plain = convergence(build_model(tiny(layers=2), task), task)  # the control
    assert plain["log_distance_change"] > -1
    assert plain["cosine_last"] < 0.9


# --- configs ---------------------------------------------------------------------------------


def test_a_hash_depends_on_every_setting():
    names = {run_hash(tiny())}
    changes = {
        "seed": 3,
        "lr": 0.1,
        "position": "rotary",
        "layers": 2,
        "digits": 2,
        "measure": True,
    }
    names |= {run_hash(tiny(**{key: value})) for key, value in changes.items()}
    assert len(names) == 1 + len(changes)
    assert run_hash(tiny()) == run_hash(tiny(position="learned"))  # the default, said or not


def test_a_text_counts_by_its_content(tmp_path):
    def named(name, content):
        file = tmp_path / name
        file.write_text(content * 400)
        return run_hash(run_config({"task": "text", "file": str(file), "context": 8}))

    assert named("a", "abc") == named("b", "abc")
    assert named("a", "abd") != named("b", "abc")


def test_configs_survive_json():
    config = tiny(residual=[0], position="rotary")
    settings = json.loads(json.dumps(config.to_json()))
    assert run_config(settings | settings.pop("options")) == config


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"postion": "none"}, r"'postion' is unknown. Did you mean 'position'\?"),
        ({"steps": "10"}, "steps='10': expected a whole number"),
        ({"mlp": 1}, "mlp=1: expected true or false"),
        ({"steps": True}, "steps=True: expected a whole number"),
        ({"steps": 0}, "steps=0: expected at least 1"),
        ({"lr": 0}, "lr=0.0: expected a positive"),
        ({"task": "sum"}, "'sum' is unknown. Known: addition"),
        ({"length": 4}, "'length' is unknown"),
    ],
)
def test_bad_settings_are_refused(settings, match):
    with pytest.raises(InputError, match=match):
        run_config(settings)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"position": "rotery"}, "Choose one of: none, learned"),
        ({"width": 65}, "does not split into 4"),
        ({"refinement": "gaurd"}, "guard"),
        ({"residual": [7]}, "no layer 7"),
    ],
)
def test_switches_that_do_not_fit_are_refused_before_training(settings, match):
    with pytest.raises(InputError, match=match):
        config = run_config(settings)
        orbit_config(config, task_of(config))
