"""Train one model: a bare loop, with devices and processes from Accelerate.

Enters: a `RunConfig` and a folder. Leaves: a `RunResult`, and in `folder/<hash of the config>`: the
model in Hugging Face layout, its log in JSON lines, and the result. A run that was killed goes on
from its last state when it is started again, and ends with the same bits: a batch is a function of
its number, and nothing else in the loop is random.

Accelerate places the model (`accelerate launch` for many processes, with no other change); its
wrappers stay out of the loop, where each would cost time at every step.
"""

import importlib.util
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from orbitlens.errors import InputError, MissingPackageError, TrainingError
from orbitlens.files import write_whole
from orbitlens.lab.judging import convergence, judge
from orbitlens.lab.recipe import (
    build_model,
    check_run,
    make_optimizer,
    orbit_config,
    rate_at,
    training_batch,
)
from orbitlens.lab.run import RunConfig, RunResult, result_from_json, run_config, run_hash, task_of
from orbitlens.lab.run_state import (
    LOG,
    MODEL,
    RESULT,
    STATE,
    State,
    append_line,
    cut_log,
    drop_drafts,
    optimizer_moments,
    read_state,
    restore_moments,
    write_folder,
    write_state,
    writing,
)
from orbitlens.lab.tasks import Batch
from orbitlens.lab.tasks.base import stream_seed
from orbitlens.lab.tasks.text import TextTask
from orbitlens.lab.tokenizer import character_tokenizer
from orbitlens.running.loading import threads_for

LOG_EVERY = 50  # steps; also how often losses are looked at
STATE_EVERY = 5.0  # seconds
N_VALID = 256  # examples of each look at the valid split
LOOKS = 10  # at the valid split, in a run
Tracker = Literal["tensorboard", "mlflow"]


@dataclass(frozen=True, kw_only=True)
class Tick:
    """How far a run is, for a progress bar."""

    step: int
    steps: int
    loss: float
    rate: float  # steps a second


Progress = Callable[[Tick], None]


def train(
    config: RunConfig,
    folder: Path,
    *,
    progress: Progress | None = None,
    tracker: Tracker | None = None,
) -> RunResult:
    """Train, judge and write one run; one that is done already is read, not repeated.

    Raises:
        InputError: the task, a switch or a size does not fit.
        TrainingError: the loss is not finite, or the folder cannot be written.
    """
    path = folder / check_run(config)
    done = read_result(path)
    if done is not None:
        return done
    run = _Run(config, path, tracker)
    with threads_for(run.n_parameters):
        run.go(progress)
        return run.finish()


def read_result(path: Path) -> RunResult | None:
    """Return the result in a run's folder; None where the run is not done."""
    try:
        data = json.loads((path / RESULT).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path / RESULT}: cannot be read ({error}). Delete it.") from error
    return result_from_json(data)


