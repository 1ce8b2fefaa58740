"""Copy as Python: the few lines that compute what the page shows.

Enters: a function of this folder and what it was called with. Leaves: a script. Strings go in by
`repr`, so that no text can end its quotes.
"""

from dataclasses import fields
from typing import Any

from orbitlens.exploring.passes import Explored
from orbitlens.exploring.sentence import Prompt

LEVELS = "LEVELS"  # of a picture: its page, which has them, puts the line in front
HOMES = {
    "read_model": "model_data",
    "read_attention": "model_data",
    "read_heads": "head_map",
    "read_order": "order_data",
    "read_swaps": "order_data",
    "read_usual": "order_data",
}
# What a script prints: the numbers that a room shows, not the whole of a reading.
PRINTS = {
    "read_model": (
        "for run in filter(None, (reading.before, reading.after)):",
        '    print("C by depth:", *(round(c, 3) for c in run.cosine))',
        '    print("predicted:", *(f"{o.name!r} {o.probability:.3f}" for o in run.outcomes))',
        'print("the prediction moves by", reading.change)',
    ),
    "read_order": (
        "for one in reading.cells:",
        "    print(one.cell, one.change, one.why)",
    ),
}


def python_of(
    explored: Explored, function: str, given: Prompt | None, *arguments: object, **named: object
) -> str:
    """Return a script whose `reading` holds what the page shows.

    >>> "read_model" in HOMES
    True
    """
    parts = [repr(value) for value in arguments]
    if given is not None:
        parts.insert(0, _given(given))
    parts += [f"{name}={value!r}" for name, value in named.items() if value not in ([], None)]
    call = ", ".join(["model", *parts])
    imports = [f"from orbitlens.exploring.{HOMES[function]} import {function}"]
    if given is not None:
        imports.append("from orbitlens.exploring.sentence import Prompt")
    return "\n".join(
        [
            "import orbitlens as ol",
            *imports,
            "",
            f"model = ol.load({explored.source!r})",
            f"reading = {function}({call})",
            *PRINTS.get(function, ("print(reading)",)),
            "",
        ]
    )


def _given(given: Prompt) -> str:
    values: dict[str, Any] = {f.name: getattr(given, f.name) for f in fields(given)}
    if values["levels"] is not None:
        return f"Prompt(levels={LEVELS})"
    kept = ", ".join(f"{name}={v!r}" for name, v in values.items() if v is not None)
    return f"Prompt({kept})"
