"""Pieces of the causal-attention study: truths about graphs, sessions, and the search's account."""

import math
from itertools import combinations

import pytest
import torch

from orbitlens.explaining.api import ExplainOptions, explain_prediction
from orbitlens.explaining.graph import CausalGraph, Edge, Learner, Mark, graph_of_attention
from orbitlens.explaining.question import question_of
from orbitlens.explaining.search import Search
from orbitlens_papers.bench import Bench, Scale, Settings
from orbitlens_papers.causal_attention import STUDY, identity, recommending
from orbitlens_papers.causal_attention.edges import (
    edge_scores,
    expected_f1,
    most_attention,
    planted_graph,
)
from orbitlens_papers.causal_attention.explaining import Case, _by_weight, _row, case_of
from orbitlens_papers.causal_attention.linear import (
    Linear,
    ancestors,
    f1,
    random_linear,
    separated,
)
from orbitlens_papers.causal_attention.recommender import (
    Plan,
    all_predictions,
    gradient_times_input,
    train_recommender,
)
from orbitlens_papers.causal_attention.session_figure import edge_curves, on_circle
from orbitlens_papers.causal_attention.sessions import (
    BOUGHT,
    World,
    draw_sessions,
    random_world,
    renamed,
)
from orbitlens_papers.causal_attention.variation import alike


def linear(edges, n, n_latent=0):
    weights = torch.zeros(n, n, dtype=torch.float64)
    for parent, child in edges:
        weights[child, parent] = 0.8
    return Linear(weights=weights, n_latent=n_latent)


def pairs(*found):
    return frozenset(frozenset(pair) for pair in found)


# --- linear models ---------------------------------------------------------------------------


def test_separation_knows_chains_forks_and_colliders():
    chain, collider = linear([(0, 1), (1, 2)], 3), linear([(0, 2), (1, 2), (2, 3)], 4)
    assert not separated(chain.parents, 0, 2, []) and separated(chain.parents, 0, 2, [1])
    assert separated(collider.parents, 0, 1, [])
    assert not separated(collider.parents, 0, 1, [2]) and not separated(collider.parents, 0, 1, [3])


@pytest.mark.parametrize("seed", range(3))
def test_separation_is_a_partial_correlation_of_zero(seed):
    model = random_linear(6, generator=torch.Generator().manual_seed(seed))
    covariance = model.mixing() @ model.mixing().T
    for a, b in combinations(range(6), 2):
        for given in ([], [k for k in range(6) if k not in (a, b)][:2]):
            inverse = torch.linalg.inv(covariance[[a, b, *given]][:, [a, b, *given]])
            partial = abs(float(inverse[0, 1])) / math.sqrt(float(inverse[0, 0] * inverse[1, 1]))
            assert (partial < 1e-10) == separated(model.parents, a, b, given)


def test_a_latent_links_its_children_and_a_chain_does_not():
    hidden = linear([(0, 1), (0, 2), (2, 3)], 4, n_latent=1)
    assert hidden.edges() == pairs((1, 2))
    assert hidden.inseparable() == pairs((0, 1), (1, 2))


def test_an_inducing_path_runs_through_a_collider_that_causes_an_end():
    # L1 -> 0, L1 -> 1, L2 -> 1, L2 -> 2 and 1 -> 2: no set separates 0 and 2.
    model = linear([(0, 2), (0, 3), (1, 3), (1, 4), (3, 4)], 5, n_latent=2)
    assert model.inseparable() == pairs((0, 1), (1, 2), (0, 2))
    assert model.edges() == pairs((1, 2))


def test_direct_edges_are_never_separable_and_ancestors_are_transitive(generator):
    for _ in range(5):
        model = random_linear(6, generator=generator, n_latent=2)
        assert model.edges() <= model.inseparable()
        above = ancestors(model.parents)
        assert not above.diagonal().any()
        assert bool((((above.double() @ above.double()) > 0) <= above).all())


