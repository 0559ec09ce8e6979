"""``warmrank run``: a script of TorchAir's users, as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    script: Annotated[Path, typer.Argument(help="A Python script.", exists=True, dir_okay=False)],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
) -> None:
    """Run a script written for TorchAir, unchanged: its `import torchair` gives warmrank."""
    from warmrank.worker.torchair_names import run_script

    run_script(script, arguments or [])
