"""Train one model: a bare loop over one run.

Enters: a `RunConfig` and a folder. Leaves: a `RunResult`, and in `folder/<hash of the config>`: the
model in Hugging Face layout, its log in JSON lines, and the result. A run that was killed continues
from its last state when it is started again, and ends with the same bits: a batch is a function of
its number, and nothing else in the loop is random. One process at a time owns the folder.
"""

import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orbitlens.errors import InputError, TrainingError
from orbitlens.files import drop_drafts, read_json, write_folder, write_whole
from orbitlens.lab.devices import Tracker, check_share, make_accelerator
from orbitlens.lab.geometry import convergence, watched
from orbitlens.lab.judging import judge
from orbitlens.lab.ownership import owned, writing
from orbitlens.lab.recipe import (
    build_model,
    check_run,
    learning_rate,
    make_optimizer,
    training_batch,
)
from orbitlens.lab.run import RunConfig, RunResult, task_of
from orbitlens.lab.run_state import (
    LOG,
    MODEL,
    RESULT,
    STATE,
    State,
    append_line,
    cut_log,
    of_this_run,
    optimizer_moments,
    read_log,
    read_state,
    restore_moments,
    write_state,
)
from orbitlens.lab.tasks import Batch
from orbitlens.lab.tasks.base import stream_seed
from orbitlens.lab.tasks.language import TextTask
from orbitlens.lab.tokenizer import character_tokenizer
from orbitlens.results.codec import decode
from orbitlens.running.threads import threads_for
from orbitlens.watching.api import Watch

LARGEST_RESULT = 16_000_000  # bytes of a run's result
WATCH_EVERY = 25  # steps
LOG_EVERY = 50  # steps; also how often losses are checked
STATE_EVERY = 5.0  # seconds
SHOW_EVERY = 0.2  # seconds
N_VALID = 256  # examples of each validation
VALIDATIONS = 10  # in a run


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
    watch: bool = False,
) -> RunResult:
    """Train, judge and write one run; one that is done already is read, not repeated.

    With `watch` readings of the model go into the run's folder; they change no bit of the run.

    Raises:
        InputError: the task, a switch or a size does not fit.
        TrainingError: the loss is not finite, the folder cannot be written, or another process is
            training this run.
    """
    path = folder / check_run(config)
    done = finished(path)
    if done is not None:
        return done
    accelerator = make_accelerator(path, tracker)
    with owned(path) if accelerator.is_main_process else nullcontext():
        # Another process may have ended it while this one waited for the folder.
        done = finished(path) if accelerator.num_processes == 1 else None
        return done or _trained(_Run(config, path, accelerator, watch=watch), progress)


def _trained(run: "_Run", progress: Progress | None) -> RunResult:
    with threads_for(run.n_parameters):
        run.go(progress)
        return run.finish()


def finished(path: Path) -> RunResult | None:
    """Return the result in a run's folder, as `read_result` does, and tidy up behind it.

    A run killed between its result and the end of its last state leaves both.
    """
    result = read_result(path)
    if result is not None and (path / STATE).exists():
        with writing(path):
            (path / STATE).unlink(missing_ok=True)
    return result


def read_result(path: Path) -> RunResult | None:
    """Return the result in a run's folder; None where the run is not done.

    Raises:
        TrainingError: there is a file, and it is not the result of a run.
    """
    file = path / RESULT
    try:
        result: RunResult = decode(RunResult, read_json(file, LARGEST_RESULT))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, InputError) as error:
        raise TrainingError(
            f"{file}: this result of a run cannot be read ({error}). Delete it to train again."
        ) from error
    return result


