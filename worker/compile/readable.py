"""An artifact as one Python file, for people: comments, plain literals, and the graph as code.

Whatever stands in an artifact, the text parses as Python, and every literal in it can be read by
``ast.literal_eval``. Nothing of the artifact runs, and nothing is unpickled. Equal guards of all layers are
shown as one.

Where operators come from, and what inputs and outputs are, is kept in section ``about``, which a load does
not read. Lines name a module, never a file, so equal code gives equal bytes on every rank. Layout (JSON)::

    {"lines":     ["model:12 Block.forward: x = x + 1", ...],   each once
     "operators": {"add": 0, ...},       name of a node of the graph -> position in lines
     "inputs":    [["tensor", "float32", ["s0", 4], [4, 1], "cpu"], ...],
     "outputs":   [[...], ...]}          likewise; ["number", "s0", [], [], ""] for a number
"""

from __future__ import annotations

import dis
import io
import json
import marshal
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from warmrank.cache_store.cache_dir.private_files import os_errors_are_unusable, read_private, write_whole
from warmrank.cache_store.canonical import canonical_json
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import UnusableCache
from warmrank.worker.engines import engine_named
from warmrank.worker.errors import ArtifactCorrupt, NoSuchCache
from warmrank.worker.keys.code import is_pinned_module, modules_by_file
from warmrank.worker.runtime import artifact as artifacts
from warmrank.worker.runtime.asked import text as call_text
from warmrank.worker.runtime.describe import check_words, readable_shape, written
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from types import CodeType

    from warmrank.worker.engines import Engine
    from warmrank.worker.torch_private.lowering import LoweredGraph

WIDTH = 100
_FRAME = re.compile(r'^ *File "(.*)", line ([0-9]+), in (.*)\n(.*)', re.MULTILINE)
_MEMBER = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")
# Text up to the first number in brackets, the number, and the rest.
_LAYER = re.compile(r"([^\[]*(?=\[\d+\])|.*)(?:\[(\d+)\])?(.*)", re.DOTALL)
# What `dis` prints of code within code: an address, and a file.
_PLACE = re.compile(r' at 0x[0-9a-f]+, file ".*", line -?[0-9]+')
_OPERATION = re.compile(r"^(?P<indent> +)(?:(?P<name>\w+) = )?[\w.]+\(.*?(?:  # (?P<node>\w+))?$")
_NUMBERED = re.compile(r"\.([0-9]+)(?=\.|$)")
_INPUT_COLUMNS = ("position", "class", "name", "dtype or value", "sizes", "strides", "device")
_OUTPUT_COLUMNS = ("position", "lies in", "dtype or value", "sizes", "strides", "device")
_CAPTURED_WORDS = {
    artifacts.STATE: "used where it lies; at another address it is captured again",
    artifacts.MUTATED: "written to, where it lies; at another address it is captured again",
    artifacts.USER: "copied into memory of the graph before each replay, unless clone_input=False",
    artifacts.NUMBER: "part of the shape key: each value has a graph of its own",
}
_COMPILED_WORDS = {
    artifacts.STATE: "of the module; read where it lies at each call",
    artifacts.MUTATED: "written to, where it lies at each call",
    artifacts.USER: "read where the caller has it",
    artifacts.NUMBER: "handed to the kernels at each call, within the conditions among the guards",
}


class Origins(Value):
    """Content of section ``about``; empty parts where an artifact does not know."""

    lines: tuple[str, ...] = ()
    operators: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[tuple[Any, ...], ...] = ()
    outputs: tuple[tuple[Any, ...], ...] = ()

    def line(self, source: str) -> str:
        """The user's line that a line of a graph's source comes from; empty if that is not known."""
        match = _OPERATION.match(source)
        position = self.operators.get(match["node"] or match["name"]) if match else None
        return "" if position is None else self.lines[position]


def origins_in(sections: Mapping[str, bytes]) -> Origins:
    """The origins that an artifact's sections hold."""
    content = json.loads(sections.get(artifacts.ABOUT, b"{}"))
    return Origins(**{name: content[name] for name in Origins.value_fields if name in content})


