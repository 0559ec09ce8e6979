"""``python -m warmrank``: the command line; needs ``src`` on the path, or an installation."""

import sys

from warmrank.orchestrator.signals import ctrl_c_leaves


def main() -> None:
    """Run the command line, which takes long to import."""
    ctrl_c_leaves()
    try:
        from warmrank.orchestrator.cli import main as command_line
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"error: {sys.executable} lacks {error.name}, which warmrank needs: pip install warmrank there. "
            "A job runs the `python` on the PATH of its cluster's `ray start`"
        ) from error
    command_line.main()


if __name__ == "__main__":
    main()
