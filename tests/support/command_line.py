"""The command line, in the process of a test."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from warmrank.orchestrator.cli.main import app


def run(*words: object) -> Result:
    """Run a command; paths and numbers come as they are."""
    return CliRunner().invoke(app, [str(word) for word in words])
