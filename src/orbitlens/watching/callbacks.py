"""`Watch` in other people's loops: callbacks for the Trainers of transformers and of Lightning.

Enters: a `Watch`. Leaves: a callback that calls it. Accelerate has no loop of its own: there, call
`watch(model, step, batch)` with the prepared model. The other packages are imported here only.
"""

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from orbitlens.errors import MissingPackageError
from orbitlens.watching.watched_module import readable

if TYPE_CHECKING:
    from orbitlens.watching.api import Watch

TrainerWatch = Any  # of a class that is made when it is asked for: its base is another package's
LightningWatch = Any


class Catcher:
    """Keeps what a module was fed, and the loss it returned, when a reading will ask for them."""

    def __init__(self, watch: "Watch", module: nn.Module) -> None:
        """Hook a module; `step` says at which step it is."""
        self.watch, self.step = watch, 0
        self.batch: Any = None
        self.loss: Tensor | None = None
        self._handle = readable(module).register_forward_hook(self._catch, with_kwargs=True)

    def _catch(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:  # noqa: ANN401
        if not module.training or not self.watch.is_due(self.step):
            return
        loss = getattr(output, "loss", None)
        self.loss = loss.detach() if isinstance(loss, Tensor) else None
        if self.watch.is_due(self.step, with_tokens=True):
            self.batch = args[0] if args else kwargs

    def read(self, model: Any, step: int) -> None:  # noqa: ANN401 - a module
        """Have the watch read, and forget what was kept."""
        self.watch(model, step, self.batch, self.loss)
        self.step, self.batch, self.loss = step + 1, None, None

    def remove(self) -> None:
        """Take the hook away."""
        self._handle.remove()


def trainer_callback(watch: "Watch") -> TrainerWatch:
    """Return a `TrainerCallback` of transformers.

    Raises:
        MissingPackageError: transformers is not installed.
    """
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise MissingPackageError(
            "watch.callback() needs transformers: pip install 'orbitlens[measure]'"
        ) from error

    class _TrainerWatch(TrainerCallback):
        """Attaches before the first step, and reads after steps."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ANN401
            watch.attach(given["model"])
            self.catcher = Catcher(watch, given["model"])
            self.catcher.step = state.global_step + 1

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ANN401
            self.catcher.read(given["model"], state.global_step)
            if watch.stopped:
                control.should_training_stop = True

        def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ANN401
            self.catcher.remove()

    return _TrainerWatch()


def lightning_callback(watch: "Watch") -> LightningWatch:
    """Return a `Callback` of Lightning, by either of its names.

    Raises:
        MissingPackageError: Lightning is not installed.
    """

    class _LightningWatch(_lightning_base()):  # type: ignore[misc]
        """Attaches before the first step, and reads after steps."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401
            watch.attach(pl_module)
            self.catcher = Catcher(watch, pl_module)
            self.catcher.step = trainer.global_step + 1

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:  # noqa: ANN401
            self.catcher.read(pl_module, trainer.global_step)
            if watch.stopped:
                trainer.should_stop = True

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401
            self.catcher.remove()

    return _LightningWatch()


def _lightning_base() -> Any:  # noqa: ANN401 - a class
    try:
        from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback
        except ImportError as error:
            raise MissingPackageError(
                "watch.lightning() needs Lightning: pip install lightning"
            ) from error
    return Callback
