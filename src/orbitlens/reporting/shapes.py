"""Whether the parts of a report fit each other: what types alone do not say.

Enters: a model of a report that was read from a file. Leaves: nothing, or an error that names what
does not fit. The page's script relies on it: it draws rows of numbers beside each other.
"""

import math
from collections.abc import Iterable, Sequence

from orbitlens.errors import ResultError
from orbitlens.reporting.data import FlowFrames, HeadSpectra, ModelReport, Orbits


def check_shapes(model: ModelReport) -> None:
    """Refuse a model whose parts do not fit each other.

    Raises:
        ResultError: lists that belong together differ in length, or a number is not finite.
    """
    _check_layers(model)
    for flow in model.flows:
        _check_flow(flow)
    for spectra in model.spectra:
        _check_spectra(spectra)
    if model.orbits is not None:
        _check_orbits(model.orbits)


def _check_layers(model: ModelReport) -> None:
    for part, result in (("scan", model.scan), ("trace", model.trace)):
        if result is not None:
            _same(f"{part}.layers", "at least 1", bool(result.layers))
    for layer in model.scan.layers if model.scan is not None else ():
        shared = model.weights_of.get(layer.stack, ())
        _same("weights_of", f"layer {layer.layer}", 0 <= layer.layer < len(shared))
        numbers = [head.head for head in layer.heads]
        _same("scan.layers.heads", "0, 1, 2 ...", numbers == list(range(max(1, len(numbers)))))
    n_layers = len(model.trace.layers) if model.trace is not None else 0
    for band in model.bands.values():
        rows = [*band.directions.values(), *band.parts.values(), *band.metrics.values()]
        _same("bands", f"{n_layers} layers", all(len(row) == n_layers for row in rows))


def _check_flow(flow: FlowFrames) -> None:
    n = len(flow.clusters)
    _same("flows.positions", f"{len(flow.times)} moments", len(flow.positions) == len(flow.times))
    _same("flows.times", "at least 1", bool(flow.times))
    _same("flows.positions", f"{n} tokens", all(len(frame) == n for frame in flow.positions))
    _finite("flows", [*flow.times, *(v for frame in flow.positions for p in frame for v in p)])


def _check_spectra(one: HeadSpectra) -> None:
    n = len(one.offsets)
    fits = len(one.offset_index) == len(one.offset_size) == n
    _same("spectra.offset_index", f"{n} offsets", fits)
    _finite("spectra", [*one.rates, *(v for pair in one.eigenvalues for v in pair)])
    _finite("spectra", [*one.offset_index, *one.offset_size])


def _check_orbits(path: Orbits) -> None:
    n, depths = len(path.tokens), len(path.depths)
    _same("orbits.tokens", "at least 1", n > 0 and depths > 0)
    _same("orbits.cosine", f"{depths} depths", len(path.cosine) == depths)
    for name in ("shared", "bearings", "positions"):
        rows: Sequence[Sequence[object]] = getattr(path, name)
        fits = len(rows) == depths and all(len(row) == n for row in rows)
        _same(f"orbits.{name}", f"{depths} depths of {n} tokens", fits)
    _finite("orbits", [*path.cosine, *path.explained])
    _finite("orbits", [v for rows in (path.shared, path.bearings) for row in rows for v in row])
    _finite("orbits", [v for frame in path.positions for spot in frame for v in spot])


def _same(name: str, expected: str, fits: bool) -> None:
    if not fits:
        raise ResultError(f"{name}: expected {expected}.")


def _finite(name: str, values: Iterable[float]) -> None:
    if not all(math.isfinite(value) for value in values):
        raise ResultError(f"{name}: expected finite numbers.")
