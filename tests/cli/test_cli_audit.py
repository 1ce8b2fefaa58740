"""`orbitlens audit` as a user meets it: results, files and refusals."""

import json
import re

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from orbitlens.errors import InputError
from orbitlens.running.inputs import inputs_of
from orbitlens.running.model import load
from orbitlens.running.samples import check_length, samples_of
from small_llama import refused, run

FAST = ("--samples", 6, "--permutations", 3)
WORDS = [f"w{k}" for k in range(30)]


@pytest.fixture
def model(tmp_path):
    """A tiny GPT-2 on disk, without a tokenizer."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=16,
        n_head=2,
        n_layer=2,
        vocab_size=40,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
    )
    folder = tmp_path / "model"
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def give_tokenizer(folder, *, adds):
    """Write a word tokenizer, which puts a token in front of texts if asked."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {"<s>": 0, "<unk>": 1, **{word: k + 2 for k, word in enumerate(WORDS)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if adds:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    wrapped.save_pretrained(folder)


def test_it_prints_the_square_the_shares_the_checks_and_a_sentence(model):
    outcome = run("audit", model, "--length", 8, *FAST)
    assert (outcome.code, outcome.err) == (0, "")
    assert max(map(len, outcome.out.splitlines())) <= 80
    for words in ("causal mask", "full attention", "without", "self-check", "by layer"):
        assert words in outcome.out
    shares = r"encoding \d+ % \(.+ to .+\) [█░]+ \d+ % \(.+ to .+\) mask"
    assert re.search(rf"{shares}|no shares: .*interaction", outcome.out)
    assert "sense of order" in outcome.out or "work against each other" in outcome.out
    assert "Asked for: the next token" in " ".join(outcome.out.split())
    assert "inputs are random tokens" in outcome.out


def test_without_a_text_a_passage_is_read_where_the_tokenizer_can(shared_model):
    outcome = run("audit", shared_model("stories260K-llama-hf"), "--length", 8, *FAST)
    assert outcome.code == 0
    assert "short English passage" in " ".join(outcome.out.split())
    assert "inputs are random tokens" not in outcome.out


def test_a_tokenizer_that_does_not_know_the_passage_gets_random_tokens(model):
    """It knows thirty words: nearly all of the passage would be one unknown token to it."""
    give_tokenizer(model, adds=False)
    outcome = run("audit", model, "--length", 8, *FAST)
    assert outcome.code == 0
    assert "inputs are random tokens" in outcome.out


def test_it_writes_json(model, tmp_path):
    file = tmp_path / "audit.json"
    outcome = run("audit", model, "--length", 8, *FAST, "--json", file, "--no-slices")
    assert outcome.code == 0
    data = json.loads(file.read_text())
    assert data["settings"]["samples"] == 6
    assert data["slices"] is None
    assert data["model"]["path"] == tmp_path.name  # a name, not where it lies; "model" is none
    printed = run("audit", model, "--length", 8, *FAST, "--json", "-", "--no-slices")
    again = json.loads(printed.out)
    assert again["cells"] == data["cells"]


def test_a_pipe_that_speaks_no_utf8_gets_a_plain_bar(model):
    outcome = run("audit", model, "--length", 8, *FAST, "--no-slices", encoding="ascii")
    assert outcome.code == 0
    assert "█" not in outcome.out


def test_tokens_that_the_tokenizer_adds_stay_in_place_and_are_named(model, tmp_path):
    give_tokenizer(model, adds=True)
    text = tmp_path / "text.txt"
    text.write_text(" ".join(WORDS * 3))
    outcome = run("audit", model, "--text", text, "--length", 8, *FAST, "--no-slices")
    assert outcome.code == 0
    assert "the tokenizer adds <s>" in outcome.out
    assert "tokens 1 to 6 permuted" in outcome.out


def test_text_becomes_windows_of_the_length_asked_for(model, tmp_path, generator):
    give_tokenizer(model, adds=False)
    text = tmp_path / "text.txt"
    text.write_text(" ".join(WORDS))
    opened = load(model)
    inputs = inputs_of(opened, text)
    samples = samples_of(opened, inputs, 50, length=5, generator=generator)
    assert samples.items.shape == (26, 5)
    assert (samples.items.diff(dim=1) == 1).all()
    assert samples.notes == ("only 26 different samples of this length were found; 50 were asked",)
    text.write_text(" ".join(WORDS[:10]))
    with pytest.raises(InputError, match="the text has 10 tokens, but samples of 11 need 11"):
        samples_of(opened, inputs, 2, length=11, generator=generator)


def test_without_a_tokenizer_lines_of_ids_are_read(model, tmp_path):
    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(" ".join(str((k * j) % 40) for j in range(9)) for k in range(20)))
    outcome = run("audit", model, "--text", ids, "--length", 8, *FAST, "--no-slices")
    assert outcome.code == 0
    assert "6 inputs (ids) of 8 tokens" in outcome.out


