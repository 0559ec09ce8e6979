"""The models of a config: strict, frozen, and described field by field for errors and editors.

Those of the store stand in `orchestrator.config.store`.
"""

from __future__ import annotations

import math
import posixpath
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, JsonValue, Tag, field_validator, model_validator
from pydantic_core import PydanticCustomError

from warmrank.cache_store.cache_dir.node_files import Collect
from warmrank.cache_store.canonical import canonical_json, key_of
from warmrank.orchestrator.config.store import (
    Seconds,
    Store,
    StoreConfig,
    Strict,
    Text,
    UserPath,
    in_known_home,
)
from warmrank.worker import node_caches
from warmrank.worker.configs.compiler_config import EngineChoice, GuardMode
from warmrank.worker.settings import DeviceKind

AuditMode = Literal["one", "all", "off"]
ToolName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
VariableName = Annotated[str, Field(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")]
AxisName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,15}$")]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
ADDRESS = r"^(auto|local|(ray://)?[^\s/]+:[0-9]{1,5})$"
Word = Annotated[str, Field(min_length=1)]
Size = Annotated[int, Field(ge=1)]
KNOWN_VARIABLES = {
    "inductor": "TORCHINDUCTOR_CACHE_DIR",
    "triton": "TRITON_CACHE_DIR",
    "vllm": "VLLM_CACHE_ROOT",
}
"""The variable that names each tool's directory. Sources: torch/_inductor/runtime/cache_dir_utils.py,
triton/knobs.py, vllm/envs.py."""


class SyncedCache(Strict):
    """A cache directory of a tool, brought to each node before the command and back when it is ready."""

    tool: ToolName = Field(description="inductor, triton, vllm, or another name: a-z, 0-9, '-', '_'")
    path: str = Field(
        default="",
        pattern=r"^([/~$].*)?$",
        description="directory on each node, absolute, ~ or $NAME first; none: below cache_dir",
    )
    variable: VariableName = Field(
        default="",
        description="environment variable (letters, digits, '_') for its path; known for the three",
    )

    @model_validator(mode="after")
    def _is_found_by_its_tool(self) -> SyncedCache:
        if self.tool not in KNOWN_VARIABLES and not (self.path or self.variable):
            why = "of {tool} a path, or the variable that tells it its directory"
            raise PydanticCustomError("synced_cache", why, {"tool": self.tool})
        return self


class ExecConfig(Strict):
    """Caches that `warmrank exec` keeps for the user's command besides the ranks' own."""

    sync: tuple[SyncedCache, ...] = Field(default=(), description="list of mappings: tool, path, variable")
    keys: tuple[Word, ...] = Field(
        default=(),
        description="list of NAME or NAME=VALUE that must be equal for a directory to come back; none: "
        "the environment and the launch",
    )

    @model_validator(mode="after")
    def _has_each_tool_once(self) -> ExecConfig:
        tools = [cache.tool for cache in self.sync]
        if twice := sorted({tool for tool in tools if tools.count(tool) > 1}):
            text = "each tool once, found {tool} twice"
            raise PydanticCustomError("synced_cache", text, {"tool": twice[0]})
        return self


def variable_of(cache: SyncedCache) -> str:
    """The variable that tells a tool its directory; empty where the config's path is its usual one."""
    return cache.variable or KNOWN_VARIABLES.get(cache.tool, "")


HASH_SEED = ("PYTHONHASHSEED", "0")
"""Variable of every rank, and its value: sets of strings then have one order in all launches."""
DEVICE_RESOURCES = {"cuda": "GPU", "npu": "NPU"}
"""Ray's names of accelerators by kind of device."""
OWN_VARIABLES = {
    **dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"), "ranks"),
    **dict.fromkeys(("MASTER_ADDR", "MASTER_PORT", "PYTHONPATH", HASH_SEED[0], "WARMRANK_RANK_MARK"), ""),
    "OMP_NUM_THREADS": "ray.omp_num_threads",
    "WARMRANK_NO_COMPILE": "no_compile",
}
"""Variables that a launch sets itself, and the key that says to what; none where that is its own affair."""


class EntrypointWorkload(Strict):
    """A workload that a Python function builds."""

    entrypoint: str = Field(
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$",
        description="module:function that returns a warmrank.Workload",
    )
    arguments: dict[str, JsonValue] = Field(default={}, description="keyword arguments of the function")


class ScriptWorkload(Strict):
    """A workload that is a plain script, run on every rank under torchrun's variables."""

    script: Annotated[Word, AfterValidator(in_known_home)] = Field(
        description="path of a Python script, from the current directory"
    )
    arguments: tuple[Text, ...] = Field(default=(), description="list of strings, the script's arguments")


class Parallel(Strict):
    """Sizes of the parallel axes; their product is the number of ranks.

    From the innermost: `tp`, `cp`, `ep`, those of `axes` in their order, `pp`, and `dp` as the outermost.
    """

    tp: Size = Field(default=1, description="tensor-parallel size, a whole number from 1")
    cp: Size = Field(default=1, description="context-parallel size, a whole number from 1")
    ep: Size = Field(default=1, description="expert-parallel size, a whole number from 1")
    axes: dict[AxisName, Size] = Field(
        default={}, description="mapping of other axes (a-z, 0-9) to their sizes, from the innermost"
    )
    pp: Size = Field(default=1, description="pipeline-parallel size, a whole number from 1")
    dp: Size = Field(default=1, description="data-parallel size, a whole number from 1")

    @field_validator("axes")
    @classmethod
    def _names_are_free(cls, given: dict[str, int]) -> dict[str, int]:
        if taken := given.keys() & {"world", "none", *cls.model_fields}:
            raise ValueError(f"axes has {', '.join(sorted(taken))}, which stands for something else")
        return given

    def sizes(self) -> dict[str, int]:
        """The size of every axis, from the innermost; `cp` and `ep` only where they are given."""
        return {
            name: getattr(self, name) if name in type(self).model_fields else self.axes[name]
            for name in ("tp", "cp", "ep", *self.axes, "pp", "dp")
            if name in {"tp", "pp", "dp", *self.axes, *self.model_fields_set}
        }


class RayConfig(Strict):
    """Placement of ranks on Ray."""

    address: Annotated[str, Field(pattern=ADDRESS)] | None = Field(
        default=None,
        description="HOST:PORT of a running cluster, or auto; none starts a local one (a Ray job joins)",
    )
    num_cpus_per_rank: float = Field(default=1.0, ge=0, description="CPUs reserved for each rank")
    num_cpus: Size | None = Field(default=None, description="CPUs of the local Ray; none: the machine's")
    omp_num_threads: Size = Field(default=1, description="OMP_NUM_THREADS of every rank")
    placement: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        default="PACK", description="Ray's placement strategy"
    )
    pack: AxisName = Field(
        default="tp",
        description="axis (a-z, 0-9) whose groups, with the axes inside, are each on one node; or none",
    )
    nodes: tuple[Word, ...] = Field(
        default=(), description="list of nodes that may have ranks: id, address or host name; none for all"
    )
    exclude_nodes: tuple[Word, ...] = Field(
        default=(), description="list of nodes that get no ranks: id, address or host name"
    )
    labels: dict[str, Text] = Field(
        default={}, description="mapping of Ray's label selectors that a node must meet to have ranks"
    )
    placement_group: Word | None = Field(
        default=None, description="id or name of a placement group to start ranks in; none reserves one"
    )
    runtime_env: dict[str, JsonValue] = Field(
        default={}, description="mapping, Ray's runtime environment of every rank, such as {pip: [einops]}"
    )
    ship_code: bool = Field(
        default=True, description="whether a cluster joined by address gets a copy of the current directory"
    )

    @model_validator(mode="after")
    def _some_node_is_left(self) -> RayConfig:
        if self.nodes and set(self.nodes) <= set(self.exclude_nodes):
            raise ValueError("exclude_nodes names every node of nodes, so none is left for ranks")
        return self


