"""JSON Schemas of the documents that people write, for editors; made from the models that check them.

A schema says what a file may hold as a person writes it: a store may be written in short. What a schema
cannot say, such as the product of the axes, `warmrank config check` finds.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, Literal, get_args

from orchestrator.config.models import Config

SchemaOf = Literal["config", "hosts", "report"]
NAMES: tuple[SchemaOf, ...] = get_args(SchemaOf)

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_text(name: SchemaOf) -> str:
    """A schema as the text that is kept in docs/schemas/."""
    return json.dumps(schema(name), indent=2, ensure_ascii=True) + "\n"


def schema(name: SchemaOf) -> dict[str, Any]:
    """The JSON Schema of a kind of document."""
    makers: dict[SchemaOf, Callable[[], dict[str, Any]]] = {
        "config": config_schema,
        "hosts": hosts_schema,
        "report": _report_schema,
    }
    return makers[name]()


def config_schema() -> dict[str, Any]:
    """The schema of a launch's config."""
    made = _made(Config.model_json_schema(), "Config of a launch with warmrank")
    definitions = made["$defs"]
    full, tier = definitions["StoreConfig"], definitions["TierConfig"]
    short = copy.deepcopy(tier)
    short["title"], short["description"] = "StoreInShort", "A store of one place."
    short["properties"]["trust"] = copy.deepcopy(full["properties"]["trust"])
    definitions["StoreInShort"] = short
    # Told apart by their keys, so that an editor names the mistake and not that neither fits.
    made["properties"]["store"]["anyOf"] = [
        {
            "if": {"required": ["tiers"]},
            "then": _ref("StoreConfig"),
            "else": _ref("StoreInShort"),
            "type": "object",
        },
        {"type": "null"},
    ]
    return made


def hosts_schema() -> dict[str, Any]:
    """The schema of a hosts file."""
    from orchestrator.cluster.models import HostsFile

    return _made(HostsFile.model_json_schema(), "Hosts of a Ray cluster, for warmrank up")


def _report_schema() -> dict[str, Any]:
    from orchestrator.show.report import report_schema

    return report_schema()


def _made(found: dict[str, Any], title: str) -> dict[str, Any]:
    return {"$schema": _DIALECT, **found, "title": title}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}
