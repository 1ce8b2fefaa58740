"""What the room Model says of a sentence is what the model does with it, and what traces say."""

import dataclasses

import pytest
import torch

import orbitlens as ol
from orbitlens.errors import InputError
from orbitlens.exploring.head_map import read_heads
from orbitlens.exploring.model_data import possible_cuts, read_attention, read_model
from orbitlens.exploring.passes import explored_of
from orbitlens.exploring.sentence import MOST_TOKENS, Prompt
from orbitlens.heads.attention import attention_pattern
from orbitlens.order.divergence import js_bits
from orbitlens.running.ablation import without_heads
from orbitlens.tracing.token_courses import context_states

WORDS = Prompt(text="To be, or not to be")


@pytest.fixture(scope="module")
def nano():
    return explored_of("orbit-nano-rotary")


@pytest.fixture(scope="module")
def reading(nano):
    return read_model(nano, WORDS, cuts=["head 1.2"])


def logits(nano, cut=()):
    ids = torch.tensor([nano.model.tokenizer(WORDS.text)["input_ids"]])
    with nano.model.evaluating() as module, without_heads(nano.model, cut):
        return module(input_ids=ids).logits[0, -1]


def test_the_prediction_and_its_change_are_the_models_own(nano, reading):
    before, after = logits(nano), logits(nano, [(1, 2)])
    assert reading.change == pytest.approx(float(js_bits(before, after)), rel=1e-3)
    top = before.double().softmax(-1).max().item()
    assert reading.before.outcomes[0].probability == pytest.approx(top, rel=1e-4)
    assert {o.name for o in reading.before.outcomes} == {o.name for o in reading.after.outcomes}
    assert reading.change > 0.05  # a cut that does something


def test_steps_and_heads_are_those_of_a_trace(nano, reading):
    traced = ol.trace(nano.model, WORDS.text)
    for layer in traced.layers:
        steps = {s.part: s.change for s in reading.before.steps if s.layer == layer.layer}
        assert steps["attention"] == pytest.approx(layer.directions.attention, abs=1e-5)
        assert steps["mlp"] == pytest.approx(layer.directions.mlp, abs=1e-5)
        shares = [head.share for head in layer.directions.heads]
        assert reading.before.heads[layer.layer] == pytest.approx(shares, abs=1e-5)


def test_steps_add_up_to_the_change_of_s(reading):
    for run in (reading.before, reading.after):
        whole = torch.tensor([1 - run.cosine[-1], 1 - run.cosine[0]]).double().log()
        assert sum(s.change for s in run.steps) == pytest.approx(
            float(whole[0] - whole[1]), abs=1e-4
        )


def test_a_head_that_is_cut_has_no_share(reading):
    assert reading.after.heads[1][2] == 0.0 != reading.before.heads[1][2]
    assert reading.after.heads[0] == reading.before.heads[0]  # nothing before it changes


def test_attention_is_what_the_heads_weights_say(nano):
    read = read_attention(nano, WORDS, 1)
    model = nano.model
    batch = {"input_ids": torch.tensor([model.tokenizer(WORDS.text)["input_ids"]])}
    states, _ = context_states(model, batch, model.architecture.stacks[0])
    layer = model.layer(1)
    expected = attention_pattern(layer, layer.normalise(states[1]))
    assert torch.allclose(torch.tensor(read.before, dtype=torch.float64), expected, atol=1e-5)


def test_without_the_mask_tokens_look_ahead(nano):
    read = read_attention(nano, WORDS, 0, cuts=["mask"])
    before, after = torch.tensor(read.before), torch.tensor(read.after)
    assert before.triu(1).abs().max() == 0.0 < after.triu(1).max()
    assert torch.allclose(after.sum(-1), torch.ones(()), atol=1e-4)


def test_without_positions_tokens_that_are_the_same_look_the_same_way(nano):
    given = Prompt(text="abcabcabc")
    after = torch.tensor(read_attention(nano, given, 0, cuts=["encoding", "mask"]).after)
    assert torch.allclose(after[:, 0], after[:, 3], atol=1e-5)
    before = torch.tensor(read_attention(nano, given, 0).before)
    assert not torch.allclose(before[:, 3], before[:, 6], atol=1e-3)


def test_every_cut_that_is_offered_runs(nano):
    names = possible_cuts(nano)
    assert len(names) == 4 * (4 + 2 + 2 + 1) + 1
    for name in ("norm final", "norm 2 mlp_norm", "block 3", "mlp 0", "attention 2"):
        assert name in names and read_model(nano, WORDS, cuts=[name]).change > 0


