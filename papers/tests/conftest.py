"""Shared set-up: offline, one thread a process, and a seeded generator."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
os.environ["ORBITLENS_CACHE"] = ""  # every test computes what it asks for

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)
