"""What a scan reads on text: what each head and layer does to tokens, and how tokens vary.

Enters: a model and a text, which are traced. Leaves: `TokenEffect`s by place, the same numbers as a
trace's table, and the covariances that make readings data-aware.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from orbitlens._types import Covariance
from orbitlens.errors import InputError
from orbitlens.running.model import Model
from orbitlens.scanning.scan_result import LayerScan, TextInfo, TokenEffect


@dataclass(frozen=True, kw_only=True)
class TextReadings:
    """A traced text, as a scan takes it."""

    info: TextInfo
    effects: Mapping[tuple[str, int, str], TokenEffect]  # (stack, layer, part)
    covariances: Mapping[tuple[str, int], Covariance]  # (stack, layer)
    flags: tuple[str, ...]

    def added_to(self, layer: LayerScan) -> LayerScan:
        """Return a layer with what it and its heads do to the tokens of the text."""
        place = (layer.stack, layer.layer)
        heads = [replace(h, on_text=self.effects[*place, f"head {h.head}"]) for h in layer.heads]
        return replace(layer, on_text=self.effects[*place, "attention"], heads=tuple(heads))


def read_on_text(
    model: Model,
    text: Any,  # noqa: ANN401 - what `trace` takes
    *,
    progress: Callable[[int, int | None], None] | None = None,
) -> TextReadings:
    """Trace a model on a text and return what its heads and layers do to tokens."""
    # A scan of the weights alone runs nothing, and does not wait for what a trace needs.
    from orbitlens.tracing.api import trace_and_covariances
    from orbitlens.tracing.trace_result import DEFAULT_CLOSURE
    from orbitlens.tracing.views import part_rows

    traced, named = trace_and_covariances(model, text, progress=progress)
    info = TextInfo(
        n_tokens=traced.n_tokens,
        n_contexts=traced.n_contexts,
        context=traced.context,
        closure=DEFAULT_CLOSURE,
    )
    return TextReadings(
        info=info,
        effects=_effects(part_rows(traced)),
        covariances=covariances_by_place(named),
        flags=traced.flags,
    )


def _effects(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int, str], TokenEffect]:
    names = ("log_change", "predicted", "raw_log_change")
    return {
        (row["stack"], row["layer"], row["part"]): TokenEffect(
            **{name: row[name] for name in names}
        )
        for row in rows
        if row["predicted"] is not None  # MLPs and norms have no prediction
    }


def covariances_by_place(named: Mapping[str, Covariance]) -> dict[tuple[str, int], Covariance]:
    """Return covariances by stack and layer; a trace names them "decoder.0".

    Raises:
        InputError: a name says no layer.
    """
    found = {}
    for name, covariance in named.items():
        stack, dot, layer = name.rpartition(".")
        if not dot or re.fullmatch("[0-9]{1,5}", layer) is None:
            raise InputError(
                f"the covariance {name!r} does not say which layer it belongs to. "
                "Expected names such as 'decoder.0' or 'encoder.3'."
            )
        found[(stack, int(layer))] = covariance
    return found