def test_scores_of_skeletons():
    assert f1(pairs((0, 1)), pairs((0, 1), (1, 2))) == pytest.approx(2 / 3)
    assert f1(frozenset(), frozenset()) == 1.0


def test_arrowheads_are_right_where_there_is_no_cause():
    model = linear([(0, 1), (1, 2)], 3)
    edges = (
        Edge(first=0, second=1, at_first=Mark.CIRCLE, at_second=Mark.ARROW),
        Edge(first=1, second=2, at_first=Mark.ARROW, at_second=Mark.CIRCLE),
    )
    row = identity._compared(CausalGraph((0, 1, 2), edges), model)
    assert (row["arrows"], row["arrows, right"]) == (2, 1)
    assert (row["recalled"], row["unlinked"]) == (2, 0)


# --- sessions --------------------------------------------------------------------------------


def test_a_session_has_no_item_twice_and_ends_with_something_bought(generator):
    world = random_world(20, 3, generator=generator)
    sessions, kinds = draw_sessions(world, 200, 9, generator=generator)
    assert all(len(set(session)) == 9 for session in sessions.tolist())
    assert set(kinds.tolist()) == {0, 1, 2}
    assert bool(world.bought[sessions[:, -1]].all())
    assert not bool(world.bought[sessions[:, :-1]].any())


def made_world(edges, n, bought=()):
    parents = torch.zeros(n, n, dtype=torch.bool)
    for parent, child in edges:
        parents[child, parent] = True
    ends = torch.zeros(n, dtype=torch.bool)
    ends[list(bought)] = True
    return World(parents=parents, tastes=torch.ones(1, n, dtype=torch.float64), bought=ends)


def test_each_parent_that_stands_earlier_raises_its_child_by_a_factor(generator):
    world = made_world([(0, 28), (1, 28)], 30, bought=(28, 29))
    sessions, _ = draw_sessions(world, 6000, 2, generator=generator)
    after = sessions[sessions[:, 0] == 0, 1]
    chance = math.exp(BOUGHT) / (math.exp(BOUGHT) + 1)
    share = float((after == 28).double().mean())
    assert abs(share - chance) < 4 * math.sqrt(chance * (1 - chance) / len(after))
    present = torch.zeros(1, 30, dtype=torch.bool)
    present[0, :2] = True
    both = world.weights(torch.tensor([0]), present, last=True)
    assert float(both[0, 28] / both[0, 29]) == pytest.approx(math.exp(2 * BOUGHT))
    assert world.parents_in(28, [4, 0, 2]) == (1,)


def test_edges_of_a_session_lead_from_earlier_to_later():
    world = made_world([(0, 1), (1, 2), (0, 3)], 4, bought=(3,))
    assert world.edges_in([0, 1, 2, 3]) == pairs((0, 1), (1, 2), (0, 3))
    assert world.edges_in([2, 1, 0, 3]) == pairs((2, 3))


def test_worlds_are_acyclic_and_other_names_keep_their_shape(generator):
    world = random_world(40, 3, generator=generator)
    assert not ancestors(world.parents).diagonal().any()
    assert int(world.bought.sum()) == 5 and not bool(world.parents[:, world.bought].any())
    other = renamed(world, generator=generator)
    assert sorted(other.parents.sum(1).tolist()) == sorted(world.parents.sum(1).tolist())
    assert torch.equal(other.bought, world.bought)
    assert not torch.equal(other.parents, world.parents)


def smallest_sets(world, sessions):
    """Return how many items decide for a reader who knows the world: means of tastes, all masks."""
    sizes = []
    tastes = world.tastes.mean(dim=0).log()[world.bought]
    for session in sessions[:, :-1]:
        evidence = BOUGHT * world.parents[world.bought][:, session].double()
        scores = tastes + evidence.sum(dim=1)
        for size in range(1, len(session) + 1):
            masked = (
                scores - evidence[:, list(k)].sum(dim=1) for k in combinations(range(9), size)
            )
            if any(int(left.argmax()) != int(scores.argmax()) for left in masked):
                break
        sizes.append(size)
    return sizes


