"""Shared set-up: offline, one thread a process, and where real weights are looked for."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
SHARED_MODELS = Path(__file__).resolve().parents[2] / "shared" / "models"


@pytest.fixture
def shared_model():
    """Return a function from a model's name to its folder among the real weights, or skip."""

    def find(name):
        folder = SHARED_MODELS / name
        if folder.exists():
            return folder
        if os.environ.get("CI") and SHARED_MODELS.exists():
            pytest.fail(f"{name} is missing from {SHARED_MODELS}, which CI has")
        return pytest.skip(f"real weights are not beside the checkout: {folder}")

    return find


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)
