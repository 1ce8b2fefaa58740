"""`python -m orbitlens.cli`: the command line, for where no script is installed."""

from orbitlens.cli.app import main

main()
