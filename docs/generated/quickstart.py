"""What docs/quickstart.md shows of a scan on text."""

from pathlib import Path

from generate import command_output

from orbitlens.running.texts import passage

COMMAND = "orbitlens scan orbit-nano-none --text story.txt"


def scan_on_text() -> str:
    """Return the command and what it prints in front of the certificates."""
    Path("story.txt").write_text(passage().read_text(encoding="utf-8"), encoding="utf-8")
    shown, _, _ = command_output(COMMAND).partition("\n proved ")
    return f"```console\n$ {COMMAND}\n{shown}\n```"
