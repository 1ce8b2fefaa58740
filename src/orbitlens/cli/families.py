"""The command `orbitlens families`: which models can be read."""

from orbitlens.cli.output import stdout


def command() -> None:
    """List the families of models that can be read."""
    from rich.table import Table

    from orbitlens.families.registry import FAMILIES

    table = Table(box=None, padding=(0, 1), header_style="bold")
    for name in ("model_type", "stacks", "attention weights of a layer"):
        table.add_column(name)
    for name, family in sorted(FAMILIES.items()):
        first = family.stacks[0]
        layer = first.layer if isinstance(first.layer, str) else "(shared layers)"
        output = first.o if isinstance(first.o, str) else "(by its refinement)"
        table.add_row(name, ", ".join(each.stack for each in family.stacks), f"{layer}.{output}")
    stdout().print(table)
