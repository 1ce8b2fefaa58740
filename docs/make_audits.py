"""Run the audits that docs/audit.md shows: real weights, too large to lie in the repository.

    python docs/make_audits.py MODELS DATA

MODELS is a folder with stories260K-llama-hf, gpt-nano-sort-hf, rxnmapper-albert-hf and
vit-mnist-3class-hf, DATA one with tinystories_sample.txt and the MNIST test set. What was printed
and measured is written to docs/audits/; the page shows these files as they are.
"""

import gzip
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers
from rich.console import Console

from orbitlens.order.api import audit
from orbitlens.order.audit_result import Audit
from orbitlens.order.measuring import Origin, measure_order
from orbitlens.order.options import AuditOptions
from orbitlens.order.subject import Cell, make_subject, run
from orbitlens.running.model import load
from orbitlens.terminal.audit import audit_view

OUT = Path(__file__).parent / "audits"
SMILES = re.compile(r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|>>|\d)")
# Textbook reactions: esterification, amide coupling, Suzuki coupling, reduction, and their like.
REACTIONS = """
CC(=O)O.OCC>>CC(=O)OCC
O=C(O)c1ccccc1.CO>>COC(=O)c1ccccc1
CC(=O)Cl.Nc1ccccc1>>CC(=O)Nc1ccccc1
O=C(O)Cc1ccccc1.NCC>>CCNC(=O)Cc1ccccc1
Brc1ccccc1.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1
Brc1ccc(C)cc1.OB(O)c1ccncc1>>Cc1ccc(-c2ccncc2)cc1
O=Cc1ccccc1>>OCc1ccccc1
CC(=O)c1ccccc1>>CC(O)c1ccccc1
O=[N+]([O-])c1ccccc1>>Nc1ccccc1
CCBr.Oc1ccccc1>>CCOc1ccccc1
CI.Nc1ccc(C)cc1>>CNc1ccc(C)cc1
C=CCBr.OC(=O)c1ccccc1>>C=CCOC(=O)c1ccccc1
CC(C)(C)OC(=O)NCC(=O)O.NCc1ccccc1>>CC(C)(C)OC(=O)NCC(=O)NCc1ccccc1
O=C(Cl)c1ccccc1.OCCN>>O=C(NCCO)c1ccccc1
""".split()


def keep(name: str, found: Audit) -> None:
    """Write what a terminal would show, and the JSON."""
    with (OUT / f"{name}.txt").open("w", encoding="utf-8") as stream:
        console = Console(file=stream, width=80, highlight=False)
        for part in audit_view(found, console):
            console.print(part)
    (OUT / f"{name}.json").write_text(json.dumps(found.to_json(), indent=1) + "\n")


def stories(models: Path, data: Path) -> None:
    """Audit a language model of small stories on such stories."""
    keep("stories260K", audit(models / "stories260K-llama-hf", data / "tinystories_sample.txt"))


def sorter(models: Path, data: Path) -> None:
    """Audit the sorter after k of its six answers, permuting its six questions only."""
    model = load(models / "gpt-nano-sort-hf").module
    digits = torch.randint(3, (64, 6), generator=torch.Generator().manual_seed(0))
    answers = digits.sort(dim=1).values
    origin = Origin(name="gpt-nano-sort-hf", source="digits")
    many = AuditOptions(samples=64, permutations=64)
    keep("sorter", measure_order(make_subject(model), digits, options=many, origin=origin))
    brief = AuditOptions(permutations=32, slices=False, details=False)
    rows = []
    for k in range(6):
        items = torch.cat([digits, answers[:, :k]], dim=1)
        everything = make_subject(model)
        questions = replace(everything, pinned=tuple(range(-max(1, k), 0)))
        found = measure_order(questions, items, options=brief)
        right = {
            cell.value: float(
                (run(questions, items, cell).prediction.argmax(1) == answers[:, k]).double().mean()
            )
            for cell in Cell
        }
        rows.append(
            {
                "given": k,
                "right": right,
                "bits": {name: cell.mean_js_bits for name, cell in found.cells.items()},
                "bits_across": measure_order(everything, items, options=brief).sensitivity,
                "last_layer": found.layers[-1].defects["pe_causal"],
            }
        )
    (OUT / "sorter-steps.json").write_text(json.dumps(rows, indent=1) + "\n")


def reactions(models: Path, data: Path) -> None:
    """Audit a masked model of chemical reactions; its vocabulary names the mask."""
    folder = models / "rxnmapper-albert-hf"
    names = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    number = {name: k for k, name in enumerate(names)}
    unknown = number["[UNK]"]
    rows = []
    for reaction in REACTIONS:
        ids = [number.get(token, unknown) for token in SMILES.findall(reaction)]
        for start in range(0, max(1, len(ids) - 20), 5):
            window = ids[start : start + 20]
            if len(window) == 20:
                rows.append([number["[CLS]"], *window, number["[SEP]"]])
    keep("rxnmapper", audit(folder, rows))


def digits_as_patches(models: Path, data: Path) -> None:
    """Audit a vision model on handwritten digits."""

    def read(name: str, skip: int) -> np.ndarray:
        raw = gzip.decompress((data / name).read_bytes())
        return np.frombuffer(raw, np.uint8, offset=skip)

    labels = read("t10k-labels-idx1-ubyte.gz", 8)
    pixels = read("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)[labels < 3][:64]
    images = torch.as_tensor((pixels / 255.0 - 0.1307) / 0.3081, dtype=torch.float32)
    keep("vit-mnist", audit(models / "vit-mnist-3class-hf", images))


def main() -> None:
    """Run all audits."""
    models, data = map(Path, sys.argv[1:3])
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    OUT.mkdir(exist_ok=True)
    for job in (sorter, digits_as_patches, reactions, stories):
        job(models, data)
        print(f"{job.__name__}: done")


if __name__ == "__main__":
    main()