def test_bad_ids_are_refused_with_their_line(model, tmp_path, generator):
    ids = tmp_path / "ids.txt"
    ids.write_text("1 2 3\n1 two 3\n")
    refused("audit", model, "--text", ids, "--length", 3, says=["line 2", "no token id"])
    ids.write_text("1 2 3\n1 2 99\n")
    refused("audit", model, "--text", ids, "--length", 3, says=["99", "0 to 39"])
    opened = load(model)
    with pytest.raises(InputError, match="no row has 5 token ids"):
        samples_of(opened, inputs_of(opened, [1, 2, 3]), 2, length=5, generator=generator)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--length", 2), ["samples of 2 tokens", "at least 3"]),
        (("--length", 17), ["samples of 17 tokens", "positions for 16"]),
        (("--samples", 1), ["1 samples", "at least 2"]),
        (("--permutations", 0), ["0 permutations", "1 permutation"]),
        (("--text", "missing.txt"), ["--text missing.txt", "there is no such file"]),
        (("--images", "x.npy"), ["--images x.npy", "there is no such file"]),
        (("--images", __file__), ["reads text, not images"]),
    ],
)
def test_what_makes_no_sense_is_refused(model, options, says):
    refused("audit", model, *options, says=says)


def test_a_model_that_is_not_there_or_broken_is_refused(model, tmp_path):
    refused("audit", tmp_path / "nothing", says=["no such file"])
    save_file({"wte.weight": torch.zeros(2, 2)}, model / "model.safetensors")
    outcome = run("audit", model)
    assert outcome.code == 2
    assert "Traceback" not in outcome.err


def test_lengths_are_checked_against_the_table_of_positions(model):
    opened = load(model)
    assert check_length(16, opened) == 16
    with pytest.raises(InputError, match="Choose a length of 3 to 16"):
        check_length(17, opened)


def test_a_vision_model_is_audited_on_images(tmp_path):
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=16,
        image_size=12,
        patch_size=4,
        num_channels=1,
    )
    folder = tmp_path / "vit"
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    images = tmp_path / "images.npy"
    np.save(images, np.random.default_rng(0).normal(size=(9, 1, 12, 12)))
    outcome = run("audit", folder, "--images", images, *FAST)
    assert outcome.code == 0
    assert "6 inputs (images) of 9 tokens, tokens 0 to 8 permuted" in outcome.out
    np.save(images, np.zeros((3, 1, 8, 8)))
    refused("audit", folder, "--images", images, says=["[1, 8, 8]", "[1, 12, 12]"])
    np.save(images, np.zeros((3, 8)))
    refused("audit", folder, "--images", images, says=["[3, 8]", "expected images"])


@pytest.fixture
def filler(tmp_path):
    """A tiny RoBERTa that fills masks on disk, without a tokenizer."""
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        hidden_size=16,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=16,
        vocab_size=40,
        max_position_embeddings=14,
        initializer_range=0.5,
    )
    folder = tmp_path / "roberta"
    transformers.RobertaForMaskedLM(config).save_pretrained(folder)
    return folder


def test_a_masked_model_without_a_known_mask_token_is_not_asked(filler):
    refused("audit", filler, *FAST, says=["not asked", "no mask token is known", "vocab.txt"])


def test_a_masked_model_is_asked_at_several_places(filler):
    names = ["<s>", "<pad>", "</s>", "<mask>", *(f"w{k}" for k in range(36))]
    (filler / "vocab.txt").write_text("\n".join(names))
    outcome = run("audit", filler, *FAST, "--no-slices")
    assert outcome.code == 0
    words = " ".join(outcome.out.split())
    assert "of 12 tokens" in words  # ids start behind the padding id
    assert "Asked for: the token behind the mask, at positions 3, 6 and 9 in turn" in words
    assert "by construction" in words
    assert "causal mask" not in words  # it has none
    for place in (3, 6, 9):
        assert f"asked at position {place}" in words
    refused("audit", filler, "--length", 13, says=["positions for 12"])


# --- real weights ----------------------------------------------------------------------------


def test_the_sorter_does_not_care_in_which_order_its_digits_come(shared_model, tmp_path):
    file = tmp_path / "sorter.json"
    folder = shared_model("gpt-nano-sort-hf")
    outcome = run(
        "audit",
        folder,
        "--length",
        6,
        "--samples",
        64,  # few of its inputs need order
        "--permutations",
        16,
        "--no-slices",
        "--json",
        file,
    )
    assert outcome.code == 0
    data = json.loads(file.read_text())
    own = data["cells"]["pe_causal"]["mean_js_bits"]
    assert own < 1e-4  # the smallest digit does not depend on order
    assert data["layers"][-1]["defects"]["pe_causal"] > 0.1  # the states inside do
    assert data["cells"]["nope_causal"]["mean_js_bits"] > 10 * own
