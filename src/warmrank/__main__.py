"""``python -m warmrank``: the command line; needs ``src`` on the path, or an installation."""

from warmrank.orchestrator.cli.main import main

main()
