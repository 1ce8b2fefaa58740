"""A model is opened once, whatever it is given as, and left as it was found."""

import numpy as np
import pytest
import torch

from orbitlens.errors import CheckpointError, InputError
from orbitlens.running import loading
from orbitlens.running.batches import Limits, batches_of, limits_for
from orbitlens.running.inputs import Source, inputs_of
from orbitlens.running.model import Model, load
from orbitlens.running.samples import samples_of
from orbitlens.scanning.api import scan
from tiny_models import CASES, build

BY_NAME = {case.name: case for case in CASES}
TEXT = "The old house by the sea was quiet. Nobody had lived there for years."


class Counting:
    """A tensor source that counts how often each tensor is read."""

    def __init__(self, source):
        self.source, self.reads = source, {}

    def __getattr__(self, name):
        return getattr(self.source, name)

    def read(self, name):
        self.reads[name] = self.reads.get(name, 0) + 1
        return self.source.read(name)


@pytest.fixture
def zoo():
    return load("orbit-nano-rotary")


def test_opening_a_model_reads_no_weights_and_builds_nothing(monkeypatch):
    def fail(*arguments, **options):
        raise AssertionError("the module was built")

    monkeypatch.setattr("orbitlens.running.model.build_module", fail)
    model = load("orbit-nano-rotary")
    counted = Counting(model.checkpoint.source)
    object.__setattr__(model.checkpoint, "source", counted)
    assert "4 layers x 4 heads" in repr(model)
    assert model.name == "orbit-nano-rotary"
    assert counted.reads == {}


def test_a_model_is_returned_as_it_is_and_a_path_becomes_one(zoo):
    assert load(zoo) is zoo
    assert isinstance(load(zoo.checkpoint.path), Model)
    with pytest.raises(InputError, match="given as int"):
        load(7)


def test_layers_of_files_are_read_once(zoo):
    counted = Counting(zoo.checkpoint.source)
    object.__setattr__(zoo.checkpoint, "source", counted)
    for _ in range(3):
        list(zoo.layers())
        scan(zoo)
        zoo.head(1, 2)
    assert counted.reads
    assert set(counted.reads.values()) == {1}


def test_layers_of_a_model_too_large_for_memory_are_read_anew(zoo, monkeypatch):
    monkeypatch.setattr("orbitlens.running.model.KEPT_BYTES", 10)
    counted = Counting(zoo.checkpoint.source)
    object.__setattr__(zoo.checkpoint, "source", counted)
    zoo.layer(0)
    zoo.layer(0)
    assert set(counted.reads.values()) == {2}


def test_a_live_module_is_read_in_place_also_after_a_step_of_training():
    module = build(BY_NAME["llama-grouped"]).float()
    model = load(module)
    before = scan(model).layers[0].heads[0].alignment
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator()))
    after = scan(model).layers[0].heads[0].alignment
    assert before != after
    assert model.module is module


def test_a_head_that_is_not_there_is_refused(zoo):
    with pytest.raises(InputError, match="heads 0 to 3"):
        zoo.head(0, 4)
    with pytest.raises(InputError, match="layers 0 to 3"):
        zoo.head(9, 0)


def test_the_module_is_built_once(monkeypatch):
    built = []
    build_module = loading.build_module

    def counted(*arguments, **options):
        built.append(arguments)
        return build_module(*arguments, **options)

    monkeypatch.setattr("orbitlens.running.model.build_module", counted)
    model = load("orbit-nano-none")
    assert model.module is model.module
    assert len(built) == 1


def test_a_twin_has_the_same_shapes_and_other_weights(zoo):
    twin, again = zoo.twin(3), zoo.twin(3)
    own = dict(zoo.module.named_parameters())
    for name, parameter in twin.module.named_parameters():
        assert parameter.shape == own[name].shape
    assert not torch.equal(twin.layer(0).w_q, zoo.layer(0).w_q)
    assert torch.equal(twin.layer(0).w_q, again.layer(0).w_q)
    state = torch.get_rng_state()
    zoo.twin(4)
    assert torch.equal(state, torch.get_rng_state())


def test_a_live_module_has_a_twin_too():
    module = build(BY_NAME["gpt2"]).float()
    twin = load(module).twin()
    assert type(twin.module) is type(module)
    assert not torch.equal(twin.layer(0).w_q, load(module).layer(0).w_q)


