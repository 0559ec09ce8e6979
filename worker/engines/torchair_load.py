"""Letting TorchAir load what it wrote once, and calling what it made of it.

TorchAir works in a private directory (0700, its file 0600, this user's) that holds a file written from a
verified artifact. So whatever it does to a cache that it does not like, it does to a copy. The directory ends
with the loaded graph, or with its process.
"""

from __future__ import annotations

import marshal
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from warmrank.cache_store.cache_dir.private_files import discard_tree
from warmrank.worker.engines import Site
from warmrank.worker.engines.torchair_code import Own, Written, bound, put_back
from warmrank.worker.engines.torchair_vendor import (
    Vendor,
    complaints,
    handed,
    instead_of_torch_compile,
    own_of,
    private_directory,
    vendor_for,
    written_privately,
)
from warmrank.worker.errors import ArtifactCorrupt
from warmrank.worker.node_caches import KernelFiles

_GRAPH_NAME = "__compiled_fn"


class LoadedGraph:
    """TorchAir's callable over a graph's inputs; it captures and replays by itself."""

    __slots__ = ("__weakref__", "_call", "_is_called", "_kernel", "_made")

    def __init__(self, call: Callable[..., Any], made: KernelFiles, private: Path) -> None:
        weakref.finalize(self, _ended, made, private, os.getpid())
        self._call = call
        self._kernel: Any = _kernel_of(call)
        self._made = made
        self._is_called = False

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs for the graph's inputs."""
        if not self._is_called:
            self._made.bring_in()
            self._is_called = True
        return tuple(self._call(*inputs))

    @property
    def is_eager(self) -> bool:
        """Whether it runs operator by operator: asked for, or the limit of captures is reached."""
        graph = self._kernel
        if graph is None:
            return True
        asked = graph.config.get("force_eager") or graph.config.get("run_eagerly") == "1"
        return bool(asked or graph.fallback_to_eager)

    @property
    def num_captures(self) -> int:
        """Captured graphs that it holds."""
        return 0 if self._kernel is None else len(self._kernel.graphs_meta)

    def hand_over(self) -> None:
        """See `worker.engines.SelfCapturing.hand_over`."""
        self._made.hand_over()

    @property
    def directory(self) -> Path:
        """Where TorchAir keeps what it makes at run time."""
        return self._made.private


def loaded(written: Written, site: Site, groups: Mapping[str, str]) -> LoadedGraph:
    """Let TorchAir load what it wrote once, from a private copy.

    Args:
        written: of `compiled`.
        site: the function.
        groups: role -> this process's name, of the process groups that the graph uses.

    Raises:
        ArtifactCorrupt: TorchAir does not take it; says why, in its words.
        BadConfig: the configuration has options that the installed TorchAir has not.
    """
    vendor = vendor_for(site.config.mode)
    with private_directory(kept=True) as directory:
        lazy, options, translation = handed(vendor, site, directory)
        models = vendor.cache.CompiledModel
        path = Path(models.get_cache_bin(site.method, cache_dir=str(directory), **options))
        made = KernelFiles(path.parent, site)
        model = models(site.method)
        model.meta.version = written.version
        model.compiled_fn = _frame(site.frame)
        parameters = [(name, flag) for name, flag in written.parameters]
        code = _bound(written, own_of(site, translation, groups, ""))
        model.compiled_fx = vendor.cache.CompiledFX(written.signature, code, parameters)
        with written_privately(directory):
            path.parent.mkdir(mode=0o700, parents=True)
            model.save(str(path))
        found = _taken_by(vendor, lazy, site, path)
        return LoadedGraph(_graph_of(found), made, directory)


def _bound(written: Written, own: Own) -> str:
    """The code for this process.

    Raises:
        ArtifactCorrupt: it names what this process has not.
    """
    try:
        code = bound(written.code, own)
    except SyntaxError as error:
        msg = f"what is kept of TorchAir's file cannot be read ({error!r}); it is compiled again"
        raise ArtifactCorrupt(msg, where="torchair.py", why=repr(error)) from error
    except KeyError as error:
        why = f"its code cannot be bound to this process: {type(error).__name__}: {error}"
        msg = f"TorchAir's part of the artifact: {why}"
        raise ArtifactCorrupt(msg, where="torchair.py", why=why) from error
    if written.constants is None:
        return code
    return put_back(code, written.constants.names, written.constants.section)


def _taken_by(vendor: Vendor, lazy: Any, site: Site, path: Path) -> Any:
    """What TorchAir makes of its file.

    Raises:
        ArtifactCorrupt: it does not take it.
    """
    tried: list[Any] = []
    with complaints(vendor.name) as said, instead_of_torch_compile(lambda *args, **_: tried.append(args)):
        found = lazy.compile(site.method.__func__.__globals__)
    if tried or not path.is_file():
        # Without the path, which no other rank has: equal reasons are told once.
        why = "; ".join(said).replace(f" {path}", "") or "it compiles anew"
        msg = f"TorchAir does not load its part of the artifact: {why}"
        raise ArtifactCorrupt(msg, where=str(path), why=why)
    return found


def _ended(made: KernelFiles, private: Path, process: int) -> None:
    """The end of a loaded graph, or of its process; not of one that was forked from it."""
    if os.getpid() == process:
        made.end()
        discard_tree(private)


def _frame(code: bytes) -> CodeType:
    """The artifact's frame.

    Raises:
        ArtifactCorrupt: it is none.
    """
    try:
        frame = marshal.loads(code)  # noqa: S302 - of an artifact that was verified
    except (EOFError, TypeError, ValueError) as error:
        frame = error
    if not isinstance(frame, CodeType):
        msg = f"the artifact's frame is no code but {frame!r}; it is compiled again"
        raise ArtifactCorrupt(msg, where="frame.code", why="its frame is no code")
    return frame


def _graph_of(found: Any) -> Callable[..., Any]:
    """The graph's callable inside of what TorchAir made of its cache."""
    inner = _closed_over(found, "compiled_fn")
    graph = inner.__globals__.get(_GRAPH_NAME) if isinstance(inner, FunctionType) else None
    if graph is None:
        msg = "the installed TorchAir builds loaded functions in another way than the releases that are known"
        raise ArtifactCorrupt(msg, where="torchair", why=msg)
    return graph  # type: ignore[no-any-return]


def _kernel_of(graph: Callable[..., Any]) -> Any:
    """TorchAir's ``AclGraph`` under a graph's callable; None where nothing is captured (max-autotune)."""
    kernel = _closed_over(graph, "ge_kernel")
    return getattr(kernel, "__globals__", {}).get("acl_graph")


def _closed_over(function: Any, name: str) -> Any:
    code, closure = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or closure is None or name not in code.co_freevars:
        return None
    return closure[code.co_freevars.index(name)].cell_contents
