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
class ZooModel:
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


def zoo_home() -> Path:
    """Return the folder that holds the models of the package."""
    return Path(str(files("orbitlens").joinpath("checkpoint", "zoo_models")))


def zoo_names() -> tuple[str, ...]:
    """Return the names of the models in the package."""
    home = zoo_home()
    folders = sorted(home.glob(f"{PREFIX}*")) if home.is_dir() else []
    return tuple(folder.name for folder in folders if find_in_zoo(folder.name) is not None)


def find_in_zoo(name: str) -> Path | None:
    """Return the folder of a model of the package; None if there is none of that name."""
    if not name.startswith(PREFIX) or "/" in name or "\\" in name:
        return None
    folder = zoo_home() / name
    return folder if (folder / "config.json").is_file() else None


def zoo_path(name: str) -> Path:
    """Return the folder of a model of the package.

    Raises:
        InputError: there is none of that name; the message lists those there are.
    """
    folder = find_in_zoo(name)
    if folder is None:
        known = ", ".join(zoo_names()) or "none in this installation"
        raise InputError(f"{name!r} is not in the zoo. Choose one of: {known}.")
    return folder


def zoo_model(name: str) -> ZooModel:
    """Return what is known about a model of the package."""
    folder = zoo_path(name)
    recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    return ZooModel(
        name=name,
        position=recipe["run"]["position"],
        parameters=recipe["parameters"],
        n_bytes=sum(file.stat().st_size for file in folder.iterdir()),
        test_loss=recipe["test_loss"],
        test_accuracy=recipe["test_accuracy"],
        recipe=recipe,
    )