def about(lowered: LoweredGraph, codes: Collection[CodeType]) -> bytes:
    """Section ``about`` of a graph, and the code that was traced for it."""
    modules = {file: module.__name__ for file, module in modules_by_file().items()}
    named: dict[tuple[str, str], list[CodeType]] = {}
    for code in codes:
        named.setdefault((code.co_filename, code.co_name), []).append(code)
    nodes = list(lowered.graph.graph.nodes)
    lines: dict[str, int] = {}
    operators = {}
    for node in nodes:
        if node.op == "call_function" and (line := _last_line(node.stack_trace or "", modules, named)):
            operators[node.name] = lines.setdefault(line, len(lines))
    returned = next((node.args[0] for node in nodes if node.op == "output"), ())
    content = {
        "operators": operators,
        "inputs": [_described(node.meta.get("val")) for node in nodes if node.op == "placeholder"],
        "outputs": [_described(getattr(value, "meta", {}).get("val", value)) for value in returned],
        "lines": list(lines),
    }
    return canonical_json(content)


def _last_line(
    stack_trace: str, modules: Mapping[str, str], named: Mapping[tuple[str, str], list[CodeType]]
) -> str:
    """The innermost line of a known module, outside torch if there is one; empty for none."""
    known = [frame for frame in _FRAME.findall(stack_trace) if frame[0] in modules]
    own = [frame for frame in known if not is_pinned_module(modules[frame[0]])]
    if not known:
        return ""
    file, number, name, text = (own or known)[-1]
    before = [code for code in named.get((file, name), ()) if code.co_firstlineno <= int(number)]
    name = max(before, key=lambda code: code.co_firstlineno).co_qualname if before else name
    return f"{modules[file]}:{number} {name}: {' '.join(text.split())}"


def _described(value: Any) -> list[Any]:
    """An input or output: kind, dtype, sizes, strides, device kind; symbols by their names."""
    if not isinstance(value, torch.Tensor):
        return ["number" if value is not None else "None", str(value), [], [], ""]
    strides = value.stride() if value.layout is torch.strided else ()
    sizes = [
        [size if isinstance(size, int) else str(size) for size in part] for part in (value.shape, strides)
    ]
    return ["tensor", str(value.dtype).removeprefix("torch."), *sizes, value.device.type]


def conditions(guards: artifacts.PortableGuards) -> list[str]:
    """Every condition, one readable line each."""
    return [
        *(f"source {item.module}:{item.name or 'whole file'} is {item.digest}" for item in guards.sources),
        *(f"{name} is {value}" for name, value in guards.ambient.items()),
        *(f"{name} is {text}" for name, text in guards.runtime_state.items()),
        *(f"{call_text(call)} is {written(call[3])}" for call in guards.asked),
        *(
            _short(words) + (" is no other of these objects" if check[1] == "distinct" else "")
            for check in guards.checks
            for words in check_words(guards, check)
        ),
        *(_short(readable_shape(guards, expression, used)) for expression, used in guards.shapes),
    ]


def _merged(found: Iterable[str]) -> Iterator[str]:
    """Conditions that differ in the number of a layer only as one: ``layers[0, 1, 2]``."""
    numbers: dict[tuple[str, str, str], list[str]] = {}
    for condition in found:
        head, number, tail = _LAYER.match(condition).groups()  # type: ignore[union-attr] # matches any text
        numbers.setdefault((head, number and "[]", tail), []).append(number or "")
    for (head, bracket, tail), layers in numbers.items():
        for shown in [", ".join(layers)] if bracket else layers:
            yield f"{head}[{shown}]{tail}" if bracket else head


def _short(path: str) -> str:
    """``self.layers[0].weight`` for ``self._modules['layers']._modules['0']._parameters['weight']``."""
    return _MEMBER.sub(lambda match: f"[{match[1]}]" if match[1].isdigit() else f".{match[1]}", path)


