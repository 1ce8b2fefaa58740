"""The server answers its own page and nobody else, a question at a time, and lets go at the end."""

import gc
import http.client
import json
import re
import socket
import threading
import time
import weakref

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from orbitlens.errors import InputError
from orbitlens.exploring import answers, server
from orbitlens.exploring.answers import Pace, PageWork, cost_words, question_of
from orbitlens.exploring.connections import MOST_CONNECTIONS
from orbitlens.exploring.jobs import MOST_WAITING, Job, Worker
from orbitlens.exploring.passes import Explored, explored_of
from orbitlens.exploring.server import MOST_BYTES, ExplorerServer

FAST = Pace(call=0.0, token=0.0)


@pytest.fixture(scope="module")
def nano():
    return explored_of("orbit-nano-rotary")


@pytest.fixture
def serving(nano):
    found = ExplorerServer(nano, "<!DOCTYPE html><p>page</p>").start()
    found.pace = FAST
    yield found
    found.http.shutdown()
    found.http.server_close()
    found.worker.close()


def send(serving, method="POST", path="/api/model", body=b"{}", **headers):
    """Return status, headers and body of one request; None takes a header away."""
    own = {"Host": f"127.0.0.1:{serving.port}", "X-Token": serving.token}
    own |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    own |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=60)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in own.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(body if method == "POST" else None)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), data


def ask(serving, name, **parameters):
    status, _, data = send(serving, path=f"/api/{name}", body=json.dumps(parameters).encode())
    assert status == 200, data
    return [json.loads(line) for line in data.splitlines()]


def page_path(serving):
    return f"/?token={serving.token}"


# --- who may ask -----------------------------------------------------------------------------


def test_the_page_comes_with_its_token_and_not_without(serving):
    status, headers, data = send(serving, "GET", page_path(serving), X_Token=None)
    assert status == 200 and b"page" in data
    assert headers["Cache-Control"] == "no-store" and "frame-ancestors" in str(headers)
    for path in ("/", "/?token=", "/?token=wrong", "/?token=" + serving.token[:-1]):
        status, _, data = send(serving, "GET", path, X_Token=None)
        assert status == 403 and serving.token.encode() not in data
    assert send(serving, "GET", f"/etc/passwd?token={serving.token}")[0] == 404


@pytest.mark.parametrize("token", [None, "", "wrong", "é"])
def test_a_question_without_the_token_is_refused(serving, token):
    encoded = token.encode("utf-8") if token else token
    assert send(serving, X_Token=encoded)[0] == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", None])
def test_another_hosts_name_is_refused(serving, host):
    assert send(serving, Host=host)[0] == 421
    assert send(serving, "GET", page_path(serving), Host=host)[0] == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1"])
def test_another_origin_is_refused_and_told_nothing(serving, origin):
    status, headers, _ = send(serving, Origin=origin)
    assert status == 403
    assert not any(name.lower().startswith("access-control") for name in headers)
    status, headers, _ = send(serving, "OPTIONS", Origin=origin, body=b"")
    assert status == 501 and not any("allow-origin" in name.lower() for name in headers)


def test_it_listens_on_this_machine_alone(serving):
    assert serving.http.server_address[0] == "127.0.0.1"
    assert len(serving.token) >= 32


def test_a_port_that_is_taken_is_said(serving, nano):
    with pytest.raises(InputError, match=f"port {serving.port}"):
        ExplorerServer(nano, "", port=serving.port)


# --- what is no question ---------------------------------------------------------------------


def test_bodies_are_bounded_before_they_are_read(serving):
    assert send(serving, Content_Length=str(MOST_BYTES + 1))[0] == 413
    assert send(serving, Content_Length="9" * 5000)[0] in {413, 431}
    assert send(serving, Content_Length=None)[0] == 411
    assert send(serving, Content_Length="-5")[0] == 411
    assert send(serving, Transfer_Encoding="chunked")[0] == 411
    assert send(serving, Content_Type="text/plain")[0] == 415


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe", b"[1]", b'"a"', b"[" * 100_000, b'{"text":1}', b'{"cuts":"a"}',
     b'{"layer":1.5}', b'{"order":["a"]}', b'{"sample":1e999}', b'{"agreed":"yes"}'],
)  # fmt: skip
def test_what_is_no_question_gets_an_answer(serving, body):
    status, _, data = send(serving, body=body)
    assert status == 400 and json.loads(data)["error"]


def test_an_address_that_is_none_gets_an_answer(serving):
    assert send(serving, "GET", "http://[::1/")[0] == 403
    assert send(serving, path="http://[::1/")[0] == 404