def test_in_most_sessions_no_single_item_decides_unless_items_have_one_parent(generator):
    world = random_world(40, 3, generator=generator)
    sessions, _ = draw_sessions(world, 100, 10, generator=generator)
    sizes = smallest_sets(world, sessions)
    assert sum(size > 1 for size in sizes) > 50 and max(sizes) > 2
    lone = torch.zeros_like(world.parents)
    for item in world.bought.nonzero()[:, 0]:
        lone[item, world.parents[item].nonzero()[0, 0]] = True
    simple = World(parents=lone, tastes=world.tastes, bought=world.bought)
    drawn, _ = draw_sessions(simple, 100, 10, generator=generator)
    held = drawn[[bool(simple.parents_in(s[-1], s[:-1])) for s in drawn.tolist()]]
    assert sum(size == 1 for size in smallest_sets(simple, held)) > 0.7 * len(held)


# --- edges of the generator ------------------------------------------------------------------


def test_attention_made_from_edges_gives_them_back_and_random_attention_does_not(generator):
    true = pairs((0, 1), (1, 2), (3, 4), (4, 5), (2, 5))
    planted = planted_graph(true, 7, 64, 0.01)
    noise = torch.randn(1, 7, 7, generator=generator).double().softmax(dim=-1)
    random = [graph_of_attention(noise[0], 64, learner=Learner.ICD)]
    scores = edge_scores(true, noise, random, [random, random], planted)
    assert scores["planted"] > 0.8 > 0.6 > scores["random attention"]
    assert scores["trained"] == scores["random attention"] == scores["random again"]


def test_as_many_pairs_by_attention_and_at_random():
    attention = torch.zeros(4, 4)
    attention[2, 0], attention[1, 3], attention[3, 1] = 0.9, 0.5, 0.6
    assert most_attention(attention, 2) == pairs((1, 3), (0, 2))
    assert expected_f1(6, 3, 4) == pytest.approx(2 / 3)  # all pairs: precision 1/2, recall 1
    assert expected_f1(0, 0, 4) == 1.0


# --- the recommender -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained():
    plan = Plan(number=0, n_sessions=500, steps=20, batch=64, n_items=15)
    return train_recommender(plan)


def test_training_lowers_the_loss_and_repeats_exactly(trained):
    assert trained.losses[-1] < trained.losses[0]
    again = train_recommender(trained.plan)
    assert again.losses == trained.losses and again.hits == trained.hits
    assert 0 <= trained.hits <= 1 and trained.best > 1.5 / 15


def test_the_table_of_masks_is_what_the_model_predicts(trained):
    asked = torch.tensor([3, 1, 7, 5, 9, 11, 2, 15])
    prediction, table = all_predictions(trained, asked)
    subject = question_of(trained.model, asked, mask_id=15)
    assert len(table) == 2**7 - 1 and prediction == subject.prediction()
    for chosen in [(0,), (2, 5), (0, 1, 2, 3, 4, 5, 6)]:
        assert table[chosen] == subject.prediction(chosen)


def test_gradient_times_input_is_the_change_along_the_embedding(trained):
    asked = torch.tensor([3, 1, 7, 5, 9, 11, 2, 15])
    found = gradient_times_input(trained, asked, 4)
    vectors = trained.model.model.embed_tokens(asked[None]).detach().double()
    model = trained.model.double()
    step = 1e-6
    for place in (0, 4):
        ends = []
        for sign in (-1, 1):
            moved = vectors.clone()
            moved[0, place] *= 1 + sign * step
            ends.append(model(inputs_embeds=moved).logits[0, -1, 4].item())
        slope = abs(ends[1] - ends[0]) / (2 * step)
        assert float(found[place]) == pytest.approx(slope, rel=1e-3, abs=1e-5)
    trained.model.float()


