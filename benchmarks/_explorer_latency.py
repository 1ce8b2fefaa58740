"""How long the explorer's server takes to answer, with a model of 135M parameters.

A random Llama, made in memory, or a model that is named, behind the server itself; a sentence of 30
tokens, asked over a real connection, with as many threads as there are cores. Each question is
asked of three sentences, none of which was seen before, and the least counts: the clock on a
machine that others use says at most what it takes. Goal: 2 s by the clock.
"""

import http.client
import json
import os
import time
from dataclasses import dataclass

import torch
from audit_135m import llama_135m

from orbitlens.exploring.passes import explored_of
from orbitlens.exploring.server import ExplorerServer
from orbitlens.running.model import load

GOAL = 2.0  # s by the clock
N_TOKENS, TRIES = 30, 3
MOVED = [0, 1, 2, 9, *range(4, 9), 3, *range(10, N_TOKENS)]
ASKED = {
    "a sentence": ("model", {}),
    "a head cut": ("model", {"cuts": ["head 3.2"]}),
    "a block cut": ("model", {"cuts": ["block 7"]}),
    "attention of a layer": ("attention", {"layer": 5}),
    "the sentence as written, in four cells": ("order", {}),
    "another order, in four cells": ("order", {"order": MOVED}),
    "the flow of a layer": ("flow", {"layer": 5}),
}
TOLD = ("usual", "swaps", "heads")  # what says its cost first


@dataclass(frozen=True, kw_only=True)
class Latency:
    """One answer."""

    asked: str
    processor: float  # s, of all threads
    wall: float  # s by the clock


def sentence(k):
    return " ".join(str(100 + 37 * i + 11 * k) for i in range(N_TOKENS))


def ask(server, name, parameters):
    body = json.dumps({"ids": sentence(0), **parameters}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    headers = {"X-Token": server.token, "Content-Type": "application/json"}
    connection.request("POST", f"/api/{name}", body, headers)
    lines = connection.getresponse().read().splitlines()
    connection.close()
    return json.loads(lines[-1])["result"]


def latency(server, what, number):
    """Return how long one question takes, of sentences that nobody asked about before."""
    name, parameters = ASKED[what]
    walls, processors = [], []
    for k in range(TRIES):
        given = {"ids": sentence(1 + number * TRIES + k), **parameters}
        wall, processor = time.perf_counter(), time.process_time()
        result = ask(server, name, given)
        if "cost" in result:  # on a busy machine even this may be told first
            ask(server, name, {**given, "agreed": True})
        processors.append(time.process_time() - processor)
        walls.append(time.perf_counter() - wall)
    return Latency(asked=what, processor=min(processors), wall=min(walls))


def latencies(model=None):
    """Return how long answers take, and what the page is told of those that take longer."""
    torch.set_num_threads(os.cpu_count() or 1)
    server = ExplorerServer(explored_of(load(model or llama_135m())), "").start()
    ask(server, "attention", {})  # loads it, and measures the pace, once
    rows = [latency(server, what, number) for number, what in enumerate(ASKED)]
    told = {name: ask(server, name, {}).get("cost", {}).get("words", "at once") for name in TOLD}
    server.close()
    return rows, told
