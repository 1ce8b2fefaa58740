"""What weights say of their rotation: the zoo, planted faults, and layers that do not say."""

import math

import pytest
import torch

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.encodings.evidence import (
    BALANCED,
    DEVIANT,
    SURE,
    SURE_ALONE,
    Found,
    Rotated,
    layer_evidence,
    posterior,
    readings,
)
from orbitlens.encodings.rows import coordinate_order
from orbitlens.families.architecture import Pairing
from orbitlens.heads.layers import load_layer
from orbitlens.heads.scores import ScoreWeights, load_scores
from orbitlens.running.model import load

HALVES = Rotated(pairing=Pairing.HALVES, width=16)
NEIGHBOURS = Rotated(pairing=Pairing.NEIGHBOURS, width=16)


def scores_of(name):
    model = load(name)
    return [load_scores(model.checkpoint, k) for k in range(model.architecture.stacks[0].n_layers)]


def read(scores, **more):
    return readings([layer_evidence(each, "decoder", k, **more) for k, each in enumerate(scores)])


def converted(scores):
    """Return weights whose rows a conversion has put where neighbours pair up."""
    order = coordinate_order(Pairing.NEIGHBOURS, 16, 16).argsort()
    return ScoreWeights(spec=scores.spec, w_q=scores.w_q[..., order], w_k=scores.w_k[..., order])


def test_the_rotary_model_of_the_zoo_says_halves_in_every_layer():
    found = read(scores_of("orbit-nano-rotary"))
    assert [each.rotated for each in found] == [HALVES] * 4
    assert all(each.agrees for each in found)


@pytest.mark.parametrize("name", ["orbit-nano-none", "orbit-nano-alibi", "orbit-nano-learned"])
def test_the_others_say_that_they_were_not_rotated(name):
    found = read(scores_of(name))
    assert [each.found for each in found] == [Found.PLAIN] * 4
    assert all(each.agrees for each in found)


@pytest.mark.parametrize("layers", [(0, 1, 2, 3), (2,)])
def test_a_wrong_conversion_is_seen_in_the_layers_that_have_it(layers):
    given = [
        converted(s) if k in layers else s for k, s in enumerate(scores_of("orbit-nano-rotary"))
    ]
    found = read(given)
    assert [each.rotated for each in found] == [
        NEIGHBOURS if k in layers else HALVES for k in range(4)
    ]
    assert [each.agrees for each in found] == [k not in layers for k in range(4)]


def test_weights_without_training_do_not_say(generator):
    scores = [
        ScoreWeights(
            spec=each.spec,
            w_q=torch.randn(each.w_q.shape, generator=generator),
            w_k=torch.randn(each.w_k.shape, generator=generator),
        )
        for each in scores_of("orbit-nano-rotary")
    ]
    found = read(scores)
    assert [each.found for each in found] == [Found.UNKNOWN] * 4
    assert [each.agrees for each in found] == [None] * 4


def test_shuffles_within_heads_give_a_p_value():
    first = scores_of("orbit-nano-rotary")[:1]
    assert read(first, shuffles=19)[0].p_value == pytest.approx(1 / 20)
    none = scores_of("orbit-nano-none")[:1]
    assert read(none, shuffles=19)[0].p_value > 1 / 20


def test_stories260k_says_halves_in_every_layer(shared_model):
    folder = shared_model("stories260K-llama-hf")
    found = read(scores_of(folder))
    assert [str(each.rotated) for each in found] == ["halves, 8"] * 5


@pytest.mark.parametrize(
    "name", ["llama", "gpt_neox", "falcon-new", "qwen3", "olmo2", "gptj", "gemma2", "phi3"]
)
def test_queries_and_keys_are_those_of_the_layer(name, model_folder):
    checkpoint = load_checkpoint(model_folder(name))
    scores, layer = load_scores(checkpoint, 1), load_layer(checkpoint, 1)
    for w, whole, gains in (
        (scores.w_q, layer.w_q, layer.q_gains),
        (scores.w_k, layer.w_k, layer.k_gains),
    ):
        heads = whole.double().unflatten(1, (len(w), -1)).transpose(0, 1)
        expected = heads if gains is None else heads * gains[:, None]
        assert torch.allclose(w.double(), expected, atol=1e-6)


def test_latent_attention_gives_its_rotated_part_alone(model_folder):
    checkpoint = load_checkpoint(model_folder("deepseek_v2"))
    scores = load_scores(checkpoint, 0)
    latent = checkpoint.architecture.stacks[0].latent
    assert scores.w_q.shape[-1] == scores.w_k.shape[-1] == latent.d_rotary
    assert len(scores.w_k) == 1


# --- in the company of other layers ----------------------------------------------------------