def test_sets_in_the_order_of_attention():
    found = list(_by_weight(torch.tensor([0.1, 0.6, 0.3])))
    assert found == [(1,), (2,), (0,), (1, 2), (0, 1), (0, 2), (0, 1, 2)]


def test_a_search_that_fails_pays_for_an_exhaustive_one():
    case = Case(
        asked=torch.tensor([0, 1, 2, 9]),
        items=[0, 1, 2],
        prediction=5,
        table={},
        attention=torch.eye(4)[None].double(),
        graphs=[],
        found=Search(tokens=(0,), tried=4),
    )
    case.attention[0, 3] = torch.tensor([0.2, 0.5, 0.1, 0.2]).double()
    world, blank = made_world([(1, 5)], 6, bought=(5,)), made_world([], 6, bought=(5,))
    found = {
        "graph": (case.found, 2),
        "attention": (Search(tokens=None, tried=3), 2),
        "exhaustive": (Search(tokens=(0,), tried=6), 1),
    }
    row = _row(case, found, world, [blank])
    assert row["sizes"] == {"graph": 1, "attention": 3, "exhaustive": 1}
    assert row["calls"] == {"graph": 6, "attention": 11, "exhaustive": 7}
    assert row["hits"]["graph"] == 0.0 and row["hits"]["attention, as many"] == 1.0
    assert row["wrong hits"] is None


def test_a_case_is_what_the_library_explains(trained, generator):
    session = draw_sessions(trained.world, 1, 8, generator=generator)[0][0]
    case = case_of(trained, session)
    options = ExplainOptions(mask_id=15, learner=Learner.ICD)
    same = explain_prediction(trained.model, case.asked, options=options)
    assert (same.prediction, same.tokens) == (case.prediction, case.found.tokens or ())
    assert same.calls == case.found.tried + 2
    assert list(same.graphs.values()) == case.graphs


def test_likeness_of_graphs():
    edge = {"at_first": Mark.CIRCLE, "at_second": Mark.CIRCLE}
    one = CausalGraph((0, 1, 2), (Edge(first=0, second=1, **edge),))
    two = CausalGraph((0, 1, 2), (*one.edges, Edge(first=1, second=2, **edge)))
    assert alike(one, two) == 0.5 and alike(one, one) == 1.0
    assert alike(CausalGraph((0, 1), ()), CausalGraph((0, 1), ())) == 1.0


# --- the study -------------------------------------------------------------------------------


def test_plans_differ_by_seed_and_the_full_scale_is_larger(tmp_path):
    benches = {scale: Bench(Settings(scale=scale), tmp_path) for scale in Scale}
    plans = {scale: recommending._plan(bench, 0) for scale, bench in benches.items()}
    assert (plans[Scale.FULL].layers, plans[Scale.FULL].n_items) == (4, 200)
    assert plans[Scale.DEFAULT].n_sessions == 10_000
    assert recommending._plan(benches[Scale.DEFAULT], 1).number != plans[Scale.DEFAULT].number


def test_the_papers_own_data_are_not_implied(tmp_path):
    outcome = recommending.paper_data(Bench(Settings(scale=Scale.SMOKE), tmp_path))
    assert "MovieLens" in outcome.obstacle and outcome.result is None
    assert {claim.key for claim in STUDY.claims if claim.core} == {
        "1a", "1b", "2a", "2b", "3a", "3b", "3c", "4b"
    }  # fmt: skip


def test_edges_are_drawn_between_tokens_with_their_marks():
    places = on_circle(4)
    assert places[0] == pytest.approx((0.0, 1.0)) and places[1] == pytest.approx((1.0, 0.0))
    line, ring, head = edge_curves(places[0], places[2], ("o", ">"))
    assert max(line.y) < 1.0 and min(line.y) > -1.0
    assert len(ring.x) > 3 and len(head.x) == 3
    assert (head.x[1], head.y[1]) == pytest.approx((line.x[1], line.y[1]))
