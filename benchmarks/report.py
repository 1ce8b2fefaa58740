"""What a report costs: seconds to make, size, and time to first paint, by depth.

    python benchmarks/report.py [MODEL ...]

Without a MODEL it reports on a random Llama of 30 layers of 8 heads. Needs playwright and a
Chromium for the first paint.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import torch

from orbitlens.reporting.api import report

PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def deep_llama(folder):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=30,
        num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=256,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def first_paint(file):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        page.goto(file.as_uri())
        page.wait_for_selector("#detail h4")
        found = page.evaluate(PAINT)
        browser.close()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    models = parser.parse_args().models
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        made = report(models or [deep_llama(Path(folder) / "deep")])
        seconds = time.perf_counter() - started
        file = made.save(Path(folder) / "report.html")
        size = file.stat().st_size / 1e6
        print(f"made in {seconds:.0f} s, {size:.2f} MB, first paint {first_paint(file):.0f} ms")


if __name__ == "__main__":
    main()
