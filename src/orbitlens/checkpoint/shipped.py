"""The models inside the package, by name.

Enters: a name. Leaves: the folder of that model in Hugging Face layout, and what its recipe says
about it. `zoo/train_zoo.py` in the repository is how they were made.
"""

import json
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from orbitlens.errors import InputError

PREFIX = "orbit-nano-"


@dataclass(frozen=True, kw_only=True)
class ShippedModel:
    """One model of the package, as its recipe describes it."""

    name: str
    position: str
    parameters: int
    n_bytes: int  # of its files
    test_loss: float  # nats a character, of the weights as they are shipped
    test_accuracy: float  # share of characters predicted
    recipe: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def shipped_home() -> Path:
    """Return the folder that holds the models of the package."""
    return Path(str(files("orbitlens").joinpath("lab", "models")))


def shipped_names() -> tuple[str, ...]:
    """Return the names of the models in the package."""
    home = shipped_home()
    found = sorted(folder.name for folder in home.glob(f"{PREFIX}*")) if home.is_dir() else []
    return tuple(name for name in found if find_shipped(name) is not None)


def find_shipped(name: str) -> Path | None:
    """Return the folder of a model of the package; None if there is none of that name."""
    if not name.startswith(PREFIX) or "/" in name or "\\" in name:
        return None
    folder = shipped_home() / name
    return folder if (folder / "config.json").is_file() else None


def shipped_path(name: str) -> Path:
    """Return the folder of a model of the package.

    Raises:
        InputError: there is none of that name; the message lists those there are.
    """
    folder = find_shipped(name)
    if folder is None:
        known = ", ".join(shipped_names()) or "none in this installation"
        raise InputError(f"{name!r} is not in the zoo. Choose one of: {known}.")
    return folder


def shipped_model(name: str) -> ShippedModel:
    """Return what is known about a model of the package."""
    folder = shipped_path(name)
    recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    return ShippedModel(
        name=name,
        position=recipe["run"]["position"],
        parameters=recipe["parameters"],
        n_bytes=sum(file.stat().st_size for file in folder.iterdir()),
        test_loss=recipe["test_loss"],
        test_accuracy=recipe["test_accuracy"],
        recipe=recipe,
    )
