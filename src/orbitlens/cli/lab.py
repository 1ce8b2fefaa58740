"""The commands `orbitlens train` and `orbitlens sweep`: small models, trained and compared."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbitlens.cli.output import (
    ClusterOption,
    JsonOption,
    WorkersOption,
    progress_bar,
    silence_transformers,
    stderr,
    stdout,
    write_json,
)
from orbitlens.cli.switch_options import with_switches
from orbitlens.errors import InputError, MissingPackageError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from orbitlens.lab.run import RunResult
    from orbitlens.lab.training import Progress

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any other setting or option of the task; repeatable."
    ),
]
FileOption = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="Of the tasks text and digits.")
]


@with_switches
def train(
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="addition, copy, sort, text, digits, ...")
    ],
    switches: dict[str, Any],
    layers: Annotated[int | None, typer.Option(metavar="L", help="Number of layers.")] = None,
    heads: Annotated[int | None, typer.Option(metavar="H", help="Heads a layer.")] = None,
    width: Annotated[int | None, typer.Option(metavar="D", help="Width of the model.")] = None,
    steps: Annotated[int | None, typer.Option(metavar="S", help="Steps of training.")] = None,
    batch: Annotated[int | None, typer.Option(metavar="B", help="Examples a step.")] = None,
    lr: Annotated[float | None, typer.Option(metavar="R", help="Largest learning rate.")] = None,
    file: FileOption = None,
    settings: SetOption = None,
    seeds: Annotated[int, typer.Option(metavar="K", help="Train with seeds 0 to K - 1.")] = 1,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where runs are kept; a rerun resumes.")
    ] = Path("out/lab"),
    tracker: Annotated[
        str | None, typer.Option(metavar="NAME", help="Log to tensorboard or mlflow as well.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Write readings for `orbitlens watch` beside the model.")
    ] = False,
    json_file: JsonOption = None,
) -> None:
    """Train a small model on a task and judge it on examples it has not seen."""
    given = {
        "layers": layers,
        "heads": heads,
        "width": width,
        "steps": steps,
        "batch": batch,
        "lr": lr,
        "file": None if file is None else str(file),
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    everything = {"task": task} | switches | chosen | _settings(settings)
    _train(everything, seeds, out, tracker, json_file, watch)


def _train(
    settings: dict[str, Any],
    seeds: int,
    out: Path,
    tracker: str | None,
    json_file: Path | None,
    watch: bool,
) -> None:
    _needs_lab()
    from orbitlens.lab.recipe import check_run
    from orbitlens.lab.run import run_config
    from orbitlens.lab.training import train as run

    if seeds < 1:
        raise InputError(f"--seeds {seeds}: expected at least 1.")
    if tracker not in {None, "tensorboard", "mlflow"}:
        raise InputError(f"--tracker {tracker!r} is unknown. Known: tensorboard, mlflow.")
    configs = [run_config(settings | {"seed": seed}) for seed in range(seeds)]
    for config in configs:
        check_run(config)
    results = []
    for number, config in enumerate(configs):
        with _training_bar(f"seed {number}") as report:
            done = run(config, out, progress=report, tracker=tracker, watch=watch)  # type: ignore[arg-type]
            results.append(done)
    if _is_main_process():
        _show_runs(settings, results, out, json_file)


def _show_runs(
    settings: dict[str, Any], results: "list[RunResult]", out: Path, json_file: Path | None
) -> None:
    from orbitlens.lab.run import run_hash, task_of
    from orbitlens.lab.summary import summary_row

    row = summary_row(_title(settings), results, settings=settings)
    ceiling = task_of(results[0].config).ceiling
    data = {
        "runs": [result.to_json() for result in results],
        "summary": [row.to_json()],
        "ceiling": None if ceiling is None else vars(ceiling),
    }
    if json_file is not None:
        write_json(data, json_file)
    if json_file is None or str(json_file) != "-":
        from orbitlens.terminal.lab import runs_view

        console = stdout()
        for part in runs_view([row], ceiling):
            console.print(part)
        for result in results:
            place = out / run_hash(result.config)
            console.print(_dim(f"model in {place / 'model'}"))
            if (place / "watch.jsonl").exists():
                console.print(_dim(f"readings: orbitlens watch {place}"))
        if json_file is not None:
            console.print(_dim(f"JSON written to {json_file}"))


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="What to run.")],
    settings: SetOption = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where runs are kept; a rerun resumes.")
    ] = Path("out/lab"),
    workers: WorkersOption = None,
    cluster: ClusterOption = None,
    json_file: JsonOption = None,
) -> None:
    """Train many models that differ in their settings, and compare them over seeds."""
    _needs_lab()
    from orbitlens.lab.sweep import run_sweep
    from orbitlens.lab.sweep_file import read_sweep
    from orbitlens.running.workers import cluster_client

    if workers is not None and workers < 1:
        raise InputError(f"--workers {workers}: expected at least 1.")
    plan = read_sweep(file, _settings(settings))
    connected = nullcontext() if cluster is None else cluster_client(cluster)
    with connected as client, progress_bar("sweeping") as report:
        result = run_sweep(plan, out.resolve(), lambda: _executor(workers, client), progress=report)
    if json_file is not None:
        write_json(result.to_json(), json_file)
    if json_file is None or str(json_file) != "-":
        from orbitlens.terminal.lab import sweep_view

        console = stdout()
        for part in sweep_view(result):
            console.print(part)
        n_runs = len(result.runs)
        console.print(_dim(f"{result.n_reused} of {n_runs} runs were there; kept in {out}"))
    if result.failed:
        raise typer.Exit(1)


# --- what arguments mean ---------------------------------------------------------------------


def _settings(pairs: list[str] | None) -> dict[str, Any]:
    """Read "steps=100" as TOML does; what is no TOML value is a word."""
    import tomllib

    settings: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--set {pair!r}: expected NAME=VALUE, such as digits=2.")
        try:
            settings[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            settings[name.strip()] = value
    return settings


def _title(settings: dict[str, Any]) -> str:
    rest = [str(v) if isinstance(v, str) else f"{k}={v}" for k, v in settings.items()]
    return " ".join(rest)


def _needs_lab() -> None:
    try:
        silence_transformers()
    except ImportError as error:
        raise MissingPackageError(
            "the lab needs transformers: pip install 'orbitlens[lab]'"
        ) from error


def _dim(text: str) -> Any:  # noqa: ANN401 - a Text, imported late
    from rich.text import Text

    return Text(text, style="dim")


# --- where it runs ---------------------------------------------------------------------------


def _is_main_process() -> bool:
    from accelerate import PartialState

    return bool(PartialState().is_main_process)


@contextmanager
def _training_bar(what: str) -> "Iterator[Progress | None]":
    """Show a bar with loss and rate on stderr; nothing at all where it is not a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = stderr()
    if not console.is_terminal:
        yield None
        return
    shown = "{task.description} {task.completed}/{task.total}  loss {task.fields[loss]:.3f}"
    columns = (TextColumn(shown + "  {task.fields[rate]:.1f} steps/s"), BarColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        place = bar.add_task(what, total=None, loss=float("nan"), rate=0.0)

        def report(tick: Any) -> None:  # noqa: ANN401 - a Tick, imported late
            bar.update(place, completed=tick.step, total=tick.steps, loss=tick.loss, rate=tick.rate)

        yield report


def _executor(workers: int | None, client: Any) -> "Executor":  # noqa: ANN401 - a Client of Dask
    from orbitlens.running.workers import local_workers

    if client is None:
        return local_workers(workers)
    executor: Executor = client.get_executor()
    return executor