class _Run:
    """One run in this process: model, optimizer, and where it stands."""

    def __init__(self, config: RunConfig, path: Path, tracker: Tracker | None) -> None:
        self.config, self.path, self.task = config, path, task_of(config)
        self.accelerator = _accelerator(path, tracker)
        self.is_main = self.accelerator.is_main_process
        self.rank, self.world = self.accelerator.process_index, self.accelerator.num_processes
        if config.batch % self.world:
            raise InputError(
                f"batch={config.batch} does not split over {self.world} processes. Choose a "
                "multiple."
            )
        self.core = build_model(config, self.task).train()
        self.n_parameters = sum(p.numel() for p in self.core.parameters())
        self.step, self.log_bytes = 0, 0
        self.seconds, self.cpu_seconds = 0.0, 0.0
        self.losses: list[Tensor] = []
        self._prepare_folder()
        state = read_state(path)
        if state is not None:
            self.core.load_state_dict(state.weights)
        self.model = self.accelerator.prepare(self.core)  # moves it, and joins processes
        self.optimizer = make_optimizer(self.core, config)
        self.parameters = [p for p in self.core.parameters() if p.requires_grad]
        if state is not None:
            self._restore(state)

    def _prepare_folder(self) -> None:
        if self.is_main:
            with writing(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                drop_drafts(self.path)
                text = json.dumps(self.config.to_json(), indent=1) + "\n"
                write_whole(self.path / "config.json", text.encode(), onto_disk=True)
        self.accelerator.wait_for_everyone()

    def _restore(self, state: State) -> None:
        restore_moments(self.optimizer, state.moments)
        self.step, self.log_bytes = state.step, state.log_bytes
        self.seconds, self.cpu_seconds = state.seconds, state.cpu_seconds
        self.losses = list(state.losses.to(self.core.device))

    def go(self, progress: Progress | None) -> None:
        """Run the steps that are left."""
        if self.is_main:
            cut_log(self.path / LOG, self.log_bytes)
        first, started = self.step, time.perf_counter()
        saved = shown = started
        while self.step < self.config.steps:
            wall, cpu = time.perf_counter(), time.process_time()
            self._one_step()
            now = time.perf_counter()
            self.seconds += now - wall  # looking, logging and saving is not training
            self.cpu_seconds += time.process_time() - cpu
            if self.step % LOG_EVERY == 0 or self.step == self.config.steps:
                self._log()
            elif progress is not None and now - shown > 0.2:
                shown = now
                rate = (self.step - first) / (now - started)
                loss = self.losses[-1].item()
                progress(Tick(step=self.step, steps=self.config.steps, loss=loss, rate=rate))
            if now - saved > STATE_EVERY and self.step < self.config.steps:
                saved = now
                self._save()

    def _one_step(self) -> None:
        config = self.config
        batch = training_batch(config, self.task, self.step)
        loss = self._loss(batch)
        total = loss + self.core.extra_loss() if config.adds_loss else loss
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, config.clip, foreach=True)
        rate = rate_at(config, self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if config.refinement != "none":
            self.core.after_step()
        self.losses.append(loss.detach())
        self.step += 1

    def _loss(self, batch: Batch) -> Tensor:
        device = self.core.device
        inputs = batch.inputs[self.rank :: self.world].to(device)
        targets = batch.targets[self.rank :: self.world].to(device)
        if self.task.kind == "images":
            loss: Tensor = self.model(pixel_values=inputs, labels=targets).loss
        else:
            loss = self.model(input_ids=inputs, targets=targets).loss
        return loss

    def _check_losses(self) -> Tensor:
        """Return the losses not yet logged; stop at the first that is not finite."""
        losses = torch.stack(self.losses)
        if self.world > 1:  # so that all processes log, and stop at, the same
            losses = self.accelerator.reduce(losses, reduction="mean")
        broken = (~losses.isfinite()).nonzero()[:, 0].tolist()
        if broken:
            step = self.step - len(self.losses) + broken[0]
            seed = stream_seed(self.task.name, "train", step, self.config.seed)
            raise TrainingError(
                f"{self.path}: the loss of step {step} is {losses[broken[0]].item()} (batch seed "
                f"{seed}). This run is stopped; try a smaller lr, a longer warm-up or a norm."
            )
        return losses

    def _log(self) -> None:
        losses = self._check_losses()
        self.losses = []
        line: dict[str, Any] = {
            "step": self.step,
            "loss": losses.mean().item(),
            "lr": rate_at(self.config, self.step - 1),
            "seconds": round(self.seconds, 3),
        }
        if _is_look(self.step, self.config.steps):
            score = judge(
                self.core, self.task, split="valid", n_examples=N_VALID, batch=self.config.batch
            )
            line |= {"valid_loss": score.loss, "valid_accuracy": score.accuracy}
        if self.is_main:
            with writing(self.path):
                self.log_bytes = append_line(self.path / LOG, line)
        if self.accelerator.trackers:
            self.accelerator.log({k: v for k, v in line.items() if k != "step"}, step=self.step)

    def _save(self) -> None:
        losses = torch.stack(self.losses) if self.losses else torch.zeros(0)
        if not self.is_main or not losses.isfinite().all():  # the next look at losses stops the run
            return
        state = State(
            step=self.step,
            seconds=self.seconds,
            cpu_seconds=self.cpu_seconds,
            log_bytes=self.log_bytes,
            weights=self.core.state_dict(),
            moments=optimizer_moments(self.optimizer),
            losses=losses,
        )
        with writing(self.path):
            write_state(self.path, state)

    def finish(self) -> RunResult:
        """Judge the model on the test split and write model and result; the result comes last."""
        config = self.config
        score = judge(
            self.core, self.task, split="test", n_examples=config.judged, batch=config.batch
        )
        result = RunResult(
            config=config,
            seed=config.seed,
            loss=score.loss,
            accuracy=score.accuracy,
            token_accuracy=score.token_accuracy,
            steps=self.step,
            seconds=self.seconds,
            cpu_seconds=self.cpu_seconds,
            parameters=self.n_parameters,
            measured=convergence(self.core, self.task) if config.measure else None,
        )
        if self.is_main:
            with writing(self.path):
                write_folder(self.path / MODEL, self._write_model)
                text = json.dumps(result.to_json(), indent=1, allow_nan=False) + "\n"
                write_whole(self.path / RESULT, text.encode(), onto_disk=True)
                (self.path / STATE).unlink(missing_ok=True)
        if self.accelerator.trackers:
            self.accelerator.end_training()
        self.accelerator.wait_for_everyone()
        return result

    def _write_model(self, folder: Path) -> None:
        self.core.save_pretrained(folder)
        if isinstance(self.task, TextTask):
            character_tokenizer(self.task).save_pretrained(folder)


def _is_look(step: int, steps: int) -> bool:
    """Say whether the valid split is looked at: at the first log line past each tenth."""
    return step == steps or step * LOOKS // steps > (step - LOG_EVERY) * LOOKS // steps


def _accelerator(path: Path, tracker: Tracker | None) -> Any:  # noqa: ANN401
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
        raise MissingPackageError(f"--tracker {tracker} needs {tracker}: pip install {tracker}")
    accelerator = Accelerator(log_with=tracker, project_dir=path if tracker else None)
    if accelerator.mixed_precision == "fp16":
        raise InputError("float16 training is not supported. Set mixed_precision to bf16 or no.")
    if tracker is not None:
        accelerator.init_trackers("orbitlens")
    return accelerator


__all__ = [
    "Progress",
    "RunConfig",
    "RunResult",
    "Tick",
    "build_model",
    "check_run",
    "make_optimizer",
    "orbit_config",
    "rate_at",
    "read_result",
    "run_config",
    "run_hash",
    "task_of",
    "train",
    "training_batch",
]
