"""The kinds of documents that `warmrank config` describes: JSON Schemas, and the reference of their keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal, get_args

from warmrank.orchestrator.errors import BadArgument

SchemaOf = Literal["config", "report"]
NAMES: tuple[SchemaOf, ...] = get_args(SchemaOf)


def schema_text(name: SchemaOf) -> str:
    """A schema as the text that is kept in docs/schemas/."""
    return json.dumps(schema(name), indent=2, ensure_ascii=True) + "\n"


def schema(name: SchemaOf) -> dict[str, Any]:
    """The JSON Schema of a kind of document."""
    makers: dict[SchemaOf, Callable[[], dict[str, Any]]] = {
        "config": _config_schema,
        "report": _report_schema,
    }
    return makers[name]()


def reference_of(name: SchemaOf) -> str:
    """The reference of a kind of document.

    Raises:
        BadArgument: nobody writes that kind of document.
    """
    from warmrank.orchestrator.config.models import Config
    from warmrank.orchestrator.config.reference import reference

    if name == "report":
        msg = "--of report: nobody writes reports, so there is a schema only; expected config"
        raise BadArgument(msg)
    return reference(Config)


def _config_schema() -> dict[str, Any]:
    from warmrank.orchestrator.config.schema import config_schema

    return config_schema()


def _report_schema() -> dict[str, Any]:
    from warmrank.orchestrator.launch.report import report_schema

    return report_schema()