class NodeCacheConfig(Strict):
    """A directory of another tool on each node, whose files belong to the node, not to a rank."""

    path: str = Field(
        default="", description="directory on each node, absolute; ~ is its user's home, and $NAME a variable"
    )
    patterns: tuple[Word, ...] = Field(
        default=("*",), min_length=1, description="list of patterns of paths below it; * stands for / too"
    )
    scope: Literal["node"] = Field(default="node", description="node: its files are kept once a node")
    collect: Collect = Field(
        default="new", description="new: what a launch adds or changes; all: also what was there before"
    )


class Timeouts(Strict):
    """The longest that each stage may take, in seconds."""

    start_s: Seconds = Field(default=120.0, description="seconds to get onto Ray, and for all ranks to start")
    fetch_s: Seconds = Field(default=600.0, description="seconds for each node to fetch from the store")
    build_s: Seconds = Field(default=300.0, description="seconds to build the model")
    probe_s: Seconds = Field(default=120.0, description="seconds to look every function up")
    compile_s: Seconds = Field(default=1800.0, description="seconds for the leaders to compile, each round")
    load_s: Seconds = Field(default=300.0, description="seconds to load or adopt, each round")
    capture_s: Seconds = Field(default=600.0, description="seconds for each step of the capture")
    first_call_s: Seconds = Field(default=300.0, description="seconds for the first call of every function")
    verify_s: Seconds = Field(default=600.0, description="seconds for the comparison with the reference")
    script_s: Seconds = Field(default=3600.0, description="seconds for a script workload to end")
    ready_s: Seconds = Field(
        default=3600.0, description="seconds for a command of exec to be ready, if a port or file says so"
    )
    commit_s: Seconds = Field(default=300.0, description="seconds to publish every rank's manifest")
    collective_s: Seconds = Field(default=300.0, description="seconds that a collective waits")