def test_who_asks_nothing_gives_way_to_who_asks(serving):
    """Half requests hold a thread each: there are so many places, and the oldest is taken."""
    idle = [socket.create_connection(("127.0.0.1", serving.port)) for _ in range(90)]
    for one in idle:
        one.sendall(b"GET / HT")
    assert ask(serving, "model", text="To be, or not")[-1]["result"]["tokens"]
    assert len(serving.http.arriving) <= MOST_CONNECTIONS
    assert idle[0].recv(10) == b""  # it was sent away
    for one in idle:
        one.close()


def test_a_request_that_trickles_in_is_ended(serving, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE", 0.3)
    with socket.create_connection(("127.0.0.1", serving.port)) as slow:
        slow.settimeout(10)
        end, sent = time.monotonic() + 10, 0
        while time.monotonic() < end:  # a byte at a time: no single wait is long
            try:
                slow.sendall(b"G")
            except OSError:
                break
            sent += 1
            time.sleep(0.05)
        assert sent < 100


def test_a_name_that_is_no_question_is_refused(serving):
    assert send(serving, path="/api/../../etc/passwd")[0] == 404
    assert send(serving, path="/api/__import__")[0] == 404


@pytest.mark.parametrize(
    ("parameters", "words"),
    [({"text": ""}, "empty"), ({"text": "To be", "cuts": ["else"]}, "names nothing"),
     ({"text": "To be", "cuts": ["block 99"]}, "no layer"), ({"sample": 1}, "reads text"),
     ({"text": "To be", "cuts": [f"head 0.{k}" for k in range(65)]}, "at most 64")],
)  # fmt: skip
def test_bad_input_is_an_answer_with_a_reason(serving, parameters, words):
    assert words in ask(serving, "model", **parameters)[-1]["error"]


# --- jobs ------------------------------------------------------------------------------------


def test_a_question_is_answered_with_progress_then_a_result(serving):
    *progress, last = ask(serving, "model", text="To be, or not", cuts=["block 1"])
    assert last["result"]["tokens"][0] == "T" and last["result"]["after"] is not None
    assert all(0 <= line["progress"] <= 1 for line in progress if line["progress"] is not None)


def slow(seen):
    """Return a question that takes until it is cancelled."""

    def work(explored, asked, told):
        seen.append("began")
        for k in range(2000):
            told(k, 2000)
            time.sleep(0.01)
        return seen.append("ended")

    return work


def test_a_page_that_leaves_stops_its_question_and_the_next_is_answered(serving, monkeypatch):
    seen = []
    monkeypatch.setitem(answers.QUESTIONS, "usual", slow(seen))
    body = b'{"text":"To be, or not"}'
    head = (
        f"POST /api/usual HTTP/1.1\r\nHost: 127.0.0.1:{serving.port}\r\nX-Token: {serving.token}"
        f"\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", serving.port)) as connection:
        connection.sendall(head.encode() + body)
        assert b"200" in connection.recv(100)
        while not seen:
            time.sleep(0.01)
        page = send(serving, "GET", page_path(serving))  # a slow model does not block the page
        assert page[0] == 200 and serving.worker.current is not None
    assert ask(serving, "model", text="To be, or not")[-1]["result"]["tokens"]
    end = time.monotonic() + 15  # of 20 that it would take
    while serving.worker.current is not None and time.monotonic() < end:
        time.sleep(0.01)
    assert serving.worker.current is None and "ended" not in seen


def test_two_people_are_both_answered(serving):
    found = {}

    def person(text):
        found[text] = ask(serving, "model", text=text)[-1]["result"]["tokens"]

    texts = ["To be, or", "not to be", "that is the"]
    people = [threading.Thread(target=person, args=(text,)) for text in texts]
    for one in people:
        one.start()
    for one in people:
        one.join()
    assert {text: "".join(tokens) for text, tokens in found.items()} == {t: t for t in texts}


@pytest.mark.parametrize(
    "bug", [ZeroDivisionError, AttributeError, OSError, MemoryError, AssertionError, ImportError]
)
def test_a_bug_is_said_and_does_not_end_the_worker(bug):
    def fails(told):
        raise bug

    worker = Worker()
    bad = Job(work=fails, what="")
    good = Job(work=lambda told: 7, what="")
    assert worker.ask(bad) and worker.ask(good)
    said = [bad.events.get(timeout=30) for _ in range(2)][-1]
    assert bug.__name__ in said.error and said.last
    assert [good.events.get(timeout=30) for _ in range(2)][-1].answer == 7
    worker.close()
    assert not worker.thread.is_alive() and not worker.ask(good)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_ended_takes_no_more_questions():
    def ends(told):
        raise SystemExit  # nothing that an answer may raise

    worker = Worker()
    assert worker.ask(Job(work=ends, what=""))
    worker.thread.join(30)
    assert not worker.ask(Job(work=lambda told: 7, what=""))