def disassembled(code: bytes) -> list[str]:
    """Marshalled code as lines that hold neither addresses nor files."""
    output = io.StringIO()
    dis.dis(marshal.loads(code), file=output)  # noqa: S302 - the artifact's digest was checked, nothing runs
    return _PLACE.sub("", output.getvalue()).rstrip().splitlines()


def render(path: str | os.PathLike[str]) -> str:
    """The whole content of an artifact as Python source.

    Raises:
        ArtifactCorrupt: the file is no artifact, or a damaged one.
        UnusableCache: it is a link or a directory, belongs to another user, or its mode is not 0600.
        NoSuchCache: there is no such file.
    """
    file = Path(path)
    _refuse_other_files(file)
    data = read_private(file)
    artifact = artifacts.parse(data, str(file))
    digest = digest_bytes(data)
    known = origins_in(artifact.sections)
    engine = engine_named(artifact.engine)
    class_words = _CAPTURED_WORDS if engine.captured or engine.captures_itself else _COMPILED_WORDS
    meta = {
        "name": artifact.name,
        "function digest": artifact.function,
        "engine": artifact.engine,
        "engine version": artifact.engine_version,
        "sha256": digest.sha256,
        "size_bytes": digest.size_bytes,
        "sections": {name: len(content) for name, content in sorted(artifact.sections.items())},
    }
    files = [(file.name, file.size_bytes, file.sha256) for file in artifact.files]
    parts = [
        f"# {'=' * (WIDTH - 2)}",
        _comment(artifact.name),
        _comment(f"compiled by engine {artifact.engine} {artifact.engine_version}, {len(data)} bytes"),
        f"# {'=' * (WIDTH - 2)}",
        _literal("META", meta),
        _title("request: what was asked for, by whom such an artifact is found"),
        _literal("REQUEST", artifact.components),
        _title("signature: what the call hands to the graph, what the module does, and what comes back"),
        *(_comment(f"{name}: {meaning}") for name, meaning in class_words.items()),
        _literal("INPUTS", _inputs(artifact, known, of_module=False), _INPUT_COLUMNS),
        _literal("PARAMETERS", _inputs(artifact, known, of_module=True), _INPUT_COLUMNS),
        _literal("OUTPUTS", _outputs(artifact, known), _OUTPUT_COLUMNS),
        _title("guards: it is used only if all of this holds"),
        _literal("GUARDS", _merged(conditions(artifact.guards))),
        _title("capture: what the runtime must know"),
        _literal("CAPTURE", _capture(artifact, engine)),
        _title("files beside it"),
        _literal("FILES", files, ("name", "size_bytes", "sha256")),
        _title("graph: above its operations the line that they come from; argN_1 is the input of position N"),
        *_graph(artifact, known),
        _title("frame: unpacks the arguments, calls the graph, packs the outputs"),
        *map(_comment, disassembled(artifact.frame.code)),
    ]
    return "\n".join(parts) + "\n"


def write(rendered: str, file: str | os.PathLike[str]) -> None:
    """Write rendered text to a file of mode 0600, whole or not at all.

    Raises:
        UnusableCache: the file is a link or no file, or cannot be written.
    """
    target = Path(file)
    if target.is_symlink() or (target.exists() and not target.is_file()):
        what = "a symbolic link" if target.is_symlink() else "no file"
        raise UnusableCache(
            what="output file", where=str(target), expected="a plain file, or none", actual=what,
            remedy="name another file",
        )  # fmt: skip
    with os_errors_are_unusable("output file", target):
        write_whole(target, rendered.encode())


def _refuse_other_files(path: Path) -> None:
    """Refuse what is none of a cache's files, before anybody is told to change its mode or to delete it."""
    if path.is_symlink() or path.is_dir():
        inside = sorted(str(item.relative_to(path)) for item in path.rglob("compiled_module*"))
        raise UnusableCache(
            what="artifact", where=str(path), expected="a regular file",
            actual="a symbolic link" if path.is_symlink() else "a directory",
            remedy=f"name the file itself{': ' * bool(inside)}{', '.join(inside[:5])}",
        )  # fmt: skip
    if not path.exists():
        msg = f"there is no artifact {path}; its path stands in the log of the run that saved it"
        raise NoSuchCache(msg, path=str(path))
    if not path.is_file() or path.name.startswith("compiled_module"):
        return  # looked at, and refused, as what it should be
    with os_errors_are_unusable("artifact", path), path.open("rb") as stream:
        first = stream.read(64)
    if not first.startswith((artifacts.MAGIC, *artifacts.PICKLES)):
        msg = f"{path} is not an artifact, a compiled_module of a cache; it begins with {first[:24]!r}"
        raise ArtifactCorrupt(msg, where=str(path), why="not an artifact")