class Retries(Strict):
    """Numbers of further attempts, by what ended the attempt before; other failures end the launch."""

    rank: int = Field(default=1, ge=0, description="attempts more after a rank died")
    node: int = Field(default=2, ge=0, description="attempts more after a node was lost")
    hang: int = Field(default=1, ge=0, description="attempts more after a rank hung or was stopped")
    start: int = Field(default=1, ge=0, description="attempts more after ranks did not come up")


class WatchConfig(Strict):
    """Intervals of the watch over nodes and ranks while a launch runs."""

    every_s: Seconds = Field(default=1.0, description="seconds between two looks at a node's ranks")
    node_silent_s: Seconds = Field(default=15.0, description="seconds until a silent node, or head, is lost")
    stopped_s: Seconds = Field(default=5.0, description="seconds that a signal may hold a rank's process")
    lease_s: Seconds = Field(default=30.0, description="seconds until a node ends ranks of a silent driver")

    @model_validator(mode="after")
    def _looks_come_in_time(self) -> WatchConfig:
        """Between two looks nothing is known, and no lease is renewed."""
        for name in ("node_silent_s", "lease_s"):
            if getattr(self, name) < 2 * self.every_s:
                seconds = getattr(self, name)
                raise ValueError(f"{name} {seconds:g} is less than two looks, every_s {self.every_s:g} apart")
        return self


def _workload_kind(value: Any) -> str:
    if isinstance(value, ScriptWorkload) or (isinstance(value, dict) and "script" in value):
        return "script"
    return "entrypoint"


Workload = Annotated[
    Annotated[EntrypointWorkload, Tag("entrypoint")] | Annotated[ScriptWorkload, Tag("script")],
    Discriminator(_workload_kind),
]


class Config(Strict):
    """One launch."""

    name: str = Field(
        default="launch",
        pattern=NAME,
        description="name for people: up to 128 letters, digits, '.', '-', '_'",
    )
    workload: Workload | None = Field(
        default=None, description="mapping with entrypoint (or script) and arguments; none for exec and sync"
    )
    ranks: Size = Field(default=1, description="number of ranks, a whole number from 1")
    parallel: Parallel = Field(default=Parallel(), description="tp, pp and dp; their product is ranks")
    device: DeviceKind = Field(default="cpu", description="device kind")
    cache_dir: UserPath = Field(default=Path(".torchair_cache"), description="directory on each node's disk")
    store: Store | None = Field(
        default=None, description="mapping with path, mode and trust; or with tiers and trust"
    )
    guards: GuardMode = Field(default="always", description="when guards are checked")
    engine: EngineChoice = Field(default="auto", description="engine that compiles where functions name none")
    env: dict[Annotated[VariableName, Field(min_length=1)], Text] = Field(
        default={}, description="mapping of environment variables of every rank, letters, digits and '_'"
    )
    node_caches: dict[ToolName, NodeCacheConfig | None] = Field(
        default={},
        description="mapping of a name (a-z, 0-9, '-', '_') to {path, patterns, collect}, or to null: none",
    )
    audit: AuditMode = Field(
        default="one", description="ranks that trace too while a class compiles, and must come to the same"
    )
    no_compile: bool = Field(default=False, description="true or false: whether a miss is an error")
    max_rounds: Size = Field(default=4, description="rounds before ranks compile alone")
    ray: RayConfig = Field(default=RayConfig(), description="mapping of how ranks are placed on Ray")
    timeouts: Timeouts = Field(default=Timeouts(), description="mapping such as {compile_s: 600}")
    retries: Retries = Field(default=Retries(), description="mapping such as {node: 3}")
    watch: WatchConfig = Field(default=WatchConfig(), description="mapping such as {node_silent_s: 30}")
    exec: ExecConfig = Field(default=ExecConfig(), description="mapping with sync and keys, for exec")

    @field_validator("cache_dir")
    @classmethod
    def _not_the_root(cls, given: Path) -> Path:
        if given.is_absolute() and given.parent == given:
            raise PydanticCustomError("root", "a directory of its own, not the root of the disk")
        return given

    @field_validator("store")
    @classmethod
    def _places_that_are_off_are_not_there(cls, given: StoreConfig | None) -> StoreConfig | None:
        tiers = tuple(tier for tier in given.tiers if tier.mode != "off") if given else ()
        return given.model_copy(update={"tiers": tiers}) if given and tiers else None

    @field_validator("env")
    @classmethod
    def _no_variable_of_ours(cls, given: dict[str, str]) -> dict[str, str]:
        for name in given:
            if name in OWN_VARIABLES or name.startswith("RAY_"):
                why = "of {name} nothing, because a launch sets it itself{instead}"
                instead = f" (by {OWN_VARIABLES[name]})" if OWN_VARIABLES.get(name) else ""
                raise PydanticCustomError("variable", why, {"name": name, "instead": instead})
        return given

    @field_validator("node_caches")
    @classmethod
    def _known_ones_have_their_places(
        cls, given: dict[str, NodeCacheConfig | None]
    ) -> dict[str, NodeCacheConfig | None]:
        for name, cache in given.items():
            if cache is None:
                continue
            if name in node_caches.OWN and cache.model_fields_set - {"collect"}:
                why = "of {name} nothing but collect, because engine torchair looks in the cache directory"
                raise PydanticCustomError("node_cache", why, {"name": name})
            if not cache.path and name not in (*node_caches.OWN, node_caches.OPERATORS):
                raise PydanticCustomError("node_cache", "of {name} a path", {"name": name})
        return given

    @model_validator(mode="after")
    def _axes_fill_the_ranks_and_one_is_packed(self) -> Config:
        sizes = self.parallel.sizes()
        if (product := math.prod(sizes.values())) != self.ranks:
            factors = " x ".join(f"{name} {size}" for name, size in sizes.items())
            raise ValueError(f"parallel {factors} = {product}, but ranks = {self.ranks}")
        known = [*sizes, "none"]
        if self.ray.pack not in known:
            expected = f"one of the axes, or none: {', '.join(known)}"
            raise ValueError(f"ray.pack is {self.ray.pack}; expected {expected}")
        return self


