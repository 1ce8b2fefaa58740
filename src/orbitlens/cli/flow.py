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
    show,
    stderr,
    stdout,
    swept_values,
    write_json,
)
from orbitlens.errors import InputError

if TYPE_CHECKING:
    from orbitlens.flows.real_tokens import LayerTokens
    from orbitlens.flows.setup import SimulateOptions
    from orbitlens.flows.simulation import Simulation
    from orbitlens.heads.head import Head
    from orbitlens.heads.layers import AttentionLayer
    from orbitlens.running.model import Model

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
    system: Annotated[
        str | None,
        typer.Option("--system", metavar="NAME", help="A named system: aligned, or see --list."),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(metavar="MODEL:LAYER.HEAD", help="A head of a checkpoint, in place of NAME."),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Start --head from the model's tokens on this text, and compare."
        ),
    ] = None,
    tokens: TokensOption = 64,
    dim: Annotated[
        int | None, typer.Option("--dim", metavar="D", help="Width of the tokens: 3.")
    ] = None,
    position: PositionOption = "none",
    rotary_base: BaseOption = 10000.0,
    mask: Annotated[
        str | None, typer.Option(metavar="MASK", help="full (if not given) or causal.")
    ] = None,
    window: WindowOption = 0,
    geometry: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="free, sphere, post-ln, pre-ln, peri-ln or ngpt; if not given, free, and for a "
            "model with norms the sphere.",
        ),
    ] = None,
    token_length: Annotated[
        float | None,
        typer.Option(metavar="L", help="Length of a model's tokens; sqrt(d), or as in --text."),
    ] = None,
    beta: BetaOption = 1.0,
    alignment: Annotated[
        float | None, typer.Option(metavar="A", help="Of the system 'mixed': -1 to 1.")
    ] = None,
    until: Annotated[
        float | None, typer.Option(metavar="T", help="Time (depth) to run: 10, or 1 with --text.")
    ] = None,
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
    if head is not None:
        _refuse_with_head(system=system, dim=dim, mask=mask, alignment=alignment)
    elif text is not None or token_length is not None:
        raise InputError("--text and --token-length are for a model's own flow: give --head too.")
    options = _options(
        n_tokens=tokens,
        d_model=3 if dim is None else dim,
        beta=beta,
        alignment=alignment or 0.0,
        position=position,
        rotary_base=rotary_base,
        mask=mask,
        window=window,
        geometry=geometry,
        token_length=token_length,
        until=(10.0 if text is None else 1.0) if until is None else until,
        rtol=rtol,
        seed=seed,
    )
    _run_simulation(system or "aligned", head, text, options, json_file, plot)


def _refuse_with_head(**given: object) -> None:
    """Refuse what only a named system has: a head brings its own."""
    set_ones = [f"--{name}" for name, value in given.items() if value is not None]
    if set_ones:
        raise InputError(
            f"{' and '.join(set_ones)} cannot be given with --head: a head has its own. Leave "
            f"{'it' if len(set_ones) == 1 else 'them'} out."
        )


def _run_simulation(
    system: str,
    head: str | None,
    text: Path | None,
    options: "SimulateOptions",
    json_file: Path | None,
    plot: Path | None,
) -> None:
    from orbitlens.flows.simulation import simulate as run
    from orbitlens.terminal.flow import simulation_view

    if plot is not None:
        from orbitlens.draw.film_file import film_kind

        film_kind(plot)
    target, tokens = (system, None) if head is None else _target(head, text, options.n_tokens)
    _say_cost(target, options, tokens)
    with progress_bar("simulating"):
        result = run(target, options, tokens=tokens, name=head and Path(head).name)
    if plot is not None:
        _write_film(result, target, tokens, plot)
    written = [] if plot is None else [f"plot written to {plot}"]
    show(result, simulation_view, json_file=json_file, written=written)