def _comment(text: str, indent: str = "") -> str:
    """One comment line; what cannot be printed is escaped, so the text cannot end the comment."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return f"{indent}# {shown}".rstrip()


def _title(name: str) -> str:
    """A line that opens a section."""
    return f"# {f' {name} '.center(WIDTH - 2, '-')}"


def _literal(name: str, content: Iterable[Any], columns: Sequence[str] = ()) -> str:
    """``name = ...`` with one item of a mapping or list per line, and the names of tuples' columns above."""
    if isinstance(content, Mapping):
        opening, closing = "{", "}"
        lines = [f"    {key!r}: {value!r}," for key, value in content.items()]
    else:
        opening, closing = "[", "]"
        lines = [f"    {item!r}," for item in content]
    if not lines:
        return f"{name} = {opening}{closing}"
    heads = [_comment(", ".join(columns), "    ")] if columns else []
    return "\n".join([f"{name} = {opening}", *heads, *lines, closing])


def _inputs(artifact: artifacts.Artifact, known: Origins, *, of_module: bool) -> Iterator[tuple[Any, ...]]:
    """Inputs of the graph: those that are the module's, or the others."""
    facts = artifact.facts
    for index, kind in enumerate(facts.input_classes):
        if (index in facts.module_inputs) is of_module:
            name = facts.input_names[index] if index < len(facts.input_names) else ""
            yield index, kind, _NUMBERED.sub(r"[\1]", name), *_words(known.inputs, index)


def _outputs(artifact: artifacts.Artifact, known: Origins) -> Iterator[tuple[Any, ...]]:
    for index in range(artifact.facts.num_outputs):
        shared = "an input's memory" if index in artifact.facts.aliased_outputs else "its own memory"
        yield index, shared, *_words(known.outputs, index)


def _words(described: Sequence[Sequence[Any]], index: int) -> tuple[Any, ...]:
    """Dtype (or the value of a number), sizes, strides and device kind."""
    return tuple(described[index][1:]) if index < len(described) else ("unknown", [], [], "")


def _capture(artifact: artifacts.Artifact, engine: Engine) -> dict[str, Any]:
    """The facts, apart from those that stand with the inputs and outputs."""
    facts = asdict(artifact.facts)
    elsewhere = ("input_classes", "input_names", "module_inputs", "num_outputs", "aliased_outputs")
    for name in (*elsewhere, "data_dependent", "moving"):
        facts.pop(name, None)
    can_be = f"no: {why}" if (why := artifact.facts.uncapturable) else "yes"
    if engine.captures_itself:
        can_be = f"yes, by engine {artifact.engine} itself"
    elif not engine.captured:
        can_be = f"no: engine {artifact.engine} calls its kernels as they are"
    return {"can be captured": can_be, "process groups, by role": list(artifact.roles), **facts}


def _graph(artifact: artifacts.Artifact, known: Origins) -> Iterator[str]:
    """The graph's source, with the user's line above the operations that come from it."""
    if "torchair.py" in artifact.sections:
        yield from map(_comment, artifact.sections["torchair.txt"].decode().splitlines())
        yield artifact.sections["torchair.py"].decode()
        return
    if artifact.engine != "graph":
        yield _comment(f"engine {artifact.engine} runs compiled kernels that were made of this graph")
    said = ""
    for line in artifact.sections["graph.py"].decode().split("\n"):
        origin = known.line(line)
        if origin and origin != said:
            yield ""
            yield _comment(origin, line[: len(line) - len(line.lstrip())])
            said = origin
        yield line
