"""Facts about the directories of other tools: what to leave out, and which files hold absolute paths.

Invariants: pure functions of names; a tool that is not known here may be relocated only if no file of it
names the directory that it was read from.

Facts relied on:

* Inductor (torch 2.13, measured by ``tests/unit/test_cli_store.py``): a copy of
  ``TORCHINDUCTOR_CACHE_DIR`` at another path hits; shared libraries name the old path as debug information.
* Triton (``FileCacheManager.get_group`` in ``triton/runtime/cache.py``): ``__grp__*.json`` lists the files of
  a kernel by absolute path, and those that do not exist are passed over.
* vLLM (``InductorStandaloneAdaptor.load`` in ``vllm/compilation/compiler_interface.py``): the handles in
  ``vllm_compile_cache.py``, a Python literal, are pairs of a key and an absolute path; below the same
  directory lie Inductor's and Triton's. 0.32 writes no such file, and loads what was moved; with
  vllm-ascend's compiler it does (``CompilerManager.save_to_file`` in ``vllm/compilation/backends.py``).
* TorchAir: ``compiled_module`` is looked up relative to ``cache_dir``, and must be private.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.cache_dir.marks import SIGNERS, UNVERIFIED
from warmrank.cache_store.cache_dir.single_flight import LOCKS
from warmrank.cache_store.errors import Conflict
from warmrank.cache_store.records.manifest import ListedFile
from warmrank.cache_store.text import brief_names

_LEFT_OUT_FILES = ("*.lock", "*.tmp", "*.tmp.*", ".tmp*", "tmp.pid_*", ".nfs*", "*.swp", "*~", ".DS_Store")
_LEFT_OUT_DIRECTORIES = ("locks", "tmp.*", ".tmp*", "__pycache__")
_MARKS = frozenset({SIGNERS, UNVERIFIED})
_OURS = frozenset({".index", ".queue", LOCKS})  # of a cache directory, beside `.tmp*`
_BESIDE = ".warmrank"
_TRITON_GROUPS = "__grp__*.json"
MAX_REWRITTEN_BYTES = 64 << 20
# Spelled alike in JSON, in Python literals and on disk; anything else would need each format's own quoting.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=@%,:~")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Rules by which the directory of one tool may be moved."""

    name: str
    rewritten: tuple[str, ...] = ()  # names of files in which the directory's path is replaced by the new one
    ignores_other_mentions: bool = False  # files that name the old path elsewhere work all the same
    left_out: tuple[str, ...] = ()  # names of files that it writes and never reads


_TOOLS = {
    tool.name: tool
    for tool in (
        Tool(name="inductor", rewritten=(_TRITON_GROUPS,), ignores_other_mentions=True),
        Tool(name="triton", rewritten=(_TRITON_GROUPS,), ignores_other_mentions=True),
        Tool(name="vllm", rewritten=("vllm_compile_cache.py", _TRITON_GROUPS), ignores_other_mentions=True),
        Tool(name="vllm-aot", rewritten=(_TRITON_GROUPS,), ignores_other_mentions=True),
        Tool(
            name="vllm-ascend",
            rewritten=("vllm_compile_cache.py",),
            ignores_other_mentions=True,
            # For people to read, with paths and variables of the machine in them.
            left_out=("cache_key_factors.json", "computation_graph.py", "transformed_code.py"),
        ),
        Tool(name="torchair", ignores_other_mentions=True),
    )
}


def tool_named(name: str) -> Tool:
    """Rules of a tool; none for one that is not known here."""
    return _TOOLS.get(name, Tool(name=name))


def is_left_out(name: str, *, directory: bool) -> bool:
    """Return True for names of locks and of files on their way in, which are nobody else's business."""
    return _matches(name, _LEFT_OUT_DIRECTORIES if directory else _LEFT_OUT_FILES)


def is_ours(path: str) -> bool:
    """Return True for a path below a cache directory that warmrank keeps for itself.

    Locks and indexes of the directory; marks, and what lies `beside` a pulled directory, wherever.
    """
    first, *others = path.casefold().split("/")
    return (
        first in _OURS
        or first.startswith(".tmp")
        or any(
            part in _MARKS or (part.startswith(".") and part.endswith(_BESIDE)) for part in (first, *others)
        )
    )


def beside(root: Path) -> Path:
    """Directory of a pulled directory's lock, staging and index: on the same file system, but not in it."""
    return root.parent / f".{root.name}{_BESIDE}"


def is_unread(tool: Tool, path: str) -> bool:
    """Return True for a file that the tool never reads."""
    return _matches(path, tool.left_out)


def _matches(path: str, patterns: Iterable[str]) -> bool:
    name = path.rpartition("/")[2]
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocation:
    """Replacement of a path, and the files in which to make it; none where nothing has to change."""

    old: bytes
    new: bytes
    paths: frozenset[str]

    def apply(self, data: bytes) -> bytes:
        """``data`` with the old path replaced where it stands as a whole path or as a path's beginning."""
        parts = data.split(self.old)
        joined = [parts[0]]
        for before, after in itertools.pairwise(parts):
            # Before it stands a quote or the like; a name or a slash makes it the middle of a longer path.
            inside = _is_name(before[-1:]) or before[-1:] == b"/" or _is_name(after[:1])
            joined += [self.old if inside else self.new, after]
        return b"".join(joined)


def relocation(tool: Tool, files: Sequence[ListedFile], *, old: str, new: str) -> Relocation:
    """Decide how a directory read at ``old`` is restored at ``new``.

    Raises `Conflict` where it must not be moved; says which files name the old path.
    """
    named = [file for file in files if file.names_root and old != new]
    rewritten = [file for file in named if _matches(file.path, tool.rewritten)]
    paths = frozenset(file.path for file in rewritten)
    others = [file.path for file in named if file.path not in paths]
    large = [file.path for file in rewritten if file.size_bytes > MAX_REWRITTEN_BYTES]
    if others and not tool.ignores_other_mentions:
        why = f"{brief_names(others)} contain the old path, and {tool.name!r} is no tool known here"
    elif rewritten and not (set(old) | set(new)) <= _PLAIN:
        why = "one of the paths has characters that files may spell in several ways"
    elif large:
        why = f"{large[0]} has to be changed and is over {MAX_REWRITTEN_BYTES} bytes"
    else:
        return Relocation(old=old.encode(), new=new.encode(), paths=paths)
    raise Conflict(
        what="directory",
        where=new,
        expected=f"the path that it was read from, {old}",
        actual=why,
        remedy=f"restore it at {old}, for example with a bind mount or the tool's own setting",
    )


def _is_name(byte: bytes) -> bool:
    # After the path a slash or anything that ends it may follow; a letter makes it another directory's.
    return byte.isalnum() or byte in (b"_", b"-", b".")