@pytest.mark.parametrize("cuts", [(), ("mask", "head 0.1")])
def test_python_that_is_copied_gives_the_same_numbers(nano, cuts):
    shown = read_model(nano, WORDS, cuts=cuts)
    found = {}
    exec(shown.python, found)
    assert found["reading"] == shown


def test_the_map_of_heads_is_the_verbs(nano):
    mapped = read_heads(nano)
    weights = [h for layer in ol.scan(nano.model).layers for h in layer.heads]
    assert [h.alignment for h in mapped.heads] == pytest.approx(
        [h.alignment_sigmas for h in weights], rel=1e-4
    )
    clear = [h for h in mapped.heads if abs(h.elsewhere) > mapped.clear]
    right = sum(h.predicted * h.elsewhere > 0 for h in clear)
    assert right > len(clear) / 2


# --- what people type ------------------------------------------------------------------------


def test_an_empty_text_is_answered(nano):
    for text in ("", "  \n "):
        with pytest.raises(InputError, match="empty"):
            read_model(nano, Prompt(text=text))


def test_a_hundred_thousand_characters_are_cut_and_said_so(nano):
    reading = read_model(nano, Prompt(text="To be. " * 14_286))
    assert len(reading.tokens) == MOST_TOKENS
    assert "100,002 characters were given; the first 64 tokens are run" in reading.notes


def test_characters_that_the_tokenizer_drops_are_named(nano):
    reading = read_model(nano, Prompt(text="🙂 to be 🙃"))
    assert any("🙂 🙃" in note for note in reading.notes)
    with pytest.raises(InputError, match=r"makes \d tokens of this text.*drops ש"):
        read_model(nano, Prompt(text="שלום"))


def test_half_a_character_is_refused(nano):
    with pytest.raises(InputError, match="surrogate"):
        read_model(nano, Prompt(text="to be \ud83d or not"))


def test_a_text_is_never_taken_for_a_file(nano, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "abcdef").write_text("secret")
    assert "".join(read_model(nano, Prompt(text="abcdef")).tokens) == "abcdef"


def test_equal_tokens_have_no_orbits(nano):
    with pytest.raises(InputError, match="all tokens are the same"):
        read_model(nano, Prompt(text="aaaa"))


def test_a_model_without_a_tokenizer_takes_ids(model_folder):
    model = explored_of(model_folder("llama-grouped"))
    with pytest.raises(InputError, match="no tokenizer"):
        read_model(model, Prompt(text="some words"))
    with pytest.raises(InputError, match="token id 40 is outside 0 to 39"):
        read_model(model, Prompt(ids="1 2 40"))
    with pytest.raises(InputError, match="no token id"):
        read_model(model, Prompt(ids="1, two, 3"))
    reading = read_model(model, Prompt(ids="5, 17 3 8"), cuts=["encoding"])
    assert reading.tokens == ("5", "17", "3", "8") and reading.change > 0


def test_a_vision_model_takes_a_sample_or_a_picture(model_folder):
    model = explored_of(model_folder("vit"))
    config = model.model.module.config
    noise = read_model(model, Prompt(sample=1), cuts=["head 0.0"])
    assert noise.tokens[0] == "class token" and "noise" in noise.notes[0]
    assert noise.after is not None
    n = config.num_channels * config.image_size**2
    picture = read_model(model, Prompt(levels=tuple(k * 7 % 256 for k in range(n))))
    assert picture.notes == () and len(picture.tokens) == len(noise.tokens)
    with pytest.raises(InputError, match="this model takes"):
        read_model(model, Prompt(levels=(1, 2, 3)))
    with pytest.raises(InputError, match="no mask"):
        read_model(model, Prompt(sample=0), cuts=["mask"])


def test_an_encoder_is_asked_behind_its_norms(model_folder):
    reading = read_model(model_folder("bert"), Prompt(ids="5 17 3 8 9"), cuts=["mlp 1", "block 0"])
    parts = [s.part for s in reading.before.steps if s.layer == 0]
    assert parts == ["attention", "norm", "mlp", "norm"]
    assert reading.after.cosine[0] == pytest.approx(reading.after.cosine[1], abs=1e-6)


def test_what_was_run_is_kept_and_forgotten(nano):
    assert dataclasses.replace(nano).kept is nano.kept and len(nano.kept) > 0
    other = explored_of("orbit-nano-rotary")
    read_model(other, WORDS)
    assert len(other.kept) == 1
    other.forget()
    assert not other.kept and not other.orders and not other.layers
