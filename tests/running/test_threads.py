"""The rule for threads: by the size of the work, in one place, put back afterwards."""

import threading
from pathlib import Path

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

import orbitlens
from orbitlens.flows._fast.head_mixing import HeadMixing
from orbitlens.flows.integrate import integrate_flow
from orbitlens.running import threads
from orbitlens.running.threads import NARROW_LAYER, SMALL_MODEL, SMALL_PART
from orbitlens.tracing import api as tracing
from slow_flow import random_system


@pytest.fixture(autouse=True)
def two_threads():
    with threads.torch_threads(2):
        yield
        assert torch.get_num_threads() == 2  # whatever ran has put them back


def test_a_small_model_runs_on_one_thread_and_a_large_one_on_all():
    with threads.threads_for(SMALL_MODEL - 1):
        assert torch.get_num_threads() == 1
    with threads.threads_for(SMALL_MODEL):
        assert torch.get_num_threads() == 2


def test_tokens_of_narrow_layers_are_worked_on_by_one_thread_and_of_wide_ones_by_all():
    with threads.threads_for_layers(NARROW_LAYER):
        assert torch.get_num_threads() == 1
    with threads.threads_for_layers(NARROW_LAYER + 1):
        assert torch.get_num_threads() == 2


def test_a_trace_of_a_large_narrow_model_sums_up_on_one_thread(monkeypatch):
    seen = []
    whole = tracing.assembled

    def assembled(*args):
        seen.append(torch.get_num_threads())
        return whole(*args)

    monkeypatch.setattr(threads, "SMALL_MODEL", 0)
    monkeypatch.setattr(tracing, "assembled", assembled)
    orbitlens.trace("orbit-nano-none", options=orbitlens.TraceOptions(max_tokens=256))
    assert seen == [1]


def test_a_flow_of_few_pairs_runs_on_one_thread_and_one_of_many_on_all():
    with threads.threads_for_pairs(2 * SMALL_PART - 1):
        assert torch.get_num_threads() == 1
    with threads.threads_for_pairs(2 * SMALL_PART):
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("n_tokens", "expected"), [(8, 1), (320, 2)])
def test_wide_heads_are_simulated_by_the_same_rule(monkeypatch, n_tokens, expected):
    seen, made = set(), HeadMixing.__init__

    def noting(self, *given, **named):
        made(self, *given, **named)
        seen.add(self.n_threads)

    monkeypatch.setattr(HeadMixing, "__init__", noting)
    system, tokens = random_system(n=n_tokens, d=72, r=72)
    integrate_flow(system, tokens, until=0.01)
    assert seen == {expected}


def test_threads_are_put_back_when_the_work_fails():
    with pytest.raises(ValueError), threads.threads_for(1):
        raise ValueError


def at_work(_):
    return threading.get_ident(), torch.get_num_threads()


def test_narrow_layers_run_side_by_side_on_a_thread_each():
    both = threading.Barrier(2, timeout=30)  # broken unless two run at once

    def layer(k):
        both.wait()
        return k, *at_work(k)

    found = list(threads.each_layer(layer, range(4), width=NARROW_LAYER))
    assert [k for k, _, _ in found] == [0, 1, 2, 3]
    assert len({ident for _, ident, _ in found}) == 2
    assert {n for _, _, n in found} == {1}


def test_wide_layers_run_one_by_one_on_all_threads():
    here = threading.get_ident()
    found = list(threads.each_layer(at_work, range(3), width=NARROW_LAYER + 1))
    assert found == [(here, 2)] * 3


def test_where_there_is_one_thread_nothing_runs_beside():
    with threads.torch_threads(1):
        assert list(threads.each_layer(at_work, [0], width=8)) == [(threading.get_ident(), 1)]


@pytest.mark.parametrize(
    ("n_pairs", "n_threads", "uneven", "expected"),
    [
        (2 * SMALL_PART - 1, 2, False, 1),
        (2 * SMALL_PART, 2, False, 2),
        (2 * SMALL_PART, 2, True, 2),
        (100 * SMALL_PART, 2, True, 8),
        (100 * SMALL_PART, 1, True, 1),
    ],
)
def test_pairs_are_shared_out_where_each_part_is_worth_a_thread(
    n_pairs, n_threads, uneven, expected
):
    assert threads.n_parts(n_pairs, n_threads, uneven=uneven) == expected


def test_every_part_is_done_once():
    done = []
    threads.do_parts(lambda begin, end: done.append((begin, end)), [(0, 3), (3, 5), (5, 9)], 2)
    assert sorted(done) == [(0, 3), (3, 5), (5, 9)]


def test_nobody_else_sets_threads():
    root = Path(orbitlens.__file__).parent
    setting = {
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        if "set_num_threads" in file.read_text("utf-8")
    }
    assert setting == {"running/threads.py", "running/workers.py"}  # the latter: whole processes


def test_numpy_keeps_to_the_threads_it_is_given_and_gets_them_back():
    def found():
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        before = found()
        with threads.numpy_threads(1):
            assert found() == {1}
        assert found() == before