def planted(spec, strength, seed, *, planes=True):
    """Return weights whose energy falls from plane to plane, in halves, or is the same in all.

    Keys are queries turned as a whole, so that they are balanced as training leaves them.
    """
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(4, 64, 16, generator=generator)
    if planes:
        q = q * (strength * torch.linspace(1, -1, 8)).exp().repeat(2)
    turned = torch.linalg.qr(torch.randn(64, 64, generator=generator)).Q
    return ScoreWeights(spec=spec, w_q=q, w_k=turned @ q)


def test_a_layer_with_few_marks_is_called_as_the_others_only_if_it_has_their_profile():
    spec = scores_of("orbit-nano-rotary")[0].spec
    sure = [planted(spec, 0.4, seed) for seed in (1, 2, 3)]
    faint, plain = planted(spec, 0.125, 4), planted(spec, 0.0, 9, planes=False)
    alone = read([faint])[0]
    assert alone.found is not Found.ROTARY
    among = read([*sure, faint, plain])
    assert [each.rotated for each in among[:4]] == [HALVES] * 4
    assert among[3].likeness > 3
    assert among[4].found is Found.PLAIN
    assert among[4].likeness < 1
    moved = read([*sure, converted(faint), converted(sure[0])])
    assert [each.rotated for each in moved[3:]] == [NEIGHBOURS] * 2


def balanced(spec, share, seed):
    """Return weights without planes, of whose energy a share is the same in queries and keys."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(4, 64, 16, generator=generator) for _ in range(2))
    shared = math.sqrt(share / (1 - share)) * torch.randn(4, 64, 1, generator=generator)
    signs = torch.randn(4, 1, 16, generator=generator).sign()
    return ScoreWeights(spec=spec, w_q=q + shared * signs, w_k=k + shared * signs)


def test_an_unrotated_layer_among_rotated_ones_lacks_their_profile_though_training_shows():
    spec = scores_of("orbit-nano-rotary")[0].spec
    sure = [planted(spec, 0.4, seed) for seed in (1, 2, 3)]
    found = read([*sure, balanced(spec, 0.2, 4), balanced(spec, 0.105, 5)])
    assert [each.rotated for each in found[:3]] == [HALVES] * 3
    assert [each.found for each in found[3:]] == [Found.PLAIN, Found.UNKNOWN]
    assert BALANCED < found[4].balance < found[3].balance < 0.8
    assert all(each.likeness < -5 for each in found[3:])


def test_one_layer_that_is_sure_and_wrong_misleads_no_other():
    """Of two sure layers a profile is taken; of one only if it is beyond doubt."""
    spec = scores_of("orbit-nano-rotary")[0].spec
    faint = [planted(spec, 0.05, seed) for seed in (4, 5)]
    weak = next(
        found
        for found in (converted(planted(spec, 0.16, seed)) for seed in range(30))
        if SURE < read([found])[0].odds < SURE_ALONE
    )
    among = read([*faint, weak])
    assert among[2].rotated == NEIGHBOURS
    assert [each.likeness for each in among[:2]] == [None] * 2  # nothing was borrowed
    assert all(each.rotated in {None, HALVES} for each in among[:2])
    beyond_doubt = read([*faint, planted(spec, 0.4, 1)])
    assert all(each.likeness is not None for each in beyond_doubt[:2])


def test_what_one_layer_says_of_another_is_worth_little_and_two_say_more():
    spec = scores_of("orbit-nano-rotary")[0].spec
    sure = [layer_evidence(planted(spec, 0.5, seed), "decoder", seed) for seed in (1, 2, 3)]
    silent = layer_evidence(planted(spec, 0.0, 9, planes=False), "decoder", 0)
    alone, one, three = (posterior(silent, sure[:n], None) for n in (0, 1, 3))

    def lean(nats):
        return nats[Pairing.HALVES] - nats[Pairing.NEIGHBOURS]

    bound = math.log((1 - DEVIANT) / (DEVIANT / 2))
    assert 0 < lean(one) - lean(alone) < lean(three) - lean(alone) < bound


def test_layers_that_share_their_weights_are_no_company():
    spec = scores_of("orbit-nano-rotary")[0].spec
    faint = planted(spec, 0.09, 4)
    found = read([faint, faint, faint])
    assert [each.likeness for each in found] == [None] * 3
    assert found[0].found is read([faint])[0].found


def test_balance_that_is_small_in_each_layer_counts_in_all_of_them(generator):
    spec = scores_of("orbit-nano-none")[0].spec

    def faintly_balanced(seed):
        drawn = planted(spec, 0.0, seed, planes=False)
        noise = torch.randn(drawn.w_k.shape, generator=generator)
        return ScoreWeights(spec=spec, w_q=drawn.w_q, w_k=0.60 * drawn.w_k + noise)

    layers = [faintly_balanced(seed) for seed in range(10, 14)]
    found = read(layers)
    assert all(each.balance < BALANCED for each in found)
    assert read(layers[:1])[0].found is Found.UNKNOWN
    assert [each.found for each in found] == [Found.PLAIN] * 4
