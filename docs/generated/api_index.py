"""The table of public names in docs/api/index.md."""

from generated.tables import table

import orbitlens


def public_names() -> str:
    """Return every name of `orbitlens.__all__` with what it says and where it lives."""
    rows = []
    for name in orbitlens.__all__:
        value = getattr(orbitlens, name)
        module = value.__module__.removeprefix("orbitlens.")
        rows.append((f"`{name}`", value.__doc__.strip().splitlines()[0], f"`{module}`"))
    return table(["Name", "Says", "Module"], rows)
