"""The part of a config that `warmrank exec` reads: cache directories of the tools that a command uses."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from warmrank.orchestrator.config.strict import Strict

TOOL_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,63}$"
VARIABLE_PATTERN = r"^([A-Za-z_][A-Za-z0-9_]*)?$"
PATH_PATTERN = r"^([/~$].*)?$"

KNOWN_VARIABLES = {
    "inductor": "TORCHINDUCTOR_CACHE_DIR",
    "triton": "TRITON_CACHE_DIR",
    "vllm": "VLLM_CACHE_ROOT",
}
"""Where each tool looks for its directory. Sources: torch/_inductor/runtime/cache_dir_utils.py,
triton/knobs.py, vllm/envs.py."""


class SyncedCache(Strict):
    """A cache directory of a tool, brought to each node before the command and back when it is ready."""

    tool: str = Field(pattern=TOOL_PATTERN, description="inductor, triton, vllm, or the name of another tool")
    path: str = Field(
        default="",
        pattern=PATH_PATTERN,
        description="directory on each node, absolute, ~ or $NAME first; none: below cache_dir",
    )
    variable: str = Field(
        default="",
        pattern=VARIABLE_PATTERN,
        description="environment variable that tells the tool its directory; known for the three",
    )

    @model_validator(mode="after")
    def _is_found_by_its_tool(self) -> SyncedCache:
        if self.tool not in KNOWN_VARIABLES and not (self.path or self.variable):
            why = "of {tool} a path, or the variable that tells it its directory"
            raise PydanticCustomError("synced_cache", why, {"tool": self.tool})
        return self


class ExecConfig(Strict):
    """What `warmrank exec` does for the user's command besides the ranks' own caches."""

    sync: tuple[SyncedCache, ...] = Field(
        default=(), description="list of mappings with tool, and path or variable if need be"
    )
    keys: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="list of NAME or NAME=VALUE that must be equal for a directory to come back; none: "
        "the environment and the launch",
    )

    @model_validator(mode="after")
    def _has_each_tool_once(self) -> ExecConfig:
        tools = [cache.tool for cache in self.sync]
        if twice := sorted({tool for tool in tools if tools.count(tool) > 1}):
            raise PydanticCustomError(
                "synced_cache", "each tool once, found {tool} twice", {"tool": twice[0]}
            )
        return self


def variable_of(cache: SyncedCache) -> str:
    """The variable that tells a tool its directory; empty where the config's path is its usual one."""
    return cache.variable or KNOWN_VARIABLES.get(cache.tool, "")
