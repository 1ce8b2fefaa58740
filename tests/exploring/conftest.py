"""One explorer of a zoo model for all tests of the page."""

import pytest

from orbitlens.exploring.api import explore


@pytest.fixture(scope="session")
def explorer():
    return explore("orbit-nano-rotary")


@pytest.fixture(scope="session")
def explorer_page(explorer, tmp_path_factory):
    return explorer.save(tmp_path_factory.mktemp("explorer") / "explorer.html")
