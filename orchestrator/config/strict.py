"""What every model of a config is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Strict(BaseModel):
    """Base of every model here: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")
