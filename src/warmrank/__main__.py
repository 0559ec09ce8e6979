"""``python -m warmrank``: the command line; needs ``src`` on the path, or an installation."""

from warmrank.orchestrator.signals import ctrl_c_leaves


def main() -> None:
    """Run the command line, which takes long to import."""
    ctrl_c_leaves()
    from warmrank.orchestrator.cli import main as command_line

    command_line.main()


if __name__ == "__main__":
    main()
