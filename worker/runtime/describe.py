"""Misses in words: failed conditions (where, what was traced, what is there), and the nearest request."""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from warmrank.cache_store.cache_dir.local import variants
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.text import changed_components
from warmrank.worker.errors import ArtifactCorrupt, WorkerError
from warmrank.worker.gears.model import carried, encoded
from warmrank.worker.keys.code import type_name
from warmrank.worker.keys.request import Request
from warmrank.worker.runtime import constants
from warmrank.worker.runtime.artifact import Check, PortableGuards
from warmrank.worker.runtime.check import MISSING, plain_type, text
from warmrank.worker.runtime.decoding import decode
from warmrank.worker.runtime.find import Misfits, Place, StoredArtifact

_MAX_CHARS = 80
_MAX_REASONS = 3
_MAX_CANDIDATES = 16
# What `worker.gears.rules.membership` writes.
_AXIS = re.compile(r"p(\d+)\.shape\[(\d+)\], ")
_GEARED = re.compile(rf"\((?P<sizes>(?:{_AXIS.pattern})+)\) in (?P<allowed>\{{.+\}})")
# As `find.model_directory` makes it; the name of a class may hold underscores itself.
_MODEL_DIR = re.compile(r"(?P<cls>.+)_(?:dynamic|static)(?:_aclgraphcache)?_[0-9a-f]+")
_PHRASES = {
    "type": "is of type {}",
    "identity": "is {}",
    "equals": "equals {}",
    "length": "has length {}",
    "keys": "has keys {}",
    "order": "has its members in the order {}",
    "has_key": "has key {}",
    "no_key": "has no key {}",
    "has_attr": "has attribute {}",
    "no_attr": "has no attribute {}",
    "not_in_dict": "has no {} of its own",
    "present": "is there",
    "none": "is None",
    "not_none": "is not None",
    "empty": "is empty",
    "group": "is process group {}",
    "group_name": "names process group {}",
}
_HOLDERS = {"tuple": "({})", "list": "[{}]", "set": "{{{}}}", "frozenset": "frozenset({{{}}})"}


def check_words(guards: PortableGuards, check: Check) -> list[str]:
    """Describe a check for people: one line, but one per object for ``distinct``."""
    node, kind, expected = check
    where = text(guards.nodes, node)
    if kind == "same":
        return [f"{where} is {text(guards.nodes, expected)}"]
    if kind == "distinct":
        return [text(guards.nodes, other) for other in (node, *expected)]
    if kind == "tensor":
        sizes = ["*" if size is None else size for size in expected["sizes"]]
        return [f"{where} is a {decode(expected['dtype'])} tensor of sizes {sizes} on {expected['device']}"]
    if kind in ("type", "has_attr", "no_attr"):
        shown = str(expected)
    elif kind in ("identity", "group"):
        shown = " ".join(filter(None, map(str, expected)))
    elif kind in ("keys", "order"):
        shown = repr([plain(key) for key in expected])
    else:
        shown = written(expected)
    return [f"{where} {_PHRASES.get(kind, kind.replace('_', ' ') + ' {}').format(shown)}"]


def describe_failure(guards: PortableGuards, check: Check, values: Sequence[Any]) -> str:
    """One failed condition in words: where, what it was, what it is."""
    node, kind, expected = check
    where, value = text(guards.nodes, node), values[node]
    if value is MISSING:
        return f"{where} is missing"
    if kind in ("same", "distinct"):
        return _describe_objects(guards, check, values)
    if kind in ("gears", "geared"):
        return f"{where}: gears {expected or 'none'} -> {encoded(carried(value)) or 'none'}"
    if kind == "tensor":
        return f"{where}: {', '.join(tensor_differences(value, expected))}"
    if kind == "type":
        was, now = (
            name.partition("#")[0].replace(":", ".") for name in (expected, type_name(plain_type(value)))
        )
        return f"class {was} of {where} changed" if was == now else f"type of {where}: {was} -> {now}"
    if kind == "identity":
        what = "object" if expected[0] == "made" else expected[0]
        return f"{where}: another {what} than {_identity_name(expected)}"
    if kind == "equals":
        return f"{where}: {written(expected)} -> {_short(value)}"
    if kind in ("keys", "order", "length", "empty"):
        return _describe_members(where, kind, value, expected)
    return f"{where}: {kind.replace('_', ' ')} {written(expected)} no longer holds"


