"""TorchAir's logger by name and format, so that scripts and log readers written for it keep working.

Its level is WARNING, where TorchAir's is ERROR: a cache that is not used must not be silent about it. On a
terminal it is INFO, so that whoever looks sees each hit and miss once.
"""

from __future__ import annotations

import logging
import os
import sys
from datetime import datetime
from typing import Any


class _TorchAirFormatter(logging.Formatter):
    """``[INFO] TORCHAIR(pid,python):2024-04-30 14:48:18.123.456 [file.py:12] message``."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's name
        del datefmt
        moment = datetime.fromtimestamp(record.created)  # noqa: DTZ006 - TorchAir logs local time
        micros = moment.microsecond
        return f"{moment:%Y-%m-%d %H:%M:%S}.{micros // 1000:03d}.{micros % 1000:03d}"


class _CurrentStdout(logging.StreamHandler[Any]):
    """Writes to whatever ``sys.stdout`` is when a record comes, so that redirection works."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout
        super().emit(record)


def _torchair_logger() -> logging.Logger:
    named = logging.getLogger("torchair")
    if not named.handlers:
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        named.setLevel(logging.INFO if is_terminal else logging.WARNING)
        handler = _CurrentStdout()
        program = os.path.basename(sys.executable)  # noqa: PTH119 - only the last part of a string
        handler.setFormatter(
            _TorchAirFormatter(
                f"[%(levelname)s] TORCHAIR({os.getpid()},{program}):%(asctime)s "
                "[%(filename)s:%(lineno)d] %(message)s",
            )
        )
        named.addHandler(handler)
    return named


logger = _torchair_logger()
