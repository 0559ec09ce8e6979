"""``python -m orchestrator``: the command line with nothing installed but the dependencies."""

from orchestrator.cli.main import main

main()
