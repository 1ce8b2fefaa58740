"""The ledger of `orbitlens verify`: how often each certificate was held, checked and broken.

Enters: trials. Leaves: a `Ledger`, a result that is saved and printed. A certificate that was never
held is no evidence for it, and the ledger says so.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orbitlens.results.base import Result
from orbitlens.results.html import HtmlTable
from orbitlens.results.tidy import data_frame
from orbitlens.theory.certificates import NORMALISED, THEOREMS
from orbitlens.verifying.episodes import Trial
from orbitlens.verifying.statements import tolerance

if TYPE_CHECKING:
    import pandas

KEPT = 20  # violations that are kept with what is needed to see them again
SETTINGS = ("family", "mask", "encoding", "geometry", "start", "drift", "biased", "n_heads")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What was seen of one certificate."""

    name: str
    held: int  # systems of which it was printed as held
    checked: int  # those whose episode could tell
    violations: int
    smallest_slack: float | None  # in the certificate's own unit; None: never checked


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A printed statement that a system broke."""

    name: str
    slack: float
    system: str  # the choices it was made of
    numbers: list[float]  # and its normal numbers


@dataclass(frozen=True, kw_only=True, repr=False)
class Ledger(Result):
    """What a search for false certificates came to."""

    KIND: ClassVar[str] = "ledger"

    n_systems: int
    seed: int
    entries: tuple[Entry, ...]
    violations: tuple[Violation, ...]
    settings: dict[str, dict[str, int]]  # how many systems of each choice

    @property
    def n_violations(self) -> int:
        """Number of broken statements."""
        return sum(entry.violations for entry in self.entries)

    @property
    def never_held(self) -> list[str]:
        """Certificates of which this run says nothing."""
        return [entry.name for entry in self.entries if entry.checked == 0]

    def summary(self) -> str:
        """Return the ledger in a sentence or two."""
        held = sum(entry.held for entry in self.entries)
        text = (
            f"{self.n_systems:,} systems, {held:,} certificates printed as held, "
            f"{self.n_violations} violations."
        )
        if self.never_held:
            text += f" Never checked: {', '.join(self.never_held)}."
        return text

    def rows(self) -> list[dict[str, object]]:
        """Return one row a certificate."""
        return [vars(entry) for entry in self.entries]

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row a certificate."""
        return data_frame(self.rows())

    def _tables(self) -> Sequence[HtmlTable]:
        columns = list(vars(self.entries[0]))
        rows = [[str(value) for value in row.values()] for row in self.rows()]
        return [HtmlTable(caption=self.summary(), columns=columns, rows=rows)]

    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        bars = go.Bar(x=[e.name for e in self.entries], y=[e.checked for e in self.entries])
        return go.Figure(bars).update_layout(title=self.summary(), yaxis_title="systems checked")


class Tally:
    """Trials, added up one after another."""

    def __init__(self, seed: int) -> None:
        """Start with nothing."""
        self._seed, self.n_systems = seed, 0
        self._held: Counter[str] = Counter()
        self._checked: Counter[str] = Counter()
        self._broken: Counter[str] = Counter()
        self._slack: dict[str, float] = {}
        self._violations: list[Violation] = []
        self._settings: dict[str, Counter[str]] = {name: Counter() for name in SETTINGS}

    def add(self, trials: Iterable[Trial]) -> None:
        """Count trials."""
        for trial in trials:
            self.n_systems += 1
            self._held.update(trial.held)
            self._checked.update(list(trial.slacks))
            for name in SETTINGS:
                self._settings[name][str(getattr(trial.recipe, name))] += 1
            for name, slack in trial.slacks.items():
                self._slack[name] = min(slack, self._slack.get(name, slack))
                if not slack >= -tolerance(name):
                    self._broken[name] += 1
                    self._note(name, slack, trial)

    def _note(self, name: str, slack: float, trial: Trial) -> None:
        if len(self._violations) < KEPT:
            made = ", ".join(f"{key}={value}" for key, value in vars(trial.recipe).items())
            numbers = trial.theta.tolist()
            self._violations.append(Violation(name=name, slack=slack, system=made, numbers=numbers))

    def merge(self, other: "Tally") -> None:
        """Add what another tally counted."""
        self.n_systems += other.n_systems
        self._held += other._held
        self._checked += other._checked
        self._broken += other._broken
        for name, slack in other._slack.items():
            self._slack[name] = min(slack, self._slack.get(name, slack))
        self._violations = [*self._violations, *other._violations][:KEPT]
        for name in SETTINGS:
            self._settings[name] += other._settings[name]

    def ledger(self) -> Ledger:
        """Return the sums."""
        entries = [
            Entry(
                name=name,
                held=self._held[name],
                checked=self._checked[name],
                violations=self._broken[name],
                smallest_slack=self._slack.get(name),
            )
            for name in (*THEOREMS, *NORMALISED)
        ]
        settings = {name: dict(sorted(counts.items())) for name, counts in self._settings.items()}
        return Ledger(
            n_systems=self.n_systems,
            seed=self._seed,
            entries=tuple(entries),
            violations=tuple(self._violations),
            settings=settings,
        )
