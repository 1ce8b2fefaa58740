"""The models of the package: there, small, readable by every command, and able to write words."""

import json
import re

import pytest
import torch
from safetensors import safe_open

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.checkpoint.zoo import zoo_model, zoo_names, zoo_path
from orbitlens.errors import InputError
from orbitlens.heads.layers import load_layer
from orbitlens.running.loading import build_module, fresh_module, load_tokenizer
from orbitlens.running.texts import passage
from small_llama import refused, run

NAMES = tuple(f"orbit-nano-{kind}" for kind in ("alibi", "learned", "none", "rotary"))
COMMON = set(
    "a all am and any are art as at ay be been but by can come could day death did do done down "
    "ever eye fair father for from give go god good grace great had hand hath have he hear heart "
    "heaven her here him his how i if in is it king know let life like lord love made make man may "
    "me men more most much must my myself name no none nor not now o of off old on one or our out "
    "own poor say see shall she should sir so some son soul speak stand such sweet take tell than "
    "that the thee their them then there these they thing think this those thou though thus thy "
    "time to true two unto up upon us very was we well were what when where which who whose why "
    "will wilt with woe word words world would yet you your".split()
)


def test_the_package_holds_four_small_models():
    assert zoo_names() == NAMES
    for name in NAMES:
        model = zoo_model(name)
        assert 100_000 <= model.parameters <= 200_000
        assert model.n_bytes <= 500_000
        assert model.position == name.removeprefix("orbit-nano-")


def test_models_differ_in_their_encoding_and_how_long_it_takes():
    runs = [zoo_model(name).recipe["run"] for name in NAMES]
    differing = {key for run_ in runs for key in run_ if run_[key] != runs[0][key]}
    assert differing == {"position", "steps"}  # without an encoding it takes longer
    checksums = {zoo_model(name).recipe["text_sha256"] for name in NAMES}
    assert len(checksums) == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_log_ends_where_the_recipe_says(name):
    recipe = zoo_model(name).recipe
    lines = (zoo_path(name) / "log.jsonl").read_text().splitlines()
    log = [json.loads(line) for line in lines]
    assert log[-1]["step"] == recipe["run"]["steps"]
    assert log[-1]["valid_loss"] < log[0]["loss"]
    assert abs(recipe["test_loss"] - recipe["test_loss_float32"]) < 0.01


def test_a_name_of_the_zoo_stands_for_a_model(tmp_path):
    checkpoint = load_checkpoint("orbit-nano-rotary")
    assert checkpoint.path == str(zoo_path("orbit-nano-rotary"))
    assert load_layer(checkpoint, 3).n_heads == 4
    file = tmp_path / "scan.json"
    assert run("scan", "orbit-nano-rotary", "--json", file).code == 0
    assert json.loads(file.read_text())["model"]["family"] == "orbit"


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    other = tmp_path / "orbit-nano-rotary"
    other.mkdir()
    for file in zoo_path("orbit-nano-none").iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert load_checkpoint("orbit-nano-rotary").stack().position.value == "none"


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(InputError, match="orbit-nano-alibi, orbit-nano-learned"):
        zoo_path("orbit-nano-polar")
    refused("zoo", "path", "../secrets", says=["not in the zoo", "orbit-nano-rotary"])
    with pytest.raises(InputError):
        zoo_path("orbit-nano-/../..")


def test_the_command_lists_models_and_paths(tmp_path):
    outcome = run("zoo", "list")
    assert all(name in outcome.out for name in NAMES)
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert run("zoo", "path", NAMES[0]).out.strip() == str(zoo_path(NAMES[0]))
    file = tmp_path / "zoo.json"
    run("zoo", "list", "--json", file)
    models = json.loads(file.read_text())["models"]
    assert [model["name"] for model in models] == list(NAMES)


def test_the_tokenizer_reads_characters_and_writes_them_back():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(zoo_path(NAMES[0]))
    text = "First Citizen:\nBefore we proceed, hear me speak.\n\n"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer("é")["input_ids"] == []
    with safe_open(zoo_path(NAMES[0]) / "model.safetensors", "pt") as file:
        assert file.get_tensor("lm_head.weight").shape[0] == len(tokenizer)


def loss_on_passage(model, tokenizer):
    ids = tokenizer(passage().read_text(encoding="utf-8"))["input_ids"][: 16 * 128]
    rows = torch.tensor(ids).reshape(16, 128)
    with torch.no_grad():
        return model(rows, labels=rows).loss.item()


@pytest.mark.parametrize("name", NAMES)
def test_a_trained_model_predicts_english_it_has_not_seen(name):
    model, tokenizer = build_module(zoo_path(name)), load_tokenizer(zoo_path(name))
    untrained = loss_on_passage(fresh_module(zoo_path(name), seed=0), tokenizer)
    assert untrained > 3.5
    assert loss_on_passage(model, tokenizer) < untrained - 1.0


def share_of_words(model, tokenizer):
    torch.manual_seed(0)
    start = tokenizer(["ROMEO:\n", "JULIET\n", "KING H:"], return_tensors="pt")
    written = model.generate(
        **start, max_new_tokens=120, do_sample=True, top_k=10, temperature=0.7, pad_token_id=0
    )
    words = re.findall(r"[a-z]+", " ".join(tokenizer.batch_decode(written[:, 7:])).lower())
    return sum(word in COMMON for word in words) / max(len(words), 1)


@pytest.mark.parametrize("name", NAMES)
def test_a_trained_model_writes_recognisable_words(name):
    model, tokenizer = build_module(zoo_path(name)), load_tokenizer(zoo_path(name))
    assert share_of_words(model, tokenizer) > 0.35
    assert share_of_words(fresh_module(zoo_path(name), seed=0), tokenizer) < 0.15