def _describe_members(where: str, kind: str, value: Any, expected: Any) -> str:
    if kind == "order" and isinstance(value, set | frozenset):
        return f"order of {where}: {[plain(key) for key in expected]} -> {_short(list(value))}"
    if kind == "keys" and hasattr(value, "keys"):
        known, found = [plain(key) for key in expected], [*map(_plain_key, value.keys())]
        equal = len([*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(known, found, strict=False))])
        if equal > _MAX_REASONS:
            where, known, found = f"{where} after the first {equal}", known[equal:], found[equal:]
        return f"members of {where}: {_short(known)} -> {_short(found)}"
    if not hasattr(value, "__len__"):
        return f"{where}: {_short(value)} has no members"
    if kind == "empty":
        return f"{where}: {len(value)} added"
    return f"length of {where}: {len(expected) if kind in ('keys', 'order') else expected} -> {len(value)}"


def _plain_key(key: Any) -> Any:
    try:
        return plain(constants.encode_key(key))
    except WorkerError:
        return key


def _describe_objects(guards: PortableGuards, check: Check, values: Sequence[Any]) -> str:
    node, kind, expected = check
    if kind == "same":
        return f"{text(guards.nodes, node)} and {text(guards.nodes, expected)} are no longer the same object"
    first: dict[int, str] = {}
    for index in (node, *expected):
        name, value = text(guards.nodes, index), values[index]
        if value is MISSING:
            return f"{name} is missing"
        if id(value) in first:
            return f"{first[id(value)]} and {name} are now the same object"
        first[id(value)] = name
    return "some objects are now the same"


def _identity_name(described: Sequence[Any]) -> str:
    """The name in what `describe` gave."""
    kind = described[0]
    if kind in ("method", "partial", "made"):
        return _identity_name(described[1:] if kind == "method" else described[1])
    if kind == "constant":
        return written(described[1])
    if kind == "group":
        return f"{described[1]} of {described[2]} ranks"
    return str(described[1] if kind in ("module", "code", "operator", "operators") else described[2])


def tensor_differences(value: Any, expected: Mapping[str, Any]) -> list[str]:
    """In words, where a tensor differs from what was traced."""
    if not isinstance(value, torch.Tensor):
        return [f"is a {type(value).__name__}, was a tensor"]
    found = [
        f"{name} {plain(expected[name])} -> {plain(now)}"
        for name, now in constants.tensor_traits(value).items()
        if now != expected[name]
    ]
    if found or value.layout != torch.strided:
        return found
    for name, now in (("sizes", value.shape), ("strides", value.stride())):
        wanted = expected[name]
        if len(now) != len(wanted) or any(w is not None and w != n for w, n in zip(wanted, now, strict=True)):
            found.append(f"{name} {['*' if w is None else w for w in wanted]} -> {list(now)}")
    return found


def describe_shape(
    guards: PortableGuards, expression: str, used: Sequence[int], values: Sequence[Any]
) -> str:
    """A condition on sizes that does not hold, in words."""
    matched = _GEARED.fullmatch(expression)
    if matched is None or any(not isinstance(values[index], torch.Tensor) for index in used):
        return f"sizes: {readable_shape(guards, expression, used)} does not hold"
    axes = [(int(node), int(dim)) for node, dim in _AXIS.findall(matched["sizes"])]
    found = ", ".join(
        f"{text(guards.nodes, node)} has size {values[node].shape[dim]} in dimension {dim}"
        for node, dim in axes
    )
    gears = sorted(ast.literal_eval(matched["allowed"]))
    allowed = ", ".join(str(sizes[0] if len(axes) == 1 else sizes) for sizes in gears)
    return f"{found}; gears allow {allowed}"


def readable_shape(guards: PortableGuards, expression: str, used: Sequence[int]) -> str:
    """A condition on sizes with the objects' paths in place of ``p<node>``."""
    names = {f"p{index}": text(guards.nodes, index) for index in used}
    return re.sub(r"\bp\d+\b", lambda match: names.get(match[0], match[0]), expression)