def test_questions_that_were_given_up_take_no_place_in_line():
    worker, go_on = Worker(), threading.Event()
    assert worker.ask(Job(work=lambda told: go_on.wait(30), what=""))
    for _ in range(3 * MOST_WAITING):
        job = Job(work=lambda told: 7, what="")
        assert worker.ask(job)
        job.cancelled.set()
    last = Job(work=lambda told: 7, what="")
    assert worker.ask(last) and worker.waiting.qsize() < MOST_WAITING
    go_on.set()
    assert [last.events.get(timeout=30) for _ in range(2)][-1].answer == 7
    worker.close()


def test_a_long_question_makes_way_for_a_quick_one_and_is_answered_too():
    def long(told):
        for k in range(60):
            told(k, 60)
            time.sleep(0.01)
        return ended.append("long")

    def short(told):
        return ended.append("short")

    worker, ended = Worker(), []
    slow, quick = Job(work=long, what="", quick=False), Job(work=short, what="")
    assert worker.ask(slow)
    while worker.current is None:
        time.sleep(0.001)
    assert worker.ask(quick)
    while not slow.events.get(timeout=30).last:
        pass
    worker.close()
    assert ended == ["short", "long"]


def test_who_waits_for_another_is_told(serving, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setitem(answers.QUESTIONS, "usual", lambda *_: go_on.wait(30))
    asked = {"text": "To be, or not"}
    first = threading.Thread(target=ask, args=(serving, "usual"), kwargs=asked)
    first.start()
    while serving.worker.current is None:
        time.sleep(0.01)
    threading.Timer(2 * server.BEAT, go_on.set).start()
    lines = ask(serving, "model", **asked)
    first.join()
    assert lines[0] == {"progress": None, "what": "waiting for another question"}
    assert lines[-1]["result"]["tokens"]


def test_a_number_that_is_not_finite_is_an_error_and_no_silence(serving, monkeypatch):
    monkeypatch.setitem(answers.QUESTIONS, "usual", lambda *_: {"value": float("nan")})
    assert "not finite" in ask(serving, "usual", text="To be, or not")[-1]["error"]


def test_a_full_line_is_said(serving, monkeypatch):
    monkeypatch.setattr(serving.worker, "ask", lambda job: False)
    assert send(serving)[0] == 503


def test_closing_frees_the_model(tmp_path):
    explored = Explored(model=explored_of("orbit-nano-none").model, source="orbit-nano-none")
    gone = weakref.ref(explored.model.module)
    serving = ExplorerServer(explored, "").start()
    assert ask(serving, "model", text="To be, or not")[-1]["result"]
    serving.close()
    del explored
    gc.collect()
    assert gone() is None
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", serving.port), timeout=1).close()


# --- what it costs ---------------------------------------------------------------------------


def test_what_takes_long_says_so_before_it_runs(serving):
    serving.pace = Pace(call=0.0, token=0.5)  # a slow model
    asked = {"text": "To be, or not", "cell": "pe_causal"}
    cost = ask(serving, "swaps", **asked)[-1]["result"]["cost"]
    assert (
        cost["seconds"] == pytest.approx(0.5 * 13 * (12 * 11 / 2 + 18))
        and "minutes" in cost["words"]
    )
    assert ask(serving, "swaps", **asked, agreed=True)[-1]["result"]["swaps"]
    serving.pace = FAST
    assert "cost" not in ask(serving, "order", text="To be, or not")[-1]["result"]


def test_the_pace_is_measured_and_adds_up(serving):
    serving.pace = None
    assert ask(serving, "model", text="To be, or not")[-1]["result"]["tokens"]
    assert serving.pace.token > 0 and serving.pace.call >= 0
    pace = Pace(call=1.0, token=0.001)
    assert pace.seconds(PageWork(rows=10, length=20)) == pytest.approx(1.2)
    assert cost_words(3.4) == "about 3 s" and cost_words(400.0) == "about 7 minutes"


def test_questions_take_what_they_know_and_pass_over_the_rest():
    asked = question_of({"text": "a", "cuts": ["mask"], "unknown": 3})
    assert asked.given.text == "a" and asked.cuts == ("mask",)
    with pytest.raises(InputError):
        question_of(None)


def test_the_address_is_this_machine_and_says_the_token(serving):
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", serving.address)
    assert server.HOST == "127.0.0.1"


def test_a_model_of_three_tokens_and_eleven_places_is_answered_too():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=3, n_positions=11, n_embd=8, n_layer=2, n_head=2)
    small = explored_of(GPT2LMHeadModel(config))
    serving = ExplorerServer(small, "").start()  # its pace is measured before the first answer
    assert ask(serving, "model", ids="0 1 2 2 1")[-1]["result"]["tokens"]
    serving.close()
