"""The commands `orbitlens simulate` and `orbitlens phase`: the flow of tokens, and maps of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbitlens.cli.output import (
    ClusterOption,
    JsonOption,
    WorkersOption,
    is_number,
    progress_bar,
    stdout,
    write_json,
)
from orbitlens.errors import InputError

if TYPE_CHECKING:
    from orbitlens.flows.predict import Prediction
    from orbitlens.flows.setup import Setup
    from orbitlens.flows.system import System
    from orbitlens.trajectory import Trajectory

SystemOption = Annotated[
    str, typer.Option("--system", metavar="NAME", help="A named system (see --list).")
]
TokensOption = Annotated[int, typer.Option("--tokens", metavar="N", help="Number of tokens.")]
DimOption = Annotated[int, typer.Option("--dim", metavar="D", help="Width of the tokens.")]
PositionOption = Annotated[
    str,
    typer.Option(metavar="KIND", help="none, absolute, reinjected, rotary or alibi."),
]
BaseOption = Annotated[
    float, typer.Option("--rotary-base", metavar="B", help="Base of the rotary frequencies.")
]
MaskOption = Annotated[str, typer.Option(metavar="MASK", help="full or causal.")]
WindowOption = Annotated[
    int, typer.Option(metavar="N", help="A token sees the last N tokens; 0: all.")
]
GeometryOption = Annotated[
    str, typer.Option(metavar="KIND", help="free, sphere, post-ln, pre-ln, peri-ln or ngpt.")
]
BetaOption = Annotated[float, typer.Option(metavar="B", help="Inverse temperature of attention.")]
UntilOption = Annotated[float, typer.Option(metavar="T", help="Time (depth) to run.")]
RtolOption = Annotated[float, typer.Option(metavar="R", help="Relative tolerance.")]
SeedOption = Annotated[int, typer.Option(metavar="S", help="Seed of tokens and random systems.")]


def simulate(
    system: SystemOption = "aligned",
    head: Annotated[
        str | None,
        typer.Option(metavar="MODEL:LAYER.HEAD", help="A head of a checkpoint, in place of NAME."),
    ] = None,
    tokens: TokensOption = 64,
    dim: DimOption = 3,
    position: PositionOption = "none",
    rotary_base: BaseOption = 10000.0,
    mask: MaskOption = "full",
    window: WindowOption = 0,
    geometry: GeometryOption = "free",
    beta: BetaOption = 1.0,
    alignment: Annotated[
        float, typer.Option(metavar="A", help="Of the system 'mixed': -1 to 1.")
    ] = 0.0,
    until: UntilOption = 10.0,
    rtol: RtolOption = 1e-6,
    seed: SeedOption = 0,
    json_file: JsonOption = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it: .html, .png, .gif or .mp4.")
    ] = None,
    list_systems: Annotated[
        bool, typer.Option("--list", help="List the named systems and stop.")
    ] = False,
) -> None:
    """Simulate the flow of tokens, and compare it with what theory predicts."""
    if list_systems:
        _list_systems()
        return
    setup = _setup(
        system=system,
        n_tokens=tokens,
        d_model=dim,
        beta=beta,
        alignment=alignment,
        position=position,
        rotary_base=rotary_base,
        mask=mask,
        window=window,
        geometry=geometry,
        until=until,
        rtol=rtol,
        seed=seed,
    )
    _run_simulation(setup, head, json_file, plot)


def _run_simulation(
    setup: "Setup", head: str | None, json_file: Path | None, plot: Path | None
) -> None:
    from orbitlens.flows.integrate import SimulationOptions
    from orbitlens.flows.integrate import simulate as run
    from orbitlens.flows.predict import predict
    from orbitlens.flows.setup import build

    if plot is not None:
        from orbitlens.draw.film_file import film_kind

        film_kind(plot)
    given = _system_of_head(head) if head is not None else None
    flow, start = build(setup, given)
    prediction = predict(flow, start)
    with progress_bar("simulating"):
        trajectory = run(flow, start, until=setup.until, options=SimulationOptions(rtol=setup.rtol))
    result = _result(setup, head, prediction, trajectory)
    if json_file is not None:
        write_json(result, json_file)
    if plot is not None:
        from orbitlens.draw.film_file import write_film
        from orbitlens.flows.film import flow_film
        from orbitlens.flows.picture import flow_picture

        title = head or f"{setup.system}, {setup.n_tokens} tokens in {flow.d_model} dimensions"
        write_film(flow_film(flow_picture(trajectory, title=title, system=flow)), plot)
    if json_file is None or str(json_file) != "-":
        _show(result, head or setup.system, json_file, plot)


def _setup(**given: Any) -> "Setup":  # noqa: ANN401 - the fields of a Setup
    from orbitlens.flows.setup import Setup
    from orbitlens.flows.system import Geometry, Mask

    for name, kind in (("mask", Mask), ("geometry", Geometry)):
        try:
            given[name] = kind(given[name])
        except ValueError as error:
            known = ", ".join(item.value for item in kind)
            raise InputError(
                f"--{name} {given[name]!r} is unknown. Expected one of: {known}."
            ) from error
    return Setup(**given)


def _system_of_head(text: str) -> "System":
    """Read "MODEL:3.7" as head 7 of layer 3, "MODEL:3" as the whole layer 3."""
    from orbitlens.checkpoint.load import load_checkpoint
    from orbitlens.flows.system import system_of_heads, system_of_layer
    from orbitlens.heads.layers import load_layer

    model, colon, place = text.rpartition(":")
    layer, dot, number = place.partition(".")
    if not colon or not is_number(layer) or (dot and not is_number(number)):
        raise InputError(
            f"--head {text!r}: expected MODEL:LAYER.HEAD, such as my-model:3.7 (or MODEL:LAYER)."
        )
    checkpoint = load_checkpoint(model)
    stack = checkpoint.architecture.stacks[-1].name
    loaded = load_layer(checkpoint, int(layer), stack=stack)
    if not dot:
        return system_of_layer(loaded)
    if int(number) >= loaded.n_heads:
        raise InputError(f"--head {text!r}: layer {layer} has heads 0 to {loaded.n_heads - 1}.")
    return system_of_heads([loaded.head(int(number))])


def _result(
    setup: "Setup", head: str | None, prediction: "Prediction", trajectory: "Trajectory"
) -> dict[str, Any]:
    from orbitlens.flows.outcome import fate
    from orbitlens.results.codec import encode
    from orbitlens.theory.clouds import over_time

    happened = fate(trajectory)
    metrics = over_time(trajectory.unit_tokens)
    return {
        "setup": encode(setup),
        "head": head,
        "status": trajectory.status.value,
        "ending": trajectory.ending,
        "time": trajectory.status_time,
        "evaluations": trajectory.n_evaluations,
        "steps": trajectory.n_steps,
        "clusters": trajectory.n_clusters,
        "fate": happened.value,
        "predicted": {
            "fate": prediction.fate.value,
            "source": prediction.source.value,
            "why": prediction.why,
        },
        "agrees": prediction.fate is happened,
        "tokens_start": trajectory.unit_tokens[0].tolist(),
        "tokens_end": trajectory.unit_tokens[-1].tolist(),
        "log_scale_end": trajectory.log_scale[-1].item(),
        "events": encode(trajectory.events),
        "times": trajectory.times.tolist(),
        "log_scale": trajectory.log_scale.tolist(),
        "metrics": metrics,
        "certificates": encode(prediction.certificates),
    }


def _show(result: dict[str, Any], name: str, json_file: Path | None, plot: Path | None) -> None:
    from rich.table import Table
    from rich.text import Text

    console = stdout()
    setup, predicted = result["setup"], result["predicted"]
    console.print(Text(f"{name}: {setup['n_tokens']} tokens to t = {setup['until']:g}\n"))
    table = Table(box=None, padding=(0, 1), show_header=False, width=80)
    table.add_column(no_wrap=True)
    table.add_column()
    foreseen = "nothing" if predicted["source"] == "none" else predicted["fate"]
    sure = {"certificate": "proved", "indication": "indicated", "closure": "expected"}
    rows = [
        (sure.get(predicted["source"], "predicted"), f"{foreseen}; {predicted['why']}"),
        ("happened", f"{result['fate']}; {result['ending']}"),
        ("agreement", _agreement(result)),
        ("cost", f"{result['evaluations']} evaluations in {result['steps']} steps"),
    ]
    rows += [("event", f"t = {e['time']:.4g}: {e['what']}") for e in result["events"]]
    rows += [("held", f"{c['name']}: {c['why']}") for c in result["certificates"] if c["holds"]]
    for left, right in rows:
        table.add_row(left, Text(right))
    console.print(table)
    for what, file in (("JSON", json_file), ("plot", plot)):
        if file is not None:
            console.print(Text(f"{what} written to {file}", style="dim"))


def _agreement(result: dict[str, Any]) -> str:
    if result["predicted"]["source"] == "none":
        return "nothing was predicted"
    return "yes" if result["agrees"] else "no"


def _list_systems() -> None:
    from rich.table import Table

    from orbitlens.flows.examples import EXAMPLES

    table = Table(box=None, padding=(0, 1), show_header=False)
    for name, example in EXAMPLES.items():
        table.add_row(name, example.what)
    table.add_row("mixed", "W = I, V = a I + sqrt(1 - a^2) R with a = --alignment")
    stdout().print(table)


# --- phase diagrams --------------------------------------------------------------------------


def phase(
    x: Annotated[str, typer.Option("--x", metavar="NAME=FROM:TO:N", help="What to sweep across.")],
    y: Annotated[str, typer.Option("--y", metavar="NAME=FROM:TO:N", help="What to sweep upwards.")],
    system: SystemOption = "mixed",
    seeds: Annotated[int, typer.Option(metavar="K", help="Seeds a cell.")] = 4,
    tokens: TokensOption = 32,
    dim: DimOption = 3,
    position: PositionOption = "none",
    rotary_base: BaseOption = 10000.0,
    mask: MaskOption = "full",
    window: WindowOption = 0,
    geometry: GeometryOption = "free",
    beta: BetaOption = 1.0,
    until: UntilOption = 10.0,
    rtol: RtolOption = 1e-6,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where cells are kept; a rerun resumes.")
    ] = Path("out/phase"),
    workers: WorkersOption = None,
    cluster: ClusterOption = None,
    json_file: JsonOption = None,
) -> None:
    """Sweep two parameters and map which regime each combination ends in."""
    from orbitlens.flows.phase import Sweep, run_sweep
    from orbitlens.running.workers import workers_of

    base = _setup(
        system=system,
        n_tokens=tokens,
        d_model=dim,
        beta=beta,
        position=position,
        rotary_base=rotary_base,
        mask=mask,
        window=window,
        geometry=geometry,
        until=until,
        rtol=rtol,
    )
    sweep = Sweep(base=base, x=_axis(x, "--x"), y=_axis(y, "--y"), n_seeds=seeds)
    list(sweep.setups())  # complains before anything runs
    with workers_of(workers, cluster) as executor, progress_bar("sweeping") as report:
        diagram = run_sweep(sweep, out, executor, progress=report)
    if json_file is not None:
        write_json(diagram.to_json(), json_file)
    if json_file is None or str(json_file) != "-":
        from orbitlens.terminal.flow_view import phase_view

        console = stdout()
        for part in phase_view(diagram, console):
            console.print(part)
        console.print(f"{diagram.n_reused} of {len(diagram.cells)} cells were there; kept in {out}")


def _axis(text: str, option: str) -> Any:  # noqa: ANN401 - an Axis, imported late
    """Read "beta=0.5:8:5" as five values from 0.5 to 8, "beta=1,2,4" as these three."""
    from orbitlens.flows.phase import Axis

    name, _, values = text.partition("=")
    try:
        if values.count(":") == 2:
            first, last, count = values.split(":")
            n = int(count)
            step = (float(last) - float(first)) / max(n - 1, 1)
            numbers = tuple(float(first) + step * k for k in range(n))
        else:
            numbers = tuple(float(value) for value in values.split(","))
    except ValueError as error:
        raise InputError(
            f"{option} {text!r}: expected NAME=FROM:TO:N or NAME=A,B,C, such as beta=0.5:8:9."
        ) from error
    return Axis(name=name.strip().replace("-", "_"), values=numbers)
