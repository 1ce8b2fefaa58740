"""The zoo: small character models inside the package, so that everything runs with no download.

Enters: a name. Leaves: its folder in Hugging Face layout, or what its recipe says about it. Every
command and `load_checkpoint` take these names as they take paths. The functions live below the lab,
in `checkpoint/shipped.py`: reading a file must not need what trains one.
"""

from orbitlens.checkpoint.shipped import ShippedModel
from orbitlens.checkpoint.shipped import shipped_model as zoo_model
from orbitlens.checkpoint.shipped import shipped_names as zoo_names
from orbitlens.checkpoint.shipped import shipped_path as zoo_path

__all__ = ["ShippedModel", "zoo_model", "zoo_names", "zoo_path"]
