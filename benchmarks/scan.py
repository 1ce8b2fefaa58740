"""What a scan costs: ratios of times measured in one run, beside the goals set for them.

    python benchmarks/scan.py [--quick] [--only heads,layer,memory,model] [--json FILE]

Each time is the least of several repeats, and what is compared takes turns, so that a busy spell
of the machine hits both sides. Ratios are of wall time, with that of processor time beside them.
Models are random, written to a temporary folder just before, so their files are in the page cache.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from _models import LlamaShape, write_llama
from _timing import Timing, machine, time_in_turns, time_once

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.heads.head import Head, make_head
from orbitlens.heads.layers import load_layer
from orbitlens.scanning.api import scan
from orbitlens.scanning.options import ScanOptions
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.rates import rate_spectrum

PEER = "TransformerLens FactoredMatrix"
INSTALL_PEER = "pip install -c constraints.txt -e '.[bench]'  (make bench does it)"
AGREEMENT = 1e-9  # of spectra, relative to the largest eigenvalue
ALLOWANCE = 300e6  # bytes, beside three layers' attention weights


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large everything is; `d_dense` are the widths at which dense spectra are timed."""

    d_model: int
    d_head: int
    d_dense: tuple[int, int]
    layer: LlamaShape
    n_layers: tuple[int, int]  # of the models whose peak memory is compared
    model: LlamaShape
    repeats: int


