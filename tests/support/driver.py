"""A driver in a process of its own: ``driver.py CONFIG [OVERRIDE...]``; prints stages, then the report."""

from __future__ import annotations

import sys

from rich.console import Console

from warmrank.orchestrator.config.reading import load
from warmrank.orchestrator.errors import OrchestratorError
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.report import to_json
from warmrank.orchestrator.signals import exit_code_of, sigterm_raises
from warmrank.orchestrator.ui.progress import progress


def main() -> int:
    config = load(sys.argv[1], tuple(sys.argv[2:]))
    try:
        with sigterm_raises(), progress(Console(file=sys.stderr), config.ranks) as listener:
            report = launch(config, listener=listener)
    except KeyboardInterrupt as stop:
        return exit_code_of(stop)
    except OrchestratorError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(to_json(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
