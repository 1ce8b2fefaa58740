"""What a `Positions` says, in sentences: a verdict, what confirms it, what to do next."""

from collections.abc import Iterator, Sequence

from orbitlens.encodings.evidence import Found, LayerPositions
from orbitlens.encodings.positions_result import Positions, Repair
from orbitlens.encodings.reach_words import reach_sentences
from orbitlens.encodings.tables import TableReading
from orbitlens.encodings.trial import AS_LOADED, HypothesisTrial


def summary_sentences(result: Positions) -> Iterator[str]:
    """Yield the verdict of the weights, of the losses, and the remedy."""
    yield weights_sentence(result)
    loss = loss_sentence(result)
    if loss:
        yield loss
    if result.repair is not None:
        yield from repair_sentences(result.repair)
    if result.table is not None:
        yield from table_sentences(result.table)
    if result.reach is not None:
        yield from reach_sentences(result.reach)


def weights_sentence(result: Positions) -> str:
    """Return what the weights say beside the config."""
    wrong = list(result.disagreeing())
    answered = list(result.answered())
    n = len(result.layers)
    if wrong:
        kinds = {(each.configured, each.rotated) for each in wrong}
        what = "; ".join(_disagreement(wrong, *kind) for kind in sorted(kinds, key=str))
        return f"The weights disagree with the config: {what}."
    if not n:
        return "No layer's queries and keys could be read."
    if not answered:
        return (
            f"The weights do not say whether they were trained with a rotation: in none of {n} "
            "layers is there enough evidence either way (few planes, or little training)."
        )
    return f"The weights agree with the config: {_agreement(result, answered)}."


def _agreement(result: Positions, answered: Sequence[LayerPositions]) -> str:
    rotary = [each for each in answered if each.found is Found.ROTARY]
    plain = [each for each in answered if each.found is Found.PLAIN]
    parts = []
    for rotated in dict.fromkeys(each.rotated for each in rotary):
        assert rotated is not None
        same = [each for each in rotary if each.rotated == rotated]
        whole = "all" if rotated.width == same[0].d_head else f"the first {rotated.width} of"
        parts.append(
            f"{layers_named(same, len(result.layers))} rotated in {rotated.pairing.value}, "
            f"{whole} {same[0].d_head} coordinates of a head"
        )
    if plain:
        parts.append(f"{layers_named(plain, len(result.layers))} not rotated")
    silent = len(result.layers) - len(answered)
    if silent:
        parts.append(f"{silent} of {len(result.layers)} layers do not say")
    return "; ".join(parts)


def _disagreement(wrong: Sequence[LayerPositions], configured: object, rotated: object) -> str:
    same = [each for each in wrong if each.configured == configured and each.rotated == rotated]
    says = "no rotation" if configured is None else f"{configured} coordinates"
    found = "no rotation" if rotated is None else f"{rotated} coordinates"
    verb = "was" if len(same) == 1 else "were"
    return f"{layers_named(same, None)} {verb} trained with {found}, the config has {says}"


def layers_named(layers: Sequence[LayerPositions], n_all: int | None) -> str:
    """Return "layer 3", "layers 0 to 4" or "all 30 layers"."""
    if n_all is not None and len(layers) == n_all > 1:
        return f"all {n_all} layers"
    numbers = [each.layer for each in layers]
    stacks = {each.stack for each in layers}
    where = f" of the {next(iter(stacks))}" if len(stacks) == 1 and "encoder" in stacks else ""
    return f"{'layer' if len(numbers) == 1 else 'layers'} {ranges(numbers)}{where}"


def ranges(numbers: Sequence[int]) -> str:
    """Return numbers with runs folded.

    >>> ranges([0, 1, 2, 5])
    '0 to 2, 5'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def loss_sentence(result: Positions) -> str:
    """Return what losses say; nothing where the model was not run."""
    measured = [trial for trial in result.trials if trial.loss is not None]
    if not measured:
        return ""
    loaded = measured[0]
    assert loaded.name == AS_LOADED
    assert loaded.loss is not None
    better = [trial for trial in measured if trial.is_better]
    if better:
        best = min(better, key=_loss)
        return (
            f"Running it shows it: as loaded {loaded.loss:.2f} nats a token, {best.name} "
            f"{best.loss:.2f}."
        )
    others = measured[1:]
    if not others:
        return f"As loaded it loses {loaded.loss:.2f} nats a token."
    best = min(others, key=_loss)
    return (
        f"As loaded it loses {loaded.loss:.2f} nats a token, less than under any of "
        f"{len(others)} other hypotheses (the next: {best.name}, {best.loss:.2f})."
        if all(trial.is_worse for trial in others)
        else f"As loaded it loses {loaded.loss:.2f} nats a token; no other hypothesis is clearly "
        f"better (the next: {best.name}, {best.loss:.2f})."
    )


def _loss(trial: HypothesisTrial) -> float:
    assert trial.loss is not None
    return trial.loss


def repair_sentences(repair: Repair) -> Iterator[str]:
    """Yield what to do."""
    if repair.by_rows:
        rows = "rotated rows (q_pe and k_pe)" if repair.is_latent else "rows of W_Q and W_K"
        yield (
            f"To repair it, put the {rows} of every head in {_layers(repair.by_rows)} "
            f"in the order {_short(repair.order)}."
        )
    if repair.unrotated:
        yield (
            f"By their weights, {_layers(repair.unrotated)} should not be rotated; no order of "
            "rows does that, the config must say it."
        )
    if repair.rotated:
        yield (
            f"By their weights, {_layers(repair.rotated)} should be rotated, and the config leaves "
            "them out."
        )
    if repair.base is not None:
        yield f"A base of {repair.base:g} fits better than the config's: set rope_theta to it."
        if repair.bases_alike:
            named = ", ".join(f"{base:g}" for base in repair.bases_alike)
            yield f"The loss does not tell it from {named}; more tokens may."
    if repair.written_to is not None:
        yield f"A repaired copy was written to {repair.written_to}."
    elif repair.confirmed:
        yield "--repair DIR writes a copy that is put right so."


def _layers(numbers: Sequence[int]) -> str:
    return f"{'layer' if len(numbers) == 1 else 'layers'} {ranges(numbers)}"


def _short(order: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in order[:6])
    return f"{shown}, ..." if len(order) > 6 else shown


def table_sentences(table: TableReading) -> Iterator[str]:
    """Yield what a table of absolute positions looks like."""
    like = f"a row and the next have a cosine of {table.neighbours:.2f}"
    if table.trained is None:
        yield (
            f"The table of {table.n_rows} absolute positions does not say where training ended: "
            f"{like}."
        )
    elif table.trained < table.n_rows:
        yield (
            f"Of {table.n_rows} rows of absolute positions the first {table.trained} look trained "
            f"({like}); the rest look as they were drawn."
        )
    else:
        yield f"All {table.n_rows} rows of absolute positions look trained: {like}."
    if table.period is not None:
        yield f"They repeat every {table.period:.1f} tokens."
    if table.variance_share is not None:
        yield f"Position is {table.variance_share:.0%} of the variance that layer 0 reads."
