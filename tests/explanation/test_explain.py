"""Explanations of predictions: of models whose answer is known, of encoders, of the lab's model."""

from types import SimpleNamespace

import pytest
import torch
import transformers

import orbitlens
from orbitlens.errors import InputError
from orbitlens.explanation.api import ExplainOptions, explain, nearest_tokens
from orbitlens.explanation.graph import AlikeError
from orbitlens.lab import OrbitConfig, OrbitForCausalLM

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
        vocab_size=20,
        max_position_embeddings=16,
        initializer_range=1.0,
        **more,
    )
    torch.manual_seed(0)
    return getattr(transformers, kind)._from_config(config, attn_implementation="eager").eval()


def lab(**switches):
    torch.manual_seed(0)
    config = OrbitConfig(
        vocab_size=12,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        initializer_range=0.5,
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
    found = explain(
        model, torch.tensor([3, 7, 2, 4]), target=3, options=ExplainOptions(mask_id=mask_id)
    )
    assert (found.prediction, found.tokens, found.changed_to) == (1, (1,), 0)
    assert found.calls == model.calls
    assert found.samples == 500
    assert any("structural equation model" in text for text in found.caveats)
    assert any("convention" in text for text in found.caveats)


def test_a_token_that_must_stay_stays_and_the_failure_is_said():
    found = explain(Stub(), torch.tensor([3, 7, 2, 4]), target=3, options=ExplainOptions(fixed=[1]))
    assert found.tokens == () and found.changed_to is None
    assert "No set that was tried" in found.caveats[-1]


def test_the_number_of_calls_is_bounded():
    model = Stub()
    explain(model, torch.tensor([3, 7, 2, 4]), target=3, options=ExplainOptions(max_calls=0))
    assert model.calls == 2


def test_long_sequences_keep_the_tokens_that_attend_like_the_target():
    attention = torch.eye(6, dtype=torch.float64)[None] + 0.01
    attention[0, 5, 2] = attention[0, 5, 0] = 1.0
    assert nearest_tokens(attention, 5, 3) == (0, 2, 5)
    found = explain(
        Stub(attention[0]), torch.tensor([7, 1, 2, 3, 4, 5]), target=5,
        options=ExplainOptions(max_nodes=3),
    )  # fmt: skip
    assert found.graphs[0].nodes == (0, 2, 5)
    assert any("3 of 6 tokens are not in the graph" in text for text in found.caveats)
    assert found.tokens == (0,)


def test_a_masked_language_model_is_explained_at_its_mask():
    model, ids = bert("BertForMaskedLM"), torch.tensor([1, 5, 3, MASK, 7, 2, 8])
    found = explain(model, ids, options=ExplainOptions(mask_id=MASK))
    assert found.target == 3 and len(found.graphs) == 2
    answer = [int(model(x).logits[0, 3].argmax()) for x in (ids[None], masked(ids, found.tokens))]
    assert found.tokens and answer == [found.prediction, found.changed_to]
    assert answer[0] != answer[1]


def test_a_classifier_is_explained_from_its_first_token():
    model = bert("BertForSequenceClassification", num_labels=3)
    inputs = {
        "input_ids": torch.tensor([[1, 5, 3, 6, 7, 2]]),
        "attention_mask": torch.ones(1, 6, dtype=torch.long),
    }
    found = explain(model, inputs, options=ExplainOptions(fixed=[0, 5]))
    assert found.target == 0 and not {0, 5} & set(found.tokens)
    inputs["attention_mask"][0, list(found.tokens)] = 0
    assert int(model(**inputs).logits.argmax()) == found.changed_to != found.prediction


def test_an_encoder_without_a_head_needs_scores():
    model, ids = bert("BertModel"), torch.tensor([1, 5, 3, 6, 7, 2])
    with pytest.raises(InputError, match="no logits"):
        explain(model, ids)
    found = explain(model, ids, options=ExplainOptions(scores=lambda out: out.pooler_output[0]))
    assert found.prediction == int(model(ids[None]).pooler_output[0].argmax())


def test_the_labs_model_is_explained_with_and_without_a_mask_token():
    model, ids = lab(mask="full"), torch.tensor([1, 5, 3, 8, 7, 2, MASK])
    found = explain(model, ids, options=ExplainOptions(mask_id=MASK))
    assert found.target == 6
    assert int(model(masked(ids, found.tokens)).logits[0, 6].argmax()) == found.changed_to
    hidden = explain(model, ids, target=6)
    assert hidden.prediction == found.prediction


@pytest.mark.parametrize("size", [2, 5])
def test_relabelling_tokens_relabels_the_explanation(size):
    model = lab(mask="full", position="none")
    ids = torch.tensor([1, 5, 3, 8, 7, 2, 4, MASK])
    order = torch.randperm(7, generator=torch.Generator().manual_seed(size)).tolist()
    base = explain(model, ids, options=ExplainOptions(mask_id=MASK))
    moved = explain(model, ids[[*order, 7]], options=ExplainOptions(mask_id=MASK))
    assert moved.prediction == base.prediction
    assert tuple(sorted(order[k] for k in moved.tokens)) == base.tokens
    assert moved.calls == base.calls


def test_the_reaction_model_is_explained(shared_model):
    from orbitlens.model import load_model

    model, _ = load_model(shared_model("rxnmapper-albert-hf"), attention="eager")
    words = (shared_model("rxnmapper-albert-hf") / "vocab.txt").read_text().splitlines()
    mask = words.index("[MASK]")
    ids = torch.tensor([words.index(w) for w in ["[CLS]", *"CC(=O)OCC", "[SEP]"]])
    ids[5] = mask
    found = explain(model, ids, options=ExplainOptions(mask_id=mask, fixed=[0, len(ids) - 1]))
    assert found.samples == 256 and len(found.graphs) == 8
    assert found.tokens
    changed = masked(ids, found.tokens, mask)
    assert int(model(changed).logits[0, 5].argmax()) == found.changed_to != found.prediction


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: explain(lab(mask="causal"), torch.tensor([1, 2, 3])), "attention is causal"),
        (lambda: explain(lab(mask="full").train(), torch.tensor([1, 2])), "training mode"),
        (lambda: explain(Stub(), torch.tensor([1.0, 2.0])), "no token ids"),
        (lambda: explain(Stub(), torch.ones(2, 3, dtype=torch.long)), r"shape \[2, 3\]"),
        (lambda: explain(Stub(), torch.tensor([1, 2, 3, 4]), target=4), "tokens are 0 to 3"),
        (
            lambda: explain(Stub(), torch.tensor([1, 2]), options=ExplainOptions(fixed=[2])),
            "no token 2",
        ),
        (
            lambda: explain(
                lab(mask="full"),
                torch.tensor([MASK, 1, MASK]),
                options=ExplainOptions(mask_id=MASK),
            ),
            r"2 positions, \[0, 2\]",
        ),
        (
            lambda: explain(
                Stub(), torch.tensor([1, 2, 3, 4]), options=ExplainOptions(max_nodes=1)
            ),
            "max_nodes is 1",
        ),
        (
            lambda: explain(
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
    model = Stub()
    model.__class__ = type("Silent", (Stub,), {"__call__": lambda s, **k: SimpleNamespace(
        logits=torch.zeros(1, 2), attentions=None)})  # fmt: skip
    with pytest.raises(InputError, match="eager"):
        explain(model, torch.tensor([1, 2, 3]))


def test_heads_without_a_graph_are_noted_and_all_of_them_refused():
    both = torch.stack([CHAIN, torch.full((4, 4), 0.25, dtype=torch.float64)])

    class Two(Stub):
        def __call__(self, **named):
            return SimpleNamespace(**{**vars(super().__call__(**named)), "attentions": (self.two,)})

    model = Two()
    model.two = both[None]
    found = explain(model, torch.tensor([3, 7, 2, 4]), target=3)
    assert list(found.graphs) == [0] and any("Head 1 has no graph" in c for c in found.caveats)
    model.two = both[None, 1:]
    with pytest.raises(AlikeError, match="no head"):
        explain(model, torch.tensor([3, 7, 2, 4]), target=3)


def test_the_package_offers_it_at_its_top():
    assert orbitlens.explain is explain
    assert orbitlens.graph_of_attention.__name__ == "graph_of_attention"
