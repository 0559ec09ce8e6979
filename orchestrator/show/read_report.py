"""Reads a launch's report back from a file that a person named."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from orchestrator.errors import ConfigError, ConfigProblem
from orchestrator.show.report import SCHEMA_VERSION, Report, from_json


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
