"""Simulations and phase diagrams -> what a terminal shows.

Apart from `terminal.py`, whose scan must not wait for the simulator's packages.
"""

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from orbitlens.flows.outcome import Fate
from orbitlens.flows.phase import PhaseDiagram
from orbitlens.flows.simulation import Simulation
from orbitlens.flows.system import Geometry
from orbitlens.terminal.colours import ABOVE, BELOW, NEITHER


def simulation_view(simulation: Simulation, console: Console) -> Iterator[RenderableType]:
    """Yield a simulation: what was predicted, what happened, and whether they agree."""
    yield Text(simulation.title + "\n")
    table = Table(box=None, padding=(0, 1), show_header=False, width=80)
    table.add_column(no_wrap=True)
    table.add_column()
    for left, right in simulation.lines():
        table.add_row(left, Text(right))
    yield table


def phase_view(diagram: PhaseDiagram, console: Console) -> Iterator[RenderableType]:
    """Yield a phase diagram: one cell a combination, its commonest fate, and the agreement."""
    sweep = diagram.sweep
    utf = (console.encoding or "").lower().startswith("utf")
    marks = {
        Fate.DIVERGING: ("▲" if utf else "O", ABOVE),
        Fate.CONVERGING: ("▼" if utf else "X", BELOW),
        Fate.MIXED: ("·" if utf else ".", NEITHER),
    }
    n_rows = len(sweep.y.values)
    gap = " " if 12 + 2 * len(sweep.x.values) <= console.width else ""
    text = Text(f"{sweep.y.name} (upwards) against {sweep.x.name} (across)\n", style="bold")
    for row in reversed(range(n_rows)):
        text.append(f"{sweep.y.values[row]:>10.4g}  ", style="not bold")
        for column in range(len(sweep.x.values)):
            cell = diagram.cells[column * n_rows + row]
            kind = max(Fate, key=lambda k: getattr(cell, k.value))
            symbol, style = marks[kind]
            text.append(symbol + gap, style="not bold " + style)
        text.append("\n")
    ends = f"{sweep.x.values[0]:.4g} to {sweep.x.values[-1]:.4g}"
    text.append(" " * 12 + ends + "\n", style="not bold")
    yield text
    geometry = sweep.base.geometry or Geometry.FREE
    names = ", ".join(f"{marks[kind][0]} {kind.words(geometry)}" for kind in Fate)
    agreement = sum(cell.agreement for cell in diagram.cells) / len(diagram.cells)
    yield Text(
        f"{names}; {sweep.n_seeds} seeds a cell. Theory predicted {agreement:.0%} of the runs."
    )
