"""What the commands print when asked for help, for docs/cli.md."""

import typer
from generate import command_output

from orbitlens.cli.app import app


def all_commands() -> str:
    """Return a section a command, in the order of `orbitlens --help`."""
    sections = []
    for command in ("", *typer.main.get_command(app).commands):
        line = " ".join(f"orbitlens {command} --help".split())
        title = f"## orbitlens {command}".rstrip()
        sections.append(f"{title}\n\n```console\n$ {line}\n{command_output(line)}\n```")
    return "\n\n".join(sections)
