"""Where a run computes: devices, processes and trackers, from Accelerate.

Enters: a run's folder and a tracker's name. Leaves: an `Accelerator`. It places the model
(`accelerate launch` for several processes, with no other change); its wrappers stay out of the
training loop, where each would cost time at every step.
"""

import importlib.util
from pathlib import Path
from typing import Any, Literal

from orbitlens.errors import InputError, MissingPackageError

Tracker = Literal["tensorboard", "mlflow"]


def make_accelerator(path: Path, tracker: Tracker | None) -> Any:  # noqa: ANN401 - no types
    """Return Accelerate's view of devices and processes.

    Raises:
        MissingPackageError: Accelerate, or the tracker asked for, is not installed.
        InputError: it is set to float16, whose scaled gradients the bare loop does not know.
    """
    try:
        from accelerate import Accelerator
    except ImportError as error:
        raise MissingPackageError(
            "training needs accelerate: pip install 'orbitlens[lab]'"
        ) from error
    if tracker is not None and importlib.util.find_spec(tracker) is None:
        raise MissingPackageError(f"logging to {tracker} needs that package: pip install {tracker}")
    accelerator = Accelerator(log_with=tracker, project_dir=path if tracker else None)
    if accelerator.mixed_precision == "fp16":
        raise InputError("float16 training is not supported. Set mixed_precision to bf16 or no.")
    if tracker is not None:
        accelerator.init_trackers("orbitlens")
    return accelerator


def check_share(batch: int, n_processes: int) -> None:
    """Refuse a batch that processes cannot share evenly."""
    if batch % n_processes:
        raise InputError(
            f"batch={batch} does not split over {n_processes} processes. Choose a multiple."
        )