def plain(encoded: Any) -> Any:
    """An encoded constant as a reader knows it."""
    if not isinstance(encoded, dict) or len(encoded) != 1:
        return encoded
    ((tag, payload),) = encoded.items()
    if tag in ("class", "enum"):
        return ".".join(map(str, payload[:3] if tag == "enum" else payload[:2]))
    if tag in ("dtype", "layout", "memory_format", "device"):
        return payload
    try:
        return decode(encoded)
    except (AttributeError, ImportError, LookupError, TypeError, WorkerError):
        return payload


def written(encoded: Any) -> str:
    """An encoded constant as Python writes it; sets with their members in one order in all processes."""
    ((tag, held),) = encoded.items() if isinstance(encoded, dict) and len(encoded) == 1 else (("", ()),)
    if tag not in _HOLDERS or not held:
        return repr(plain(encoded))
    return _HOLDERS[tag].format(", ".join(map(written, held)) + "," * ((tag, len(held)) == ("tuple", 1)))


def _short(value: Any) -> str:
    """A present value in a few words; never the content of a tensor."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype} {list(value.shape)}"
    words = ""
    if isinstance(value, set | frozenset):
        with contextlib.suppress(WorkerError):  # of members without a name
            words = written(constants.encode(value))
    try:
        words = words or " ".join(repr(value).split())
    except Exception:  # noqa: BLE001 - whatever code of the user's raises, which is no reason to fail here
        words = f"a {type(value).__name__}"
    return words if len(words) <= _MAX_CHARS else f"{words[:_MAX_CHARS]}..."


def _few(reasons: Sequence[str], separator: str) -> str:
    """The first few of them, each once, and how many more there are: one line to read, not a list."""
    distinct = list(dict.fromkeys(reasons))
    more = len(distinct) - _MAX_REASONS
    return separator.join([*distinct[:_MAX_REASONS], *([f"and {more} more"] if more > 0 else [])])


def why_none(
    place: Place, asked: Request, misfits: Misfits, faults: Sequence[str], unfit: Sequence[tuple[str, ...]]
) -> str:
    """Files with faults and the conditions of the nearest artifacts; else the nearest other request.

    ``misfits`` gives an artifact's conditions that do not hold; it is asked of the nearest of other requests
    where module or parameters differ, whose components are digests, to name what differs in them.
    """
    if faults or unfit:
        return _few([*faults, *(_few(wrong, "; ") for wrong in sorted(unfit, key=len))], " | ")
    model_dir, function = place.model_dir, place.function_dir.name
    if model_dir.is_dir():
        return f"no artifact of {function} in {model_dir.name}"
    class_name = _class_of(model_dir)
    nearest: list[tuple[bool, int, str, StoredArtifact]] = []
    unreadable = ""
    for path in _candidates(model_dir.parent, class_name, function):
        try:
            stored = StoredArtifact.read(path)
        except ArtifactCorrupt as error:
            unreadable = unreadable or f", but one that cannot be used: {error.why}"
        except (StoreError, OSError):
            continue
        else:
            changes = changed_components(stored.artifact.components, asked.components)
            # Another model, or another rank's part of it, is farther off than the same from other sources.
            is_other = any(change.name in ("module", "parameters") for change in changes)
            nearest.append((is_other, len(changes), "; ".join(map(str, changes)), stored))
    if not nearest:
        return f"the cache holds nothing for {class_name}.{function}{unreadable}"
    is_other, _, changed, stored = min(nearest, key=lambda found: found[:2])
    if is_other and (named := misfits(stored)):
        changed = f"{changed} ({_few(named, '; ')})"
    return f"nearest artifact differs: {changed}"


def _class_of(model_dir: Path) -> str:
    match = _MODEL_DIR.fullmatch(model_dir.name)
    return match["cls"] if match else model_dir.name


def _candidates(root: Path, class_name: str, function: str) -> list[Path]:
    """The newest artifacts of this function under other requests of the same class."""
    if not root.is_dir():
        return []
    found = [
        path
        for directory in root.iterdir()
        if directory.is_dir() and _class_of(directory) == class_name
        for parent in (directory / function, *directory.glob(f"*/{function}"))
        for path in variants(parent)
    ]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:_MAX_CANDIDATES]
