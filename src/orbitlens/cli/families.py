"""The command `orbitlens families`: which models can be read."""

from orbitlens.cli.output import stdout


def command() -> None:
    """List the families of models that can be read."""
    from orbitlens.families.registry import FAMILIES
    from orbitlens.terminal.fitted_table import FittedTable, text_column

    rows = []
    for name, family in sorted(FAMILIES.items()):
        first = family.stacks[0]
        layer = first.layer if isinstance(first.layer, str) else "(shared layers)"
        output = first.o if isinstance(first.o, str) else "(by its refinement)"
        stacks = ", ".join(each.stack for each in family.stacks)
        rows.append([name, stacks, f"{layer}.{output}"])
    columns = [
        text_column("model_type", wraps=False),
        text_column("stacks"),
        text_column("attention weights of a layer"),
    ]
    stdout().print(FittedTable(columns, rows))
