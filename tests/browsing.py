"""A real browser, and pages open in it: for tests of everything that is a page."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ARGUMENTS = ["--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking"]


def chromium():
    """Return a browser's path, None for playwright's own; one is installed if there is none."""
    if found := _installed():
        return found
    tried = []
    for commands in _ways_to_install():
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                tried.append(f"{' '.join(command)}: {done.stderr[-300:]}")
                break
        else:
            return _installed()
    pytest.fail("there is no browser, and none could be installed:\n" + "\n".join(tried))


def _installed():
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


def _ways_to_install():
    if shutil.which("apt-get") and os.geteuid() == 0:
        apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
        yield [[*apt, "update"], [*apt, "install", "-y", "--no-install-recommends", "chromium"]]
    yield [[sys.executable, "-m", "playwright", "install", "chromium"]]


class Visit:
    """A page that is open, and everything it asked for or complained about."""

    def __init__(self, browser, file, *, width=1280, scheme="light", after="", **context):
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, **context
        )
        self.page = self.context.new_page()
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.goto(Path(file).as_uri() + after)
        self.wait("document.documentElement.dataset.ready === 'yes'")

    def wait(self, condition, seconds=60):  # on a busy machine a picture takes its time
        """Wait until a condition holds; the page's policy forbids playwright's own way."""
        for _ in range(20 * seconds):
            if self.page.evaluate(f"Boolean({condition})"):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never came true: {condition}")

    def drawn_whole(self):
        """Wait until all charts are drawn, in view or not, and orbits have played."""
        self.wait("[...document.querySelectorAll('[data-chart] .plot')].every(p => p.panel)")
        self.wait("[...document.querySelectorAll('.player button')].every(b => "
                  "b.textContent !== 'Pause')")  # fmt: skip
