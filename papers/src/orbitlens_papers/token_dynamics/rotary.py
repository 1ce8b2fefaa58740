"""Claim 4: a rotary encoding slows growth and decay of distances, as the Gaussian closure predicts.

Enters: a bench. Leaves: outcomes. The closure speaks of many tokens at every position, so tokens
are simulated in copies: `N_ALL` tokens share the positions 0 ... n - 1 of a context of n.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.families.architecture import Pairing, RotarySpec
from orbitlens.flows.closure import simulate_closure
from orbitlens.flows.system import system_of_maps, with_settings
from orbitlens.heads.rotary import resolve_rotary, rotation_matrix
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome

WIDTH = 8
SIZE = 0.3  # standard deviation of a coordinate: scores stay small, attention soft
UNTIL = 2.0
N_STEPS = 4


def spec_of(base: float) -> RotarySpec:
    """Return the encoding of all coordinates with a base."""
    return RotarySpec(base=base, d_rotary=WIDTH, d_head=WIDTH, pairing=Pairing.HALVES)


def simulated_change(base: float, n_context: int, sign: float, tokens: Tokens) -> float:
    """Return ln of the factor by which the mean squared pair distance changes by t = `UNTIL`.

    W = I and V = sign I; RK4, with positions 0 ... n_context - 1 in turn along the tokens.
    """
    positions = torch.arange(len(tokens)) % n_context
    turn = _turner(positions, base)

    def drift(x: Tokens) -> Tokens:
        y = turn(x)
        return sign * torch.softmax(y @ y.T, dim=-1) @ x

    x, h = tokens, UNTIL / N_STEPS
    for _ in range(N_STEPS):
        k1 = drift(x)
        k2 = drift(x + h / 2 * k1)
        k3 = drift(x + h / 2 * k2)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + drift(x + h * k3))
    return math.log(_variance(x) / _variance(tokens))


def _turner(positions: Tensor, base: float) -> Callable[[Tokens], Tokens]:
    if math.isinf(base):  # no encoding at all
        return lambda x: x
    resolved = resolve_rotary(spec_of(base), int(positions.max()) + 1)
    places, index = positions.unique(return_inverse=True)
    turns = torch.stack([rotation_matrix(resolved, float(p)) for p in places])[index]
    return lambda x: torch.einsum("id,ide->ie", x, turns)


def _variance(x: Tokens) -> float:
    return float((x - x.mean(dim=0)).square().sum())


def closure_change(base: float, n_context: int, sign: float) -> float:
    """Return the same by the Gaussian closure with W averaged over the offsets of the context."""
    eye = torch.eye(WIDTH, dtype=torch.float64)
    system = system_of_maps(eye, sign * eye)
    if not math.isinf(base):
        system = with_settings(system, rotary=spec_of(base))
    trajectory = simulate_closure(
        system,
        torch.zeros(WIDTH, dtype=torch.float64),
        SIZE**2 * eye,
        until=UNTIL,
        n_context=n_context,
        n_saved=2,
    )
    return math.log(float(trajectory.covariances[-1].trace() / trajectory.covariances[0].trace()))


def _grid(bench: Bench) -> tuple[list[float], list[int], int]:
    bases = bench.pick([100.0], [10.0, 100.0, 10000.0], [10.0, 100.0, 1000.0, 10000.0, 1e6])
    contexts = bench.pick([4, 32], [1, 4, 16, 64, 256], [1, 2, 4, 8, 16, 32, 64, 128, 256])
    return bases, contexts, bench.pick(512, 1024, 4096)


Row = dict[str, float | list[float]]


def curves(bench: Bench) -> list[Row]:
    """Return simulated and predicted changes for every base, context and sign."""
    return bench.once("rotary curves", lambda: _curves(bench))


def _curves(bench: Bench) -> list[Row]:
    bases, contexts, n_tokens = _grid(bench)
    clouds = [
        SIZE * torch.randn(n_tokens, WIDTH, generator=bench.generator("cloud", s)).double()
        for s in bench.seeds
    ]
    ends = [contexts[0], contexts[-1]]
    places = [(b, n, s) for b in bases for n in contexts for s in (1.0, -1.0)]
    places += [(math.inf, n, s) for n in ends for s in (1.0, -1.0)]
    rows: list[Row] = []
    for number, (base, n_context, sign) in enumerate(places):
        rows.append(
            {
                "base": base if math.isfinite(base) else 0.0,
                "context": n_context,
                "sign": sign,
                "simulated": [simulated_change(base, n_context, sign, x) for x in clouds],
                "closure": closure_change(base, n_context, sign),
                "unturned": closure_change(math.inf, 1, sign),
            }
        )
        bench.step((number + 1) / len(places))
    return rows


def _errors(rows: list[Row], against: str) -> list[float]:
    """Return for each seed the mean gap between simulation and predicting, relative."""
    turned_rows = [row for row in rows if row["base"]]
    table = torch.tensor(
        [
            [(change - row[against]) / row["unturned"] for change in row["simulated"]]  # type: ignore[operator,union-attr]
            for row in turned_rows
        ]
    )
    means: list[float] = table.abs().mean(dim=0).tolist()
    return means


def closure_follows(bench: Bench) -> Outcome:
    """4b: the closure's error over bases, contexts and signs; control: one that ignores turning."""
    rows = curves(bench)
    return Outcome(
        result=estimate.mean(_errors(rows, "closure")),
        control=estimate.mean(_errors(rows, "unturned")),
        data={"rows": rows},
    )


def slows_with_context(bench: Bench) -> Outcome:
    """4c: change in the longest context over that in the shortest; control: no rotary encoding."""
    rows = curves(bench)
    contexts = [row["context"] for row in rows]
    short, long = min(contexts, key=_number), max(contexts, key=_number)

    def ratios(turning: bool) -> list[float]:
        values: list[float] = []
        for row in rows:
            if bool(row["base"]) is not turning or row["context"] != long:
                continue
            first = next(
                other
                for other in rows
                if other["context"] == short
                and (other["base"], other["sign"]) == (row["base"], row["sign"])
            )
            pairs = zip(row["simulated"], first["simulated"], strict=True)  # type: ignore[arg-type]
            values += [float(a / b) for a, b in pairs]
        return values

    return Outcome(
        result=estimate.mean(ratios(True), of="bases, signs and seeds"),
        control=estimate.mean(ratios(False), of="signs and seeds"),
    )


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
