"""Write the frozen explorers of the zoo's models into docs/explorers, for the documentation's site.

    python docs/make_explorers.py

They are made anew by `make docs`, and are not kept in the repository.
"""

from pathlib import Path

import orbitlens as ol
from orbitlens.checkpoint.zoo import zoo_names

OUT = Path(__file__).parent / "explorers"


def main() -> None:
    """Write a page a model."""
    OUT.mkdir(exist_ok=True)
    for name in zoo_names():
        file = ol.explore(name).save(OUT / f"{name}.html")
        print(f"{file.relative_to(OUT.parent.parent)}: {file.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
