"""The pieces of the induction-heads study, on cases whose answer is known."""

import math
from dataclasses import replace

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens_papers.induction_heads import (
    chains,
    information,
    learning,
    model,
    random_lags,
    stages,
    two_layers,
)
from orbitlens_papers.induction_heads.chains import CHAINS, Chain
from orbitlens_papers.jobs import Job

PAIR = CHAINS["{1, 2}"]
GAP = CHAINS["{1, 3}"]


def slow_loss(chain, weights, degree, tokens):
    """The model as it is written down: place by place, head by head."""
    sets = model.head_sets(chain.window, degree)
    p, looks = model.shares(weights.c), model.lag_weights(weights.w)
    one_hot = torch.nn.functional.one_hot(tokens, chain.vocabulary).double()

    def seen(row, place):
        v = [
            sum(looks[h, i] * row[place - 1 - i] for i in range(chain.window))
            for h in range(chain.window)
        ]
        return [x / x.norm() for x in v]

    losses = []
    for ids, row in zip(tokens, one_hot, strict=True):
        query = seen(row, chain.length)
        places = range(chain.window, chain.length)
        scores = []
        for place in places:
            key = seen(row, place)
            scores.append(
                sum(
                    share * math.prod(float(query[h - 1] @ key[h - 1]) for h in heads)
                    for share, heads in zip(p, sets, strict=True)
                )
            )
        weight = torch.softmax(weights.a * torch.stack(scores), dim=0)
        right = torch.tensor([bool(ids[t] == ids[-1]) for t in places])
        losses.append(-torch.log(weight[right].sum() + model.FLOOR))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("chain", [replace(PAIR, length=12), replace(GAP, length=12)])
def test_counts_over_windows_are_the_model_place_by_place(chain, generator):
    found = chains.draw(chain, 5, generator)
    weights = model.first_weights(chain, 2)
    noise = torch.rand(weights.w.shape, generator=generator, dtype=torch.float64)
    c = torch.rand(weights.c.shape, generator=generator, dtype=torch.float64)
    weights = model.Weights(w=weights.w + noise, c=c, a=torch.tensor(3.0, dtype=torch.float64))
    fast = model.mean_loss(chain, weights, 2, chains.counts_of(chain, found.tokens))
    assert float(fast) == pytest.approx(
        float(slow_loss(chain, weights, 2, found.tokens)), rel=1e-12
    )


def test_a_perfect_head_is_the_ngram_estimator(generator):
    """One set, sharp lags, large a: the loss is -log of the share of matches that are right."""
    found = chains.draw(GAP, 400, generator)
    counts = chains.counts_of(GAP, found.tokens)
    sets = model.head_sets(GAP.window, 2)
    c = torch.zeros(len(sets), dtype=torch.float64)
    c[sets.index(GAP.parents)] = 1.0
    w = 200.0 * torch.eye(GAP.window, dtype=torch.float64)
    sharp = model.Weights(w=w, c=c, a=torch.tensor(200.0, dtype=torch.float64))
    table = model.features(GAP, w, [GAP.parents])[0]
    same = (table > 0.5).double()[counts.query]
    matches, right = (same * counts.total).sum(dim=1), (same * counts.right).sum(dim=1)
    kept = matches > 0
    wanted = -torch.log(right[kept] / matches[kept] + model.FLOOR).mean()
    few = chains.Counts(
        query=counts.query[kept], total=counts.total[kept], right=counts.right[kept]
    )
    assert float(model.mean_loss(GAP, sharp, 2, few)) == pytest.approx(float(wanted), rel=1e-9)


def test_sequences_follow_their_laws():
    """A law that copies the token at lag 2 does so; the other parent does not matter."""
    chain = replace(GAP, parents=(2,), alpha=1e-3, length=40)
    found = chains.draw(chain, 50, torch.Generator().manual_seed(1))
    nxt = found.laws.argmax(dim=-1)
    sure = found.laws.amax(dim=-1).amin(dim=1) > 0.999
    rows, tokens = found.tokens[sure], nxt[sure]
    foretold = tokens.gather(1, rows[:, chain.window - 2 : -2])
    assert sure.sum() > 10
    assert (foretold == rows[:, chain.window :]).double().mean() > 0.99


def test_shuffling_keeps_the_tokens_the_target_and_the_query(generator):
    tokens = chains.draw(PAIR, 20, generator).tokens
    mixed = chains.shuffled(tokens, generator)
    assert torch.equal(mixed.sort(dim=1).values, tokens.sort(dim=1).values)
    assert torch.equal(mixed[:, -1], tokens[:, -1])
    assert not torch.equal(mixed, tokens)
    asked = chains.counts_of(PAIR, mixed, tokens)
    assert torch.equal(asked.query, chains.counts_of(PAIR, tokens).query)


