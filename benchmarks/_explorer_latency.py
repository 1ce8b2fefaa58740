"""How long the explorer's server takes to answer, with a model of 135M parameters.

A random Llama, made in memory, behind the server itself; a sentence of 30 tokens, asked over a real
connection. Processor time counts on a machine that others use; it is that of the whole process, so
that on two idle cores an answer takes no longer, and less where products run on both. Goal: 2 s.
"""

import http.client
import json
import time
from dataclasses import dataclass

import torch
from audit_135m import llama_135m

from orbitlens.exploring.passes import explored_of
from orbitlens.exploring.server import ExplorerServer
from orbitlens.running.model import load

GOAL = 2.0  # s of processor time
N_TOKENS = 30
IDS = " ".join(str(100 + 37 * k) for k in range(N_TOKENS))
MOVED = [0, 1, 2, 9, *range(4, 9), 3, *range(10, N_TOKENS)]
ASKED = {
    "a sentence": ("model", {}),
    "a head cut": ("model", {"cuts": ["head 3.2"]}),
    "a block cut": ("model", {"cuts": ["block 7"]}),
    "attention of a layer": ("attention", {"layer": 5}),
    "the sentence as written, in four cells": ("order", {}),
    "another order, in four cells": ("order", {"order": MOVED}),
}
TOLD = ("usual", "swaps", "heads")  # what says its cost first


@dataclass(frozen=True, kw_only=True)
class Latency:
    """One answer."""

    asked: str
    processor: float  # s
    wall: float


def ask(server, name, parameters):
    body = json.dumps({"ids": IDS, **parameters}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    headers = {"X-Token": server.token, "Content-Type": "application/json"}
    connection.request("POST", f"/api/{name}", body, headers)
    lines = connection.getresponse().read().splitlines()
    connection.close()
    return json.loads(lines[-1])["result"]


def latencies():
    """Return how long answers take, and what the page is told of those that take longer."""
    torch.set_num_threads(1)
    server = ExplorerServer(explored_of(load(llama_135m())), "").start()
    ask(server, "attention", {"ids": "1 2 3 4"})  # measures the pace, once
    rows = []
    for what, (name, parameters) in ASKED.items():
        wall, processor = time.perf_counter(), time.process_time()
        result = ask(server, name, parameters)
        if "cost" in result:  # on a busy machine even this may be told first
            result = ask(server, name, {**parameters, "agreed": True})
        spent = time.process_time() - processor
        rows.append(Latency(asked=what, processor=spent, wall=time.perf_counter() - wall))
    told = {name: ask(server, name, {}).get("cost", {}).get("words", "at once") for name in TOLD}
    server.close()
    return rows, told