class _Run:
    """One run in this process: model, optimizer, and where it stands."""

    def __init__(
        self,
        config: RunConfig,
        path: Path,
        accelerator: Any,  # noqa: ANN401
        *,
        watch: bool = False,
    ) -> None:
        self.watch = Watch(every=WATCH_EVERY, path=path) if watch else None
        self.config, self.path, self.task = config, path, task_of(config)
        self.accelerator, self.is_main = accelerator, accelerator.is_main_process
        self.rank, self.world = accelerator.process_index, accelerator.num_processes
        check_share(config.batch, self.world)
        self.core = build_model(config, self.task).train()
        self.n_parameters = sum(p.numel() for p in self.core.parameters())
        self.step, self.log_bytes = 0, 0
        self.seconds, self.cpu_seconds = 0.0, 0.0
        self.losses: list[Tensor] = []
        self._prepare_folder()
        state = read_state(path)
        if state is not None:
            with of_this_run(path):
                self.core.load_state_dict(state.weights)
        self.model = accelerator.prepare(self.core)  # moves it, and joins processes
        self.optimizer = make_optimizer(self.core, config)
        self.parameters = [p for p in self.core.parameters() if p.requires_grad]
        if state is not None:
            self._restore(state)

    def _prepare_folder(self) -> None:
        if self.is_main:
            with writing(self.path):
                drop_drafts(self.path)
                text = json.dumps(self.config.to_json(), indent=1) + "\n"
                write_whole(self.path / "config.json", text.encode(), onto_disk=True)
        self.accelerator.wait_for_everyone()

    def _restore(self, state: State) -> None:
        with of_this_run(self.path):
            restore_moments(self.optimizer, state.moments)
        self.step, self.log_bytes = state.step, state.log_bytes
        self.seconds, self.cpu_seconds = state.seconds, state.cpu_seconds
        self.losses = list(state.losses.to(self.core.device))

    def go(self, progress: Progress | None) -> None:
        """Run the steps that are left."""
        if self.is_main:
            cut_log(self.path / LOG, self.log_bytes)
            if self.step == 0 and self.config.measure:
                self._write({"step": 0, "watched": watched(self.core, self.task)})
        first, started = self.step, time.perf_counter()
        saved = shown = started
        while self.step < self.config.steps:
            now = self._timed_step()
            self._watch()
            if self.step % LOG_EVERY == 0 or self.step == self.config.steps:
                self._log()
            elif progress is not None and now - shown > SHOW_EVERY:
                shown = now
                progress(self._tick((self.step - first) / (now - started)))
            if now - saved > STATE_EVERY and self.step < self.config.steps:
                saved = now
                self._save()

    def _watch(self) -> None:
        """Read the model where a reading is due; the batch is that of the step that was taken."""
        if self.watch is None or not self.watch.is_due(self.step):
            return
        batch = training_batch(self.config, self.task, self.step - 1).inputs
        self.watch(self.core, self.step, batch, self.losses[-1])

    def _tick(self, rate: float) -> Tick:
        loss = self.losses[-1].item()
        return Tick(step=self.step, steps=self.config.steps, loss=loss, rate=rate)

    def _timed_step(self) -> float:
        """Take a step and return the time; judging, logging and saving do not count as training."""
        wall, cpu = time.perf_counter(), time.process_time()
        self._one_step()
        now = time.perf_counter()
        self.seconds += now - wall
        self.cpu_seconds += time.process_time() - cpu
        return now

    def _one_step(self) -> None:
        config = self.config
        batch = training_batch(config, self.task, self.step)
        loss = self._loss(batch)
        total = loss + self.core.extra_loss() if config.adds_loss else loss
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, config.clip, foreach=True)
        rate = learning_rate(config, self.step)
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
            "lr": learning_rate(self.config, self.step - 1),
            "seconds": round(self.seconds, 3),
        }
        if _is_validation(self.step, self.config.steps):
            score = judge(
                self.core, self.task, split="valid", n_examples=N_VALID, batch=self.config.batch
            )
            line |= {"valid_loss": score.loss, "valid_accuracy": score.accuracy}
        if self.accelerator.trackers:
            self.accelerator.log({k: v for k, v in line.items() if k != "step"}, step=self.step)
        if self.is_main:
            if self.config.measure and "valid_loss" in line:
                line["watched"] = watched(self.core, self.task)
            self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        with writing(self.path):
            self.log_bytes = append_line(self.path / LOG, line)

    def _save(self) -> None:
        losses = torch.stack(self.losses) if self.losses else torch.zeros(0)
        if not self.is_main or not losses.isfinite().all():  # the next log line stops the run
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
        result = self._result()
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

    def _result(self) -> RunResult:
        config = self.config
        score = judge(
            self.core, self.task, split="test", n_examples=config.judged, batch=config.batch
        )
        return RunResult(
            config=config,
            seed=config.seed,
            loss=score.loss,
            accuracy=score.accuracy,
            token_accuracy=score.token_accuracy,
            steps=self.step,
            seconds=self.seconds,
            cpu_seconds=self.cpu_seconds,
            parameters=self.n_parameters,
            measured=self._measured() if config.measure else None,
        )

    def _measured(self) -> dict[str, Any]:
        """Return where tokens are at the end, and what was noted on the way."""
        kept = ("step", "valid_loss", "watched")
        lines = read_log(self.path / LOG)
        history = [{k: line[k] for k in kept if k in line} for line in lines if "watched" in line]
        return convergence(self.core, self.task) | {"history": history}

    def _write_model(self, folder: Path) -> None:
        self.core.save_pretrained(folder)
        if isinstance(self.task, TextTask):
            character_tokenizer(self.task).save_pretrained(folder)


def _is_validation(step: int, steps: int) -> bool:
    """Whether the valid split is judged: at the first log line past each tenth."""
    return step == steps or step * VALIDATIONS // steps > (step - LOG_EVERY) * VALIDATIONS // steps
