"""Which lags tell most about the next token: chi-square information, from data alone.

Enters: long sequences. Leaves: information of every set of lags. To first order in a, the loss
falls by a times the covariance of matching and being right; for a set S whose tokens are z that is

    sum_z P(z)^2 (sum_e P(e | z)^2 / P(e) - 1),

the *modified* information: chi-square information with a match weighed by how often it happens. We
derived it so; that it is the paper's own modification was not verified.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.induction_heads.chains import (
    CHAINS,
    Chain,
    draw,
    shuffled,
    window_ids,
    windows,
)
from orbitlens_papers.induction_heads.model import head_sets

LARGEST = 3  # lags in a set: one more than there are parents, so that more is not always better


def following(
    chain: Chain, tokens: Int[Tensor, "batch steps"]
) -> Float[Tensor, "batch windows vocabulary"]:
    """Return how often each window is followed by each token, as shares of a sequence's places."""
    ids, after = window_ids(chain, tokens), tokens[:, chain.window :]
    size = chain.n_windows * chain.vocabulary
    empty = torch.zeros(len(tokens), size, dtype=torch.float64)
    one = torch.ones_like(ids, dtype=torch.float64)
    counts = empty.scatter_add(1, ids * chain.vocabulary + after, one)
    return counts.view(len(tokens), chain.n_windows, chain.vocabulary) / ids.shape[1]


def information_of(
    chain: Chain, joint: Float[Tensor, "batch windows vocabulary"], lags: Sequence[int]
) -> tuple[float, float]:
    """Return chi-square information of the tokens at `lags`, plain and modified; mean over laws.

    plain = sum P(z, e)^2 / (P(z) P(e)) - 1, modified = sum P(z, e)^2 / P(e) - sum P(z)^2.
    """
    cases = _cases(chain, lags)
    small = torch.zeros(len(joint), int(cases.max()) + 1, chain.vocabulary, dtype=joint.dtype)
    both = small.index_add(1, cases, joint)
    of_z, of_e = both.sum(dim=2, keepdim=True), both.sum(dim=1, keepdim=True)
    ratio = _over(both.square(), of_e)
    plain = _over(ratio, of_z).sum(dim=(1, 2)) - 1.0
    modified = ratio.sum(dim=(1, 2)) - of_z.square().sum(dim=(1, 2))
    return float(plain.mean()), float(modified.mean())


def parents_lead(bench: Bench) -> Outcome:
    """6a: modified information of the parents over that of the best other set.

    Control: the same sequences in random order.
    """
    measured = [_measured(bench, seed) for seed in bench.seeds]
    leads = [min(_lead(rows, "modified") for rows in one["kept"].values()) for one in measured]
    mixed = [min(_lead(rows, "modified") for rows in one["shuffled"].values()) for one in measured]
    plain = [min(_lead(rows, "plain") for rows in one["kept"].values()) for one in measured]
    return Outcome(
        result=estimate.mean(leads),
        control=estimate.mean(mixed),
        data={
            "sets": measured[0]["kept"],
            "shuffled": measured[0]["shuffled"],
            "plain_leads": plain,
        },
    )


def plain_lead(bench: Bench) -> Outcome:
    """6b: plain information of the parents over that of the best other set, supersets among them.

    Control: the same sequences in random order.
    """
    measured = [_measured(bench, seed) for seed in bench.seeds]
    leads, mixed = (
        [min(_lead(rows, "plain") for rows in one[context].values()) for one in measured]
        for context in ("kept", "shuffled")
    )
    return Outcome(result=estimate.mean(leads), control=estimate.mean(mixed))


Rows = list[dict[str, object]]


def _measured(bench: Bench, seed: int) -> dict[str, dict[str, Rows]]:
    return bench.once(f"information {seed}", lambda: _measure(bench, seed))


def _measure(bench: Bench, seed: int) -> dict[str, dict[str, Rows]]:
    result: dict[str, dict[str, Rows]] = {"kept": {}, "shuffled": {}}
    for name, chain in CHAINS.items():
        long = replace(chain, length=bench.pick(500, 2000, 10_000))
        generator = bench.generator(f"information {name}", seed)
        tokens = draw(long, bench.pick(500, 2000, 5000), generator).tokens
        result["kept"][name] = _rows(long, tokens)
        result["shuffled"][name] = _rows(long, shuffled(tokens, generator))
    return result


def _rows(chain: Chain, tokens: Int[Tensor, "batch steps"]) -> Rows:
    joint = following(chain, tokens)
    rows: Rows = []
    for lags in head_sets(chain.window, LARGEST)[1:]:
        plain, modified = information_of(chain, joint, lags)
        rows.append(
            {
                "lags": list(lags),
                "parents": lags == chain.parents,
                "plain": plain,
                "modified": modified,
            }
        )
    return rows


def _lead(rows: Rows, kind: str) -> float:
    """Return the parents' information over the best of the others."""
    own = next(float(str(row[kind])) for row in rows if row["parents"])
    return own / max(float(str(row[kind])) for row in rows if not row["parents"])


def _cases(chain: Chain, lags: Sequence[int]) -> torch.Tensor:
    table = windows(chain)
    columns = [table[:, lag - 1] * chain.vocabulary**k for k, lag in enumerate(lags)]
    return torch.stack(columns).sum(dim=0)


def _over(top: torch.Tensor, bottom: torch.Tensor) -> torch.Tensor:
    """Return top / bottom, 0 where there is nothing below: nothing is above either."""
    return torch.where(bottom > 0, top / bottom.clamp_min(1e-300), 0.0)