def test_the_law_beats_counting_and_counting_beats_single_tokens(generator):
    found = chains.draw(PAIR, 2000, generator)
    counts = chains.counts_of(PAIR, found.tokens)
    law = float(chains.true_loss(PAIR, found).mean())
    ngram, unigram = (
        float(chains.counting_loss(PAIR, counts, lags).mean()) for lags in (PAIR.parents, ())
    )
    assert law < ngram < 0.5 * unigram


def test_parents_outside_the_window_are_refused():
    with pytest.raises(InputError, match="lags from 1 to 2"):
        Chain(parents=(1, 3), window=2)
    with pytest.raises(InputError, match="more than 3 tokens"):
        Chain(parents=(1,), window=3, length=3)


def test_heads_that_start_alike_stay_alike(generator):
    """Nothing tells them apart: RPE is the only carrier of order."""
    setup = small(alike=True)
    counts = chains.counts_of(PAIR, chains.draw(PAIR, 100, generator).tokens)
    weights = model.first_weights(PAIR, 2, alike=True)
    for part in ("c", "w"):
        weights, _ = learning.descend(setup, weights, counts, (part,), [0.1] * 5)
    assert torch.allclose(weights.w, weights.w[:1].expand_as(weights.w), atol=1e-12)


def small(**what):
    setup = learning.ChainSetup(chain=PAIR, degree=2, n_train=400, n_test=200, steps=(150, 25, 120))
    return replace(setup, **what)


@pytest.fixture(scope="module")
def learnt():
    return {
        name: learning.learn(Job(setup=small(**what), seed=3))
        for name, what in stages.VARIANTS.items()
    }


def test_a_small_run_already_selects_copies_and_classifies(learnt):
    run = learnt["plain"]
    assert run["parents_share"] > 0.9
    assert run["copied"] > 0.9
    assert run["growth"] > 100
    assert run["test"]["model"] < 1.4 * run["test"]["ngram"]


def test_without_order_or_products_it_does_not(learnt):
    ngram = learnt["plain"]["test"]["ngram"]
    assert learnt["shuffled"]["test"]["model"] > 2 * ngram
    assert learnt["degree 1"]["test"]["model"] > 1.3 * ngram
    assert learnt["degree 1"]["parents_share"] == 0.0
    assert learnt["alike"]["copied"] < 0.6


def test_attention_goes_to_places_whose_parents_match(learnt):
    example = learnt["plain"]["example"]
    assert sum(example["attention"]) == pytest.approx(1.0)
    matched = sum(a for a, m in zip(example["attention"], example["match"], strict=True) if m)
    assert matched > 0.9 or not any(example["match"])


def test_a_scale_that_falls_has_not_grown():
    assert learning.growth([0.01, 0.21, 0.41]) == pytest.approx(41.0)
    assert learning.growth([0.01, 5.0, 4.99, 5.0]) == 0.0


def test_plain_descent_does_not_grow_where_there_is_nothing_to_learn(learnt):
    assert learnt["shuffled"]["growth"] < 100 < learnt["plain"]["growth"]


# --- information -----------------------------------------------------------------------------


def test_information_of_a_coin_that_copies_is_known():
    """x_t = x_{t-1}, both tokens as likely: chi-square is V - 1, modified half of it."""
    chain = Chain(parents=(1,), window=1, vocabulary=2, length=4)
    joint = torch.tensor([[[0.5, 0.0], [0.0, 0.5]]], dtype=torch.float64)
    assert information.information_of(chain, joint, (1,)) == pytest.approx((1.0, 0.5))


def test_independent_tokens_carry_none():
    chain = Chain(parents=(1,), window=2, vocabulary=2, length=4)
    e = torch.tensor([0.3, 0.7], dtype=torch.float64)
    joint = torch.einsum("i,j,e->jie", e, e, e).reshape(1, 4, 2)
    for lags in ((1,), (2,), (1, 2)):
        assert information.information_of(chain, joint, lags) == pytest.approx(
            (0.0, 0.0), abs=1e-12
        )


def test_a_useless_lag_adds_nothing_plain_and_costs_modified():
    """x_t = x_{t-1}; lag 2 equal to nothing: an independent coin beside it."""
    chain = Chain(parents=(1,), window=2, vocabulary=2, length=4)
    joint = torch.zeros(1, 2, 2, 2, dtype=torch.float64)  # lag 2, lag 1, next
    for lag_2 in range(2):
        for lag_1 in range(2):
            joint[0, lag_2, lag_1, lag_1] = 0.25
    joint = joint.reshape(1, 4, 2)
    alone, both = (information.information_of(chain, joint, lags) for lags in ((1,), (1, 2)))
    assert alone[0] == pytest.approx(both[0])
    assert both[1] == pytest.approx(alone[1] / 2)


