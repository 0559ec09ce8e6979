"""Reads a launch's report back: from a file that a person named, or the last one of this user here."""

from __future__ import annotations

import logging
from pathlib import Path

from pydantic import ValidationError

from warmrank.orchestrator.errors import ConfigError, ConfigProblem, NothingThere
from warmrank.orchestrator.show.report import SCHEMA_VERSION, Report, from_json, to_json
from warmrank.orchestrator.show.whole_file import write_whole
from warmrank.worker.settings import settings

logger = logging.getLogger(__name__)


def keep_last(report: Report) -> None:
    """Keep the report of this launch as the last one; without a home, or room in it, there is none."""
    path = settings().last_report
    try:
        if path is not None:
            write_whole(path, to_json(report))
    except OSError as error:
        logger.debug("Report of the last launch not kept: %s", error)


def read_last() -> Report:
    """Read what `keep_last` kept.

    Raises:
        NothingThere: no launch of this user's ended on this machine.
        ConfigError: its report is of another version.
    """
    path = settings().last_report
    if path is None or not path.is_file():
        msg = (
            f"no launch of this user is known on this machine (no file {path}); name a report that "
            "launch --json wrote, or launch first"
        )
        raise NothingThere(msg)
    return read_report(path)


def read_report(path: Path) -> Report:
    """Read what ``launch --json`` wrote.

    Raises:
        ConfigError: there is no such file, or it holds no report of this version.
    """
    expected = f"a report of schema version {SCHEMA_VERSION}, as launch --json of this version writes it"
    try:
        report = from_json(path.read_text(encoding="utf-8"))
        if report.schema_version == SCHEMA_VERSION:
            return report
        found = f"schema version {report.schema_version}"
    except OSError as error:
        found = error.strerror or str(error)
    except UnicodeDecodeError:
        found = "bytes that are no text"
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        found = f"{first['msg']} at {place}" if place else first["msg"]
    problem = ConfigProblem(place=str(path), key="", found=found, expected=expected)
    raise ConfigError([problem], document="report")
