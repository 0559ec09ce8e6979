"""JSON Schemas of what people write, for editors; made from the models that check it.

A schema says what a file may hold as a person writes it: a store may be written in short. What a schema
cannot say, such as the product of the axes, `warmrank config check` finds.
"""

from __future__ import annotations

import copy
from typing import Any

from pydantic import BaseModel

from warmrank.orchestrator.config.models import Config

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def config_schema() -> dict[str, Any]:
    """The schema of a launch's config."""
    made = schema_of(Config, title="Config of a launch with warmrank")
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


def schema_of(model: type[BaseModel], *, title: str) -> dict[str, Any]:
    """The schema of a model, as it is."""
    return {"$schema": _DIALECT, **model.model_json_schema(), "title": title}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}