def _say_cost(target: object, options: "SimulateOptions", tokens: "LayerTokens | None") -> None:
    """Say what a long run will take, before it begins."""
    from orbitlens.flows.cost import SAMPLE, expected_cost
    from orbitlens.flows.flow import build_flow

    if options.n_tokens <= SAMPLE:  # an evaluation takes milliseconds, as long as timing it
        return
    flow = build_flow(target, options, tokens)
    cost = expected_cost(flow.system, len(flow.start))
    if cost.is_worth_saying:
        stderr().print(f"{len(flow.start)} tokens: {cost.words()}")


def _write_film(
    result: "Simulation", target: object, tokens: "LayerTokens | None", plot: Path
) -> None:
    from orbitlens.draw.film_file import write_film
    from orbitlens.flows.film import flow_film
    from orbitlens.flows.flow import build_flow
    from orbitlens.flows.picture import flow_picture

    flow = build_flow(target, result.options, tokens)
    title = f"{result.title}, in {flow.system.d_model} dimensions"
    picture = flow_picture(result.trajectory, title=title, system=flow.system)
    write_film(flow_film(picture), plot)


def _options(**given: Any) -> "SimulateOptions":  # noqa: ANN401 - the fields of the options
    from orbitlens.flows.setup import SimulateOptions

    return SimulateOptions(**_parsed(given))


def _parsed(given: dict[str, Any]) -> dict[str, Any]:
    """Return settings with names read as what they name."""
    from orbitlens.flows.system import Geometry, Mask

    for name, kind in (("mask", Mask), ("geometry", Geometry)):
        if given[name] is None:
            continue
        try:
            given[name] = kind(given[name])
        except ValueError as error:
            known = ", ".join(item.value for item in kind)
            raise InputError(
                f"--{name} {given[name]!r} is unknown. Expected one of: {known}."
            ) from error
    return given


def _target(
    given: str, text: Path | None, n_tokens: int
) -> tuple["Head | AttentionLayer", "LayerTokens | None"]:
    """Read "MODEL:3.7" as head 7 of layer 3, "MODEL:3" as the whole layer 3, and its tokens."""
    from orbitlens.running.model import load

    model, colon, place = given.rpartition(":")
    layer, dot, number = place.partition(".")
    if not colon or not is_number(layer) or (dot and not is_number(number)):
        raise InputError(
            f"--head {given!r}: expected MODEL:LAYER.HEAD, such as my-model:3.7 (or MODEL:LAYER)."
        )
    opened = load(model)
    stack = opened.architecture.stacks[-1].name
    whole = opened.layer(int(layer), stack=stack)
    target = opened.head(int(layer), int(number), stack=stack) if dot else whole
    return target, None if text is None else _layer_tokens(opened, text, int(layer), n_tokens)


def _layer_tokens(model: "Model", text: Path, layer: int, n_tokens: int) -> "LayerTokens":
    from orbitlens.cli.inputs import chosen_inputs
    from orbitlens.flows.real_tokens import layer_tokens

    inputs = chosen_inputs(text=text, images=None, tokens=None)
    return layer_tokens(model, inputs, layer=layer, n_tokens=n_tokens)


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
    """PhaseGrid two parameters and map which regime each combination ends in."""
    from orbitlens.flows.phase import PhaseGrid, run_sweep
    from orbitlens.flows.setup import Setup
    from orbitlens.running.workers import workers_of

    options = _options(
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
    base = Setup.of(system, options)
    sweep = PhaseGrid(base=base, x=_axis(x, "--x"), y=_axis(y, "--y"), n_seeds=seeds)
    list(sweep.setups())  # complains before anything runs
    with workers_of(workers, cluster) as executor, progress_bar("sweeping") as report:
        diagram = run_sweep(sweep, out, executor, progress=report)
    if json_file is not None:
        write_json(diagram.to_json(), json_file)
    if json_file is None or str(json_file) != "-":
        from orbitlens.terminal.flow import phase_view

        console = stdout()
        for part in phase_view(diagram, console):
            console.print(part)
        console.print(f"{diagram.n_reused} of {len(diagram.cells)} cells were there; kept in {out}")


def _axis(text: str, option: str) -> Any:  # noqa: ANN401 - an Axis, imported late
    from orbitlens.flows.phase import Axis

    name, values = swept_values(text, option, example="beta=0.5:8:9")
    return Axis(name=name, values=values)
