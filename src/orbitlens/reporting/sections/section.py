"""Section: one part of a report, from the data of a model to charts, tables and HTML."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orbitlens.reporting.chart import PageChart
from orbitlens.reporting.data import ModelReport
from orbitlens.reporting.markup import Table


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a section of one model stands: what its HTML needs besides the model."""

    k: int  # the number of the model in the report
    charts: Mapping[str, str]  # HTML of its charts, by their keys
    scale: float  # end of the colour scale that all maps of heads share, of what they do
    weights_scale: float  # the same, of the index read from weights


@dataclass(frozen=True, kw_only=True)
class Section:
    """One section: what it is called, and how it is made of a model's data."""

    key: str
    title: str
    lead: str  # what it shows, in a sentence
    term: str  # the definition that its lead links to
    body: Callable[[ModelReport, Place], str] | None = None  # None: inside another, or export only
    charts: Callable[[ModelReport], Sequence[PageChart]] = lambda model: ()
    tables: Callable[[ModelReport], Sequence[Table]] = lambda model: ()  # for CSV files
    is_shown: Callable[[ModelReport], bool] = lambda model: True  # of any model: it has a place
    columns: int = 3  # of the section's picture
    pictures: Callable[[ModelReport], Sequence[PageChart]] | None = None  # where not `charts`
