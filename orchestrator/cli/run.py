"""``warmrank run``: a script of TorchAir's users, as it is."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

_INTERRUPTED = 130


def run(
    script: Annotated[Path, typer.Argument(help="A Python script.", exists=True, dir_okay=False)],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
) -> None:
    """Run a script written for TorchAir, unchanged: its `import torchair` gives warmrank.

    So it does in the Python processes that the script starts.
    """
    from warmrank.worker.torchair_script import run_script

    try:
        run_script(script, arguments or [])
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - as Python ends; the command line would say less
        traceback, file = error.__traceback__, os.path.abspath(script)  # noqa: PTH100 - as the script's own
        while traceback is not None and traceback.tb_frame.f_code.co_filename != file:
            traceback = traceback.tb_next
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        raise SystemExit(_INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1) from None