def positions(config: Config) -> dict[int, tuple[int, ...]]:
    """Every rank's index on each axis; `groups` says how ranks are numbered."""
    strides = _strides(config)
    return {
        rank: tuple(rank // stride % size for stride, size in strides.values())
        for rank in range(config.ranks)
    }


def groups(config: Config, rank: int) -> dict[str, range]:
    """The process group of each role that a rank is in; the index on the innermost axis counts fastest."""
    found = {"world": range(config.ranks)}
    for name, (stride, size) in _strides(config).items():
        begin = rank - rank // stride % size * stride
        found[name] = range(begin, begin + stride * size, stride)
    return found


def packed_ranks(config: Config) -> int:
    """Number of consecutive ranks that are to be on one node."""
    if config.ray.pack == "none":
        return 1
    stride, size = _strides(config)[config.ray.pack]
    return stride * size


def _strides(config: Config) -> dict[str, tuple[int, int]]:
    """For every axis, from the innermost, how far apart its neighbours are, and its size."""
    found, stride = {}, 1
    for name, size in config.parallel.sizes().items():
        found[name] = stride, size
        stride *= size
    return found


def identity(config: Config) -> dict[str, str]:
    """Named components of what is launched; one for each argument, so that a difference can be named.

    Left out on purpose: the number of ranks and the sizes of the parallel axes, so that a launch of another
    world size is found and adopted from; and whatever changes no artifact: the launch's name, Ray settings,
    paths of store and cache, time-outs. Only what `warmrank exec` runs of a config without a workload goes by
    its name.
    """
    components: dict[str, str] = {"device": config.device, "guards": config.guards}
    if isinstance(config.workload, EntrypointWorkload):
        components["entrypoint"] = config.workload.entrypoint
        for name, value in config.workload.arguments.items():
            components[f"argument {name}"] = canonical_json(value).decode()
        return components
    if config.workload is None:
        return components | {"name": config.name}
    script = config.workload.script  # without anything of this machine
    components["script"] = Path(script).name if Path(script).is_absolute() else posixpath.normpath(script)
    components["arguments"] = canonical_json(list(config.workload.arguments)).decode()
    return components


def launch_key(config: Config) -> str:
    """The key that every launch of the same thing has, whatever its world size."""
    return key_of(identity(config))


def config_schema() -> dict[str, Any]:
    """The JSON Schema of a config."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **Config.model_json_schema(), "title": "Config of a launch with warmrank"}