def test_the_first_gradient_of_the_selector_is_the_modified_information(generator):
    """To first order in a, with sharp heads, the loss falls by a times modified information."""
    chain = replace(PAIR, length=3000, alpha=1.0)
    tokens = chains.draw(chain, 60, generator).tokens
    joint = information.following(chain, tokens)
    sharp = torch.eye(3, dtype=torch.float64) * 200
    sets = [(1, 2), (1,), (2, 3)]
    table = model.features(chain, sharp, sets)
    got, wanted = [], []
    for number, lags in enumerate(sets):
        a = torch.tensor(1e-4, dtype=torch.float64)
        weight = torch.exp(a * (table[number] - 1.0))
        base = joint.sum(dim=2)
        top = torch.einsum("qk,bke->bqe", weight, joint)
        share = top / torch.einsum("qk,bk->bq", weight, base)[..., None]
        flat = joint.sum(dim=1, keepdim=True)
        fall = (joint * (share.clamp_min(1e-300).log() - flat.clamp_min(1e-300).log())).sum((1, 2))
        got.append(float(fall.mean() / a))
        wanted.append(information.information_of(chain, joint, lags)[1])
    assert got == pytest.approx(wanted, rel=1e-2)


# --- random lags -----------------------------------------------------------------------------

LAGS = two_layers.LagSetup(lags=(8, 11, 14), symbols=14, length=28, width=16, steps=4, batch=4)


def test_sequences_come_back_after_their_own_lag(generator):
    drawn = two_layers.returning(LAGS, 40, generator)
    assert set(drawn.lags.tolist()) == set(LAGS.lags)
    for row, lag in zip(drawn.tokens, drawn.lags.tolist(), strict=True):
        assert torch.equal(row[lag:], row[:-lag])
        assert len(set(row[:lag].tolist())) == lag
    assert torch.equal(drawn.known.sum(dim=1), LAGS.length - 1 - drawn.lags)


def test_a_reordered_pass_has_the_same_tokens_and_none_in_its_place(generator):
    drawn = two_layers.returning(LAGS, 20, generator)
    other = two_layers.reordered(drawn, generator)
    rows = zip(drawn.tokens, other.tokens, drawn.lags.tolist(), strict=True)
    for before, after, lag in rows:
        first, second = before[:lag], after[lag : 2 * lag]
        assert torch.equal(after[:lag], first)
        assert torch.equal(second.sort().values, first.sort().values)
        assert not (second == first).any()


def test_an_induction_head_that_was_planted_is_found(generator):
    hand = two_layers.hand_set(LAGS)
    drawn = two_layers.returning(LAGS, 50, generator)
    same, reordered = two_layers.induction(hand, drawn, generator)
    assert same > 0.9
    assert reordered < 0.01
    assert two_layers.accuracy(hand, drawn) > 0.9


def test_a_head_that_looks_back_by_a_fixed_distance_does_not_pass_for_one(generator):
    """It predicts, and looks at the right place, as long as all lags are the same."""
    one_lag = replace(LAGS, lags=(11,))
    back = two_layers.hand_set(LAGS, distance=10)
    fixed = two_layers.returning(one_lag, 50, generator)
    same, reordered = two_layers.induction(back, fixed, generator)
    assert same == pytest.approx(1.0)
    assert reordered == pytest.approx(1.0)
    assert two_layers.accuracy(back, fixed) == 1.0
    assert two_layers.accuracy(back, two_layers.returning(LAGS, 50, generator)) < 0.8


def test_hiding_the_token_in_front_takes_the_copier_away_and_no_other_place_does(generator):
    hand = two_layers.hand_set(LAGS)
    drawn = two_layers.returning(LAGS, 50, generator)
    whole = two_layers.accuracy(hand, drawn)
    assert two_layers.accuracy(hand, drawn, hidden=1) < 0.2
    assert two_layers.accuracy(hand, drawn, hidden=2) == whole
    assert two_layers.in_front(hand, drawn)[0] == pytest.approx(1.0)


def test_a_place_that_is_hidden_gets_no_attention_and_the_future_none_ever(generator):
    net = two_layers.TwoLayers(LAGS, seed=1)
    drawn = two_layers.returning(LAGS, 3, generator)
    with torch.no_grad():
        _, seen = net(drawn.tokens, hidden=3)
    assert seen[0].diagonal(-3, -2, -1).max() == 0.0
    assert seen[1].diagonal(-3, -2, -1).min() > 0.0
    assert all(layer.triu(1).max() == 0.0 for layer in seen)


def test_a_short_run_is_judged_at_all_lags_and_repeats_itself():
    setup = replace(LAGS, lags=(8, 10), symbols=24, length=48)
    run, again = (random_lags.learn(Job(setup=setup, seed=5)) for _ in range(2))
    assert run == again
    assert sorted(map(int, run["by_lag"])) == list(range(8, 25))
    assert run["looks"][0]["step"] == 0.0
