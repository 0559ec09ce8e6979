"""``python -m warmrank``: the command line with nothing installed but the dependencies."""

from warmrank.orchestrator.cli.main import main

main()
