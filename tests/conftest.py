"""Shared set-up: offline, one thread a process, and where real weights are looked for."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
os.environ["ORBITLENS_CACHE"] = ""  # every test computes what it asks for

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


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """Return a function from the name of a tiny model to its folder, in float32, written once."""
    from tiny_models import CASES, build  # here: most tests need no transformers

    cases, known = {case.name: case for case in CASES}, {}

    def get(name):
        if name not in known:
            known[name] = tmp_path_factory.mktemp(name)
            build(cases[name]).float().save_pretrained(known[name])
        return str(known[name])

    return get


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def browser():
    """Return one browser for all tests of pages."""
    from playwright.sync_api import sync_playwright

    from browsing import ARGUMENTS, chromium  # here: few tests need a browser

    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture
def visit(browser):
    """Return a function that opens a page; all are closed after the test."""
    from browsing import Visit

    open_pages = []

    def go(file, **options):
        open_pages.append(Visit(browser, file, **options))
        return open_pages[-1]

    yield go
    for one in open_pages:
        one.context.close()