def test_evaluating_puts_every_mode_back(zoo):
    module = zoo.module
    module.train()
    first = next(module.children())
    first.eval()
    with zoo.evaluating() as running:
        assert not any(part.training for part in running.modules())
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    assert module.training and not first.training


def test_a_module_without_a_config_is_refused():
    with pytest.raises(InputError, match="no transformers config"):
        load(torch.nn.Linear(2, 2))


def test_pickled_weights_run_only_with_leave(tmp_path):
    module = build(BY_NAME["gpt2"]).float()
    module.config.architectures = [type(module).__name__]
    module.config.save_pretrained(tmp_path)
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="allow_pickle=True"):
        load(tmp_path)
    model = load(tmp_path, allow_pickle=True)
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        assert torch.allclose(model.module(ids)[0], module.eval()(ids)[0], atol=1e-6)


# --- what inputs mean ------------------------------------------------------------------------


def first_ids(model, given, **limits):
    chosen = limits_for(model, **limits)
    return next(batches_of(model, inputs_of(model, given), chosen))["input_ids"].tolist()


def test_a_string_strings_a_path_and_ids_mean_the_same_text(zoo, tmp_path):
    ids = zoo.tokenizer(TEXT)["input_ids"]
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    for given in (TEXT, [TEXT], ids, [ids], np.array(ids), torch.tensor(ids), torch.tensor([ids])):
        assert first_ids(zoo, given) == [ids]
    assert first_ids(zoo, file, context=len(ids)) == [ids]
    batch = {"input_ids": torch.tensor([ids]), "labels": torch.tensor([ids])}
    assert first_ids(zoo, batch) == first_ids(zoo, [batch]) == [ids]
    loader = torch.utils.data.DataLoader([batch], batch_size=None)
    assert first_ids(zoo, loader) == [ids]


def test_several_texts_are_contexts_of_their_own(zoo):
    limits = Limits(context=64, batch=8, max_tokens=1000)
    found = list(batches_of(zoo, inputs_of(zoo, ["abcdef", "ghijkl", "mnopqrst"]), limits))
    assert [b["input_ids"].shape for b in found] == [(2, 6), (1, 8)]


def test_nothing_means_the_passage_and_says_so(zoo):
    inputs = inputs_of(zoo, None)
    assert inputs.source is Source.TEXT
    assert "passage" in inputs.notes[0]


def test_a_model_without_a_tokenizer_gets_random_tokens_and_says_so(model_folder):
    inputs = inputs_of(load(model_folder("gpt2")), None)
    assert inputs.source is Source.RANDOM
    assert "random tokens" in inputs.notes[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "empty"),
        ([], "too short"),
        ([1.5, 2.0], "no token id"),
        ([-1, 2], "no token id"),
        ([True, False], "no token id"),
        (object(), "given as object"),
    ],
)
def test_what_is_no_input_is_refused(zoo, given, words):
    with pytest.raises(InputError, match=words):
        inputs_of(zoo, given)


def test_the_name_of_a_file_is_not_taken_for_text(zoo, tmp_path, monkeypatch):
    (tmp_path / "story.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"pathlib.Path\('story.txt'\)"):
        inputs_of(zoo, "story.txt")


def test_a_file_that_is_not_there_is_said_to_be_missing(zoo, tmp_path):
    with pytest.raises(InputError, match="no such file"):
        inputs_of(zoo, tmp_path / "none.txt")


def test_text_for_a_model_without_a_tokenizer_is_refused(model_folder):
    with pytest.raises(InputError, match=r"no tokenizer.*token ids"):
        inputs_of(load(model_folder("gpt2")), "some text")


def test_a_tokenizer_can_be_given(model_folder, zoo):
    model = load(model_folder("gpt2"), tokenizer=zoo.tokenizer)
    assert inputs_of(model, "some text").source is Source.TEXT


def test_a_short_text_makes_several_samples(zoo):
    rng = torch.Generator().manual_seed(0)
    samples = samples_of(zoo, inputs_of(zoo, "a few words"), 8, generator=rng)
    assert len(samples.items) >= 2
    assert samples.items.shape[1] >= 3


def test_batches_with_padding_become_samples_without_it(zoo):
    ids = torch.tensor([[1, 2, 3, 4, 0, 0], [5, 6, 7, 8, 9, 10]])
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    rng = torch.Generator().manual_seed(0)
    inputs = inputs_of(zoo, {"input_ids": ids, "attention_mask": mask})
    samples = samples_of(zoo, inputs, 4, length=4, generator=rng)
    assert samples.items.shape == (2, 4)
    assert 0 not in samples.items