FULL = Sizes(
    d_model=4096,
    d_head=128,
    d_dense=(1024, 2048),
    layer=LlamaShape(d_model=4096, n_heads=32, n_kv_heads=32, d_head=128, n_layers=2),
    n_layers=(2, 6),
    model=LlamaShape(
        d_model=576,
        n_heads=9,
        n_kv_heads=3,
        d_head=64,
        n_layers=30,
        d_mlp=1536,
        n_vocabulary=49152,
    ),
    repeats=5,
)
QUICK = Sizes(
    d_model=512,
    d_head=32,
    d_dense=(128, 256),
    layer=LlamaShape(d_model=512, n_heads=8, n_kv_heads=8, d_head=64, n_layers=2),
    n_layers=(1, 2),
    model=LlamaShape(
        d_model=192, n_heads=3, n_kv_heads=1, d_head=64, n_layers=4, d_mlp=512, n_vocabulary=1000
    ),
    repeats=2,
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison: a value, what it is held against, and the goal for the ratio of the two."""

    what: str
    ours: str
    other: str
    ratio: str
    goal: str
    met: bool | None  # None: nothing was asked, or sizes are too small to ask
    note: str = ""


# --- one head against dense algebra and against the peer -------------------------------------


def random_head(d_model: int, d_head: int) -> Head:
    """Return a head laid out in memory as `load_layer` lays it out."""
    generator = torch.Generator().manual_seed(1)
    w_q, w_k, w_v, w_o = (
        torch.randn(d_head, d_model, generator=generator, dtype=torch.float64) / d_model**0.5
        for _ in range(4)
    )
    return make_head(w_q.T, w_k.T, w_v.T, w_o)


def as_peer_holds_it(head: Head) -> Head:
    """Return the same head in the peer's layout: every factor contiguous as it is written."""
    names = ("w_q", "w_k", "w_v", "w_o")
    return replace(head, **{name: getattr(head, name).contiguous() for name in names})


def our_spectra(head: Head) -> tuple[torch.Tensor, torch.Tensor]:
    maps = HeadMaps.of(head)
    return rate_spectrum(maps), maps.value_spectrum


def dense_rates(head: Head) -> torch.Tensor:
    value, score = head.w_v @ head.w_o, head.scale * (head.w_q @ head.w_k.T)
    drift = value.T @ score.T
    return torch.linalg.eigvalsh((drift + drift.T) / 2)


def dense_values(head: Head) -> torch.Tensor:
    return torch.linalg.eigvals(head.w_v @ head.w_o)


def peer_spectra(head: Head) -> tuple[torch.Tensor, torch.Tensor]:
    """The same through the peer: eigenvalues of the stacked, symmetrised product and of OV."""
    from transformer_lens import FactoredMatrix

    ov = FactoredMatrix(head.w_v, head.w_o)
    qk = FactoredMatrix(head.w_q * head.scale, head.w_k.T)
    drift = qk @ ov  # B^T, whose symmetric part is B's
    symmetric = FactoredMatrix(
        torch.cat([drift.A, drift.B.T], dim=-1) / 2, torch.cat([drift.B, drift.A.T], dim=-2)
    )
    return symmetric.eigenvalues, ov.eigenvalues


def our_sizes(head: Head) -> tuple[float, float, float]:
    maps = HeadMaps.of(head)
    return maps.value_norm, maps.speed_limit, maps.score_norm


def peer_sizes(head: Head) -> tuple[float, float, float]:
    from transformer_lens import FactoredMatrix

    ov, qk = FactoredMatrix(head.w_v, head.w_o), FactoredMatrix(head.w_q * head.scale, head.w_k.T)
    return ov.norm().item(), ov.S[0].item(), qk.norm().item()


def has_peer() -> bool:
    try:
        import transformer_lens  # noqa: F401
    except ImportError:
        return False
    return True


def head_rows(sizes: Sizes, _: Path) -> list[Row]:
    head = random_head(sizes.d_model, sizes.d_head)
    jobs: dict[str, Callable[[], object]] = {"ours": lambda: our_spectra(head)}
    if has_peer():
        theirs = as_peer_holds_it(head)
        check_agreement("the peer", our_spectra(head), peer_spectra(theirs))
        jobs["peer"] = lambda: peer_spectra(theirs)
        jobs |= {"our sizes": lambda: our_sizes(head), "peer sizes": lambda: peer_sizes(theirs)}
    times = time_in_turns(jobs, repeats=8 * sizes.repeats)
    ours = times["ours"]
    size = f"a head's rates and OV spectrum, d={sizes.d_model}, r={sizes.d_head}"
    rows = dense_rows(head, ours, sizes, size)
    if "peer" not in times:
        return [*rows, missing_peer(size, ours)]
    return [
        *rows,
        speed_row(f"{size}: {PEER}", ours, times["peer"], at_least=3.0),
        speed_row(f"norms of its V and W: {PEER}", times["our sizes"], times["peer sizes"]),
    ]


def dense_rows(head: Head, ours: Timing, sizes: Sizes, size: str) -> list[Row]:
    """Dense eigenvalues: the symmetric part is timed in full, the other from smaller widths."""
    symmetric = time_once(lambda: dense_rates(head))
    small, large = (random_head(d, sizes.d_head) for d in sizes.d_dense)
    check_agreement("dense algebra", our_spectra(small), (dense_rates(small), dense_values(small)))
    jobs = {"small": lambda: dense_values(small), "large": lambda: dense_values(large)}
    times = time_in_turns(jobs, repeats=3, warm_up=False)
    power = math.log2(times["large"].wall / times["small"].wall)
    factor = (sizes.d_model / sizes.d_dense[1]) ** power
    values = Timing(wall=factor * times["large"].wall, cpu=factor * times["large"].cpu)
    note = (
        f"eigvals of V is extrapolated: {times['small'].wall:.2f} s at d={sizes.d_dense[0]} and "
        f"{times['large'].wall:.2f} s at d={sizes.d_dense[1]} give d^{power:.2f}, hence "
        f"{values.wall:.0f} s at d={sizes.d_model}"
    )
    return [
        speed_row(f"{size}: dense, symmetric part alone", ours, symmetric, at_least=50.0),
        speed_row(f"{size}: dense, both", ours, symmetric + values, at_least=50.0, note=note),
    ]


def check_agreement(
    name: str, ours: tuple[torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """Stop unless both computed the same: the largest rates, and the moduli of V's eigenvalues."""
    for mine, theirs in zip(ours, other, strict=True):
        sizes = [spectrum.abs().sort(descending=True).values for spectrum in (mine, theirs)]
        n = min(len(values) for values in sizes)
        worst = (sizes[0][:n] - sizes[1][:n]).abs().max() / sizes[0][0]
        if worst > AGREEMENT:
            sys.exit(f"spectra differ from those of {name} by {worst:.1e}: no time would mean much")


def missing_peer(size: str, ours: Timing) -> Row:
    return Row(
        what=f"{size}: {PEER}",
        ours=seconds(ours),
        other="peer not installed",
        ratio="-",
        goal="≥ 3",
        met=False,
        note=f"the peer, transformer-lens, is not installed: {INSTALL_PEER}",
    )


# --- one wide layer against its matrix products ----------------------------------------------


def layer_rows(sizes: Sizes, folder: Path) -> list[Row]:
    checkpoint = load_checkpoint(write_llama(folder / "layer", sizes.layer, n_shards=3))
    maps = [HeadMaps.of(head) for head in load_layer(checkpoint, 0)]
    jobs = {
        "scan": lambda: scan(checkpoint, ScanOptions(layers=[0])),
        "blocks": lambda: [gram_blocks(head) for head in maps],
        "sum": lambda: layer_map(maps),
    }
    times = time_in_turns(jobs, repeats=sizes.repeats)
    products = times["blocks"] + times["sum"]
    shape = sizes.layer
    what = f"scan of a layer, d={shape.d_model}, {shape.n_heads} heads: its unavoidable GEMMs"
    note = (
        f"of the GEMMs, Gram blocks take {times['blocks'].wall:.2f} s and the layer's map "
        f"{times['sum'].wall:.2f} s"
    )
    return [speed_row(what, times["scan"], products, at_most=2.0, note=note)]


def gram_blocks(maps: HeadMaps) -> list[torch.Tensor]:
    """The eight products of thin factors from which everything about a head is read."""
    left, right, out, value = maps.left, maps.right, maps.out, maps.value
    squares = [x.T @ x for x in (left, right, out, value)]
    return [*squares, left.T @ out, value.T @ right, value.T @ out, right.T @ left]


def layer_map(maps: list[HeadMaps]) -> torch.Tensor:
    """Return B summed over the heads, each added by one thin product."""
    d = maps[0].d_model
    total = torch.zeros(d, d, dtype=torch.float64)
    for head in maps:
        total.addmm_(head.out @ head.value_right, head.left.T)
    return total


# --- peak memory, and a whole model ----------------------------------------------------------


def run_scan(model: Path, *arguments: str) -> None:
    """Run `orbitlens scan` in a process of its own."""
    command = [sys.executable, "-m", "orbitlens.cli", "scan", str(model)]
    subprocess.run([*command, *arguments], check=True, stdout=subprocess.DEVNULL)


def memory_rows(sizes: Sizes, folder: Path) -> list[Row]:
    peaks = []
    for n_layers in sizes.n_layers:
        shape = LlamaShape(**{**asdict(sizes.layer), "n_layers": n_layers})
        model = write_llama(folder / f"memory-{n_layers}", shape, n_shards=n_layers + 1)
        result = folder / f"memory-{n_layers}.json"
        run_scan(model, "--json", str(result))
        peaks.append(json.loads(result.read_text())["cost"]["peak_rss_bytes"])
    limit = ALLOWANCE + 3 * sizes.layer.attention_bytes
    rows = [
        Row(
            what=f"peak memory, {n_layers} layers of d={sizes.layer.d_model}: 300 MB + 3 layers",
            ours=f"{peak / 1e6:.0f} MB",
            other=f"{limit / 1e6:.0f} MB",
            ratio=f"{peak / limit:.2f}",
            goal="≤ 1",
            met=peak <= limit,
        )
        for n_layers, peak in zip(sizes.n_layers, peaks, strict=True)
    ]
    growth = Row(
        what=f"peak memory, {sizes.n_layers[1]} layers: {sizes.n_layers[0]} layers",
        ours=f"{peaks[1] / 1e6:.0f} MB",
        other=f"{peaks[0] / 1e6:.0f} MB",
        ratio=f"{peaks[1] / peaks[0]:.2f}",
        goal="≤ 1.05",
        met=peaks[1] <= 1.05 * peaks[0],
    )
    return [*rows, growth]


def model_rows(sizes: Sizes, folder: Path) -> list[Row]:
    shape = sizes.model
    model = write_llama(folder / "model", shape, n_shards=1)
    jobs = {
        "scan": lambda: run_scan(model),
        "start": lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True),
    }
    times = time_in_turns(jobs, repeats=max(3, sizes.repeats), warm_up=False)
    millions = load_checkpoint(model).n_parameters / 1e6
    return [
        Row(
            what=f"orbitlens scan, {shape.n_layers} layers, {millions:.0f}M parameters: 5 s",
            ours=seconds(times["scan"]),
            other="5 s",
            ratio=f"{times['scan'].wall / 5:.2f}",
            goal="≤ 1",
            met=times["scan"].wall < 5,
            note=f"of which starting Python and torch takes {seconds(times['start'])}",
        )
    ]


# --- the table -------------------------------------------------------------------------------


def speed_row(
    what: str,
    ours: Timing,
    other: Timing,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    note: str = "",
) -> Row:
    """Compare times: how many times as fast we are or, with `at_most`, as long we take."""
    wall, cpu = other.wall / ours.wall, other.cpu / ours.cpu
    goal, met = "", None
    if at_least is not None:
        goal, met = f"≥ {at_least:g}", wall >= at_least
    elif at_most is not None:
        wall, cpu = 1 / wall, 1 / cpu
        goal, met = f"≤ {at_most:g}", wall <= at_most
    return Row(
        what=what,
        ours=seconds(ours),
        other=seconds(other),
        ratio=f"{wall:.3g} ({cpu:.3g})",
        goal=goal,
        met=met,
        note=note,
    )


def seconds(time: Timing) -> str:
    """Format wall time and, in brackets, processor time."""
    if time.wall < 1:
        return f"{1e3 * time.wall:.1f} ms ({1e3 * time.cpu:.1f})"
    return f"{time.wall:.2f} s ({time.cpu:.2f})"


def show(rows: list[Row], about: dict[str, object]) -> None:
    """Print a Markdown table, then the notes; wall time first, processor time in brackets."""
    print(", ".join(f"{key} {value}" for key, value in about.items()), end="\n\n")
    print("| what: against what | ours | other | ratio | goal | met |")
    print("| --- | --- | --- | --- | --- | --- |")
    words = {True: "yes", False: "NO", None: "-"}
    for row in rows:
        cells = [row.what, row.ours, row.other, row.ratio, row.goal, words[row.met]]
        print("| " + " | ".join(cells) + " |")
    print("\nWall time, in brackets processor time; the least of all repeats.")
    for row in rows:
        if row.note:
            print(f"- {row.what.split(':')[0]}: {row.note}.")


SECTIONS: dict[str, Callable[[Sizes, Path], list[Row]]] = {
    "heads": head_rows,
    "layer": layer_rows,
    "memory": memory_rows,
    "model": model_rows,
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--only", default=",".join(SECTIONS), help="some of: %(default)s")
    parser.add_argument("--threads", type=int, help="torch threads here (default: torch's own)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    return parser.parse_args()


def main() -> int:
    """Run the sections asked for; 1 if a goal was missed at full size."""
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    sizes, rows, about = QUICK if arguments.quick else FULL, [], machine()
    for name in arguments.only.split(","):
        if name not in SECTIONS:
            sys.exit(f"no section {name!r}; there are {', '.join(SECTIONS)}")
        print(f"{name} ...", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="orbitlens-bench-") as folder:
            rows += SECTIONS[name](sizes, Path(folder))
    if arguments.quick:  # goals are for full sizes
        rows = [Row(**{**asdict(row), "met": None}) for row in rows]
    about["load at the end"] = machine()["load"]
    show(rows, about)
    if arguments.json:
        result = {"machine": about, "quick": arguments.quick, "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(result, indent=2))
    return int(any(row.met is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
