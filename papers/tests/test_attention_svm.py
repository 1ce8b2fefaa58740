"""The attention-SVM study, on cases whose answer is known."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
import torch

from orbitlens.errors import InputError, MissingPackageError
from orbitlens_papers.attention_svm import choices, directions, margin, nonlinear, problems
from orbitlens_papers.attention_svm.margin import Norm
from orbitlens_papers.attention_svm.problems import Descent, Problems, Sizes
from orbitlens_papers.bench import Bench, Scale, Settings

EYE = torch.eye(2, dtype=torch.float64)


@pytest.fixture
def bench(tmp_path):
    return Bench(Settings(scale=Scale.SMOKE, seeds=1), tmp_path)


@pytest.fixture
def drawn(generator):
    return problems.draw(3, generator)


def one_sample():
    """Tokens e1 and -e1, query e1: W must have w11 >= 1/2, and nothing else."""
    return torch.stack([EYE[0], -EYE[0]])[None], EYE[:1], torch.tensor([0])


# --- the model -------------------------------------------------------------------------------


def test_scores_are_the_bilinear_form_of_token_and_query(drawn):
    w = torch.randn(3, 10, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = problems.scores_of(drawn, w)[1, 2, 3]
    assert found == pytest.approx(float(drawn.tokens[1, 2, 3] @ w[1] @ drawn.queries[1, 2]))


def test_the_loss_is_the_logistic_loss_of_the_attended_value(drawn):
    w = torch.randn(3, 10, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weights = problems.scores_of(drawn, w).softmax(dim=-1)
    output = (weights * problems.values_of(drawn)).sum(dim=-1)
    expected = torch.log1p(torch.exp(-drawn.labels * output)).mean(dim=-1)
    assert torch.allclose(problems.losses(drawn, w), expected, rtol=1e-12)


def test_the_written_out_gradient_is_that_of_the_loss(drawn):
    w = torch.randn(3, 10, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    w = (3 * w).requires_grad_()
    problems.losses(drawn, w).sum().backward()
    found = problems._gradient(drawn, w.detach(), problems.values_of(drawn))
    assert torch.allclose(found, w.grad, rtol=1e-9, atol=1e-15)


def test_gradients_survive_where_softmax_has_rounded_to_one():
    """Two tokens of values 0 and -1, scores apart by 100: dL/ds is exp(-100) times a half."""
    tokens = torch.stack([EYE[0], -EYE[1]])[None, None]
    one = Problems(
        tokens=tokens, queries=EYE[:1][None], labels=torch.ones(1, 1).double(), head=EYE[1:]
    )
    w = torch.tensor([[[50.0, 0.0], [50.0, 0.0]]], dtype=torch.float64)
    found = problems._gradient(one, w, problems.values_of(one))
    assert found[0, 0, 0].item() == pytest.approx(-0.5 * np.exp(-100), rel=1e-9)


def test_tokens_queries_and_heads_lie_on_the_sphere(drawn):
    for part in (drawn.tokens, drawn.queries, drawn.head):
        assert torch.allclose(part.norm(dim=-1), torch.ones(1).double())
    assert set(drawn.labels.unique().tolist()) == {-1.0, 1.0}


def test_descent_side_by_side_is_descent_one_by_one(drawn, generator):
    beginning = problems.start(drawn, generator, factored=True)
    together = problems.descend(drawn, beginning, Descent(steps=40, factored=True)).end
    alone = replace(
        drawn,
        tokens=drawn.tokens[1:2],
        queries=drawn.queries[1:2],
        labels=drawn.labels[1:2],
        head=drawn.head[1:2],
    )
    single = problems.descend(alone, [b[1:2] for b in beginning], Descent(steps=40, factored=True))
    assert torch.allclose(together[1:2], single.end, rtol=1e-10)


def test_a_path_keeps_its_start_its_looks_and_its_end(drawn, generator):
    beginning = problems.start(drawn, generator, factored=False)
    path = problems.descend(drawn, beginning, Descent(steps=5), (0, 3))
    assert path.steps == (0, 3, 5)
    assert torch.equal(path.matrices[0], beginning[0])


def test_norms_and_ranks_of_known_matrices():
    w = torch.stack([EYE, torch.diag(torch.tensor([3.0, 1e-4])).double()])
    assert problems.nuclear_norm(w).tolist() == pytest.approx([2**0.5, 1.0], abs=1e-3)
    assert problems.ranks(w).tolist() == [2, 1]


# --- the solver ------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", list(Norm))
def test_the_solution_of_one_pair_of_tokens_is_known(norm):
    found = margin.solve(*one_sample(), norm=norm)
    assert found.w == pytest.approx(np.array([[0.5, 0.0], [0.0, 0.0]]), abs=1e-5)
    assert abs(found.gap) < 1e-6


def test_norms_differ_where_they_should():
    """Pairs ±e1 for query e1 and ±e2 for e2: the diagonal; nuclear 1, Frobenius 1/sqrt 2."""
    tokens = torch.stack([torch.stack([EYE[k], -EYE[k]]) for k in (0, 1)])
    for norm in Norm:
        found = margin.solve(tokens, EYE, torch.tensor([0, 0]), norm=norm).w
        assert np.diag(found) == pytest.approx([0.5, 0.5], abs=1e-4)
    assert margin.size_of(found, Norm.NUCLEAR) == pytest.approx(1.0, abs=1e-4)


def test_two_solvers_and_a_classifier_agree(drawn):
    sample = drawn.tokens[0], drawn.queries[0], drawn.optimal()[0]
    inner = margin.solve(*sample, norm=Norm.NUCLEAR)
    other = margin.solve(*sample, norm=Norm.NUCLEAR, solver="SCS")
    assert inner.w == pytest.approx(other.w, abs=1e-3 * np.abs(inner.w).max())
    frobenius = margin.solve(*sample, norm=Norm.FROBENIUS).w
    assert margin.by_classifier(*sample) == pytest.approx(frobenius, rel=1e-2, abs=1e-2)


def test_the_other_norm_s_solution_is_not_the_best(drawn):
    sample = drawn.tokens[0], drawn.queries[0], drawn.optimal()[0]
    w = margin.solve(*sample, norm=Norm.FROBENIUS).w
    assert margin.gap_of(w, *sample, norm=Norm.NUCLEAR) > 1e-2
    assert abs(margin.gap_of(w, *sample, norm=Norm.FROBENIUS)) < 1e-5


def test_any_multipliers_bound_the_norm_from_below(drawn):
    sample = drawn.tokens[0], drawn.queries[0], drawn.optimal()[0]
    least = margin.size_of(margin.solve(*sample, norm=Norm.NUCLEAR).w, Norm.NUCLEAR)
    features = margin._features(sample[0], sample[1].numpy(), sample[2])
    assert margin.lower_bound(features, np.ones(len(features)), norm=Norm.NUCLEAR) < least


def test_tokens_that_nothing_separates_are_refused():
    twice = torch.stack([EYE[0], EYE[0]])[None]
    with pytest.raises(InputError, match="no matrix separates"):
        margin.solve(twice, EYE[:1], torch.tensor([0]), norm=Norm.FROBENIUS)


def test_without_the_extra_claims_name_it_and_others_still_run(bench, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "cvxpy" else find(name)
    )
    assert "pip install cvxpy" in directions.converges(bench, kind="plain").obstacle
    assert choices.picks_best(bench).result is not None
    with pytest.raises(MissingPackageError, match="cvxpy"):
        margin.solve(*one_sample(), norm=Norm.FROBENIUS)


# --- claims ----------------------------------------------------------------------------------


def test_drops_are_counted_in_standard_errors():
    assert choices.drops([(10, 100), (90, 100)])[0] < -10
    assert choices.drops([(90, 100), (10, 100)])[0] > 10
    assert choices.drops([(5, 5), (5, 5)]) == [0.0]


def test_redrawn_labels_differ_in_every_problem(bench):
    runs = directions.runs_of(bench)
    assert (runs.redrawn != runs.problems.labels).any(dim=1).all()


def test_the_smallest_problem_finds_its_rays(bench):
    data = choices._picture(bench)
    for kind in ("plain", "factored"):
        end, ray = (np.array(data[n][kind]) for n in ("paths", "rays"))
        cosine = (end[-1] * ray).sum() / np.linalg.norm(end[-1]) / np.linalg.norm(ray)
        assert cosine > 0.9


def test_sizes_are_those_asked_for(generator):
    found = problems.draw(2, generator, Sizes(samples=2, tokens=3, width=5))
    assert found.tokens.shape == (2, 2, 3, 5)
    assert found.width == 5


# --- a nonlinear head ------------------------------------------------------------------------


def test_the_gradient_under_a_nonlinear_head_is_that_of_the_loss(generator):
    task = nonlinear.draw_task(3, 6, generator)
    w = torch.randn(3, 6, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    weights = problems.scores_of(task.problems, w).softmax(dim=-1)
    attended = torch.einsum("pst,pstd->psd", weights, task.problems.tokens)
    loss = torch.nn.functional.softplus(-task.problems.labels * task.worth(attended))
    loss.mean(dim=1).sum().backward()
    assert torch.allclose(nonlinear.gradient(task, w.detach()), w.grad, atol=1e-14)


def test_some_label_is_negative_in_every_problem(generator):
    assert (nonlinear.draw_task(50, 4, generator).problems.labels < 0).any(dim=1).all()


def test_the_best_token_is_the_one_the_head_is_worth_most_to(generator):
    task = nonlinear.draw_task(2, 4, generator)
    best = task.best(task.problems.labels)
    token = task.problems.tokens[1, 0]
    values = task.problems.labels[1, 0] * (token @ task.heads[1]).relu().sum(dim=1)
    assert best[1, 0] == values.argmax()


def test_the_svm_of_sets_is_that_of_single_tokens_where_each_set_has_one(drawn):
    best = drawn.optimal()[0]
    kept = torch.nn.functional.one_hot(best, problems.N_TOKENS).bool()
    found = margin.solve_sets(drawn.tokens[0], drawn.queries[0], kept)
    single = margin.solve(drawn.tokens[0], drawn.queries[0], best, norm=Norm.FROBENIUS).w
    assert np.allclose(found, single, atol=1e-5)


def test_tokens_kept_on_top_have_one_score_and_the_others_are_one_below(drawn):
    kept = torch.zeros(6, 8, dtype=torch.bool)
    kept[:, 1] = kept[:, 4] = True
    kept[2] = True  # a sample that keeps all asks for nothing but equal scores
    w = margin.solve_sets(drawn.tokens[0], drawn.queries[0], kept)
    scores = torch.einsum("std,de,se->st", drawn.tokens[0], w, drawn.queries[0])
    assert torch.allclose(scores[:, 1], scores[:, 4], atol=1e-6)
    assert float(scores[2].std()) < 1e-6
    others = ~kept
    others[2] = False
    assert float((scores[:, 1:2] - scores)[others].min()) >= 1 - 1e-6


def test_a_set_that_nothing_keeps_on_top_has_no_svm():
    tokens = torch.stack([EYE[0], 0.5 * EYE[0], -EYE[0]])[None]
    kept = torch.tensor([[False, True, False]])  # between the two others on a line
    assert margin.solve_sets(tokens, EYE[:1], kept) is None


def test_an_end_is_clear_where_weights_stay_or_have_gone():
    weights = torch.tensor(
        [[[0.5, 0.5, 0.0]], [[0.5, 0.4999, 1e-4]], [[0.3, 0.3, 0.4]]], dtype=torch.float64
    )
    assert nonlinear.clear(weights).tolist() == [True, False, False]


def test_seeds_without_a_settled_problem_leave_the_claim_open(bench, monkeypatch):
    end = nonlinear.Ends(
        width=4, drawn=1, seeds=[], cosines={"shared": [], "single": [], "redrawn": []},
        mixed=[], best=[], other=[], alone=[],
    )  # fmt: skip
    monkeypatch.setattr(nonlinear, "ends_of", lambda bench: [end])
    for measure in (
        nonlinear.goes_to_general_svm,
        nonlinear.beats_single_tokens,
        nonlinear.picks_best,
    ):
        assert measure(bench).result is None
