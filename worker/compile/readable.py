"""An artifact as one Python file, for people: comments, plain literals, and the graph as code.

Whatever stands in an artifact, the text parses as Python, and every literal in it can be read by
``ast.literal_eval``. Nothing of the artifact runs, and nothing is unpickled. Equal guards of all layers are
shown as one.
"""

from __future__ import annotations

import dis
import io
import marshal
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from warmrank.cache_store.cache_dir.private_files import (
    create_private,
    os_errors_are_unusable,
    read_private,
    temporary_name,
)
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import UnusableCache
from warmrank.worker.compile import origins
from warmrank.worker.compile.origins import Origins
from warmrank.worker.engines import engine_named
from warmrank.worker.engines.port import Engine
from warmrank.worker.errors import ArtifactCorrupt, NoSuchCache
from warmrank.worker.runtime.artifact import (
    MAGIC,
    MUTATED,
    NUMBER,
    PICKLES,
    STATE,
    USER,
    Artifact,
    PortableGuards,
    parse,
)
from warmrank.worker.runtime.asked import text as call_text
from warmrank.worker.runtime.describe import check_words, readable_shape, written

WIDTH = 100


def comment(text: str, indent: str = "") -> str:
    """One comment line; what cannot be printed is escaped, so the text cannot end the comment."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return f"{indent}# {shown}".rstrip()


def comments(lines: Iterable[str]) -> str:
    """Comment lines."""
    return "\n".join(map(comment, lines))


def title(name: str) -> str:
    """A line that opens a section."""
    return f"# {f' {name} '.center(WIDTH - 2, '-')}"


def assigned(name: str, items: Iterable[str]) -> str:
    """``name = [...]``, one text per line."""
    lines = [f"    {item!r}," for item in items]
    return "\n".join([f"{name} = [", *lines, "]"]) if lines else f"{name} = []"


def mapping(name: str, values: Mapping[str, Any]) -> str:
    """``name = {...}``, one item per line."""
    lines = [f"    {key!r}: {value!r}," for key, value in values.items()]
    return "\n".join([f"{name} = {{", *lines, "}"]) if lines else f"{name} = {{}}"


def table(name: str, columns: Sequence[str], content: Iterable[Sequence[Any]]) -> str:
    """``name = [...]`` of tuples in aligned columns, with the columns' names in a comment above."""
    cells = [[f"{value!r}," for value in row] for row in content]
    if not cells:
        return f"{name} = []"
    heads = [f"{column}," for column in columns]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    head, *shown = (
        " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *cells)
    )
    # A row of one column needs its comma to be a tuple; the comment's mark takes one column of the indent.
    rows = [f"    ({row if len(columns) == 1 else row.removesuffix(',')})," for row in shown]
    return "\n".join([f"{name} = [", comment(head.removesuffix(","), "   "), *rows, "]"])


_MEMBER = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")
# Text up to the first number in brackets, the number, and the rest.
_LAYER = re.compile(r"([^\[]*(?=\[\d+\])|.*)(?:\[(\d+)\])?(.*)", re.DOTALL)


def conditions(guards: PortableGuards) -> list[str]:
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


def merged(found: Iterable[str]) -> Iterator[str]:
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


# What `dis` prints of code within code: an address, and a file.
_PLACE = re.compile(r' at 0x[0-9a-f]+, file ".*", line -?[0-9]+')
_OPERATION = re.compile(r"^(?P<indent> +)(?:(?P<name>\w+) = )?[\w.]+\(.*?(?:  # (?P<node>\w+))?$")
_NUMBERED = re.compile(r"\.([0-9]+)(?=\.|$)")
_INPUT_COLUMNS = ("position", "class", "name", "dtype or value", "sizes", "strides", "device")
_OUTPUT_COLUMNS = ("position", "lies in", "dtype or value", "sizes", "strides", "device")
_CAPTURED_WORDS = {
    STATE: "used where it lies; at another address it is captured again",
    MUTATED: "written to, where it lies; at another address it is captured again",
    USER: "copied into memory of the graph before each replay, unless clone_input=False",
    NUMBER: "part of the shape key: each value has a graph of its own",
}
_COMPILED_WORDS = {
    STATE: "of the module; read where it lies at each call",
    MUTATED: "written to, where it lies at each call",
    USER: "read where the caller has it",
    NUMBER: "handed to the kernels at each call, within the conditions among the guards",
}


def render(path: str | os.PathLike[str]) -> str:
    """The whole content of an artifact as Python source.

    Raises:
        ArtifactCorrupt: the file is no artifact, or a damaged one.
        UnusableCache: it is a link or a directory, belongs to another user, or its mode is not 0600.
        NoSuchCache: there is no such file.
    """
    file = _file(Path(path))
    _refuse_other_files(file)
    data = read_private(file)
    artifact = parse(data, str(file))
    known = origins.read(artifact.sections)
    engine = engine_named(artifact.engine)
    class_words = _CAPTURED_WORDS if engine.captured or engine.captures_itself else _COMPILED_WORDS
    parts = [
        f"# {'=' * (WIDTH - 2)}",
        comment(artifact.name),
        comment(f"compiled by engine {artifact.engine} {artifact.engine_version}, {len(data)} bytes"),
        f"# {'=' * (WIDTH - 2)}",
        mapping("META", _meta(artifact, data)),
        title("request: what was asked for, by whom such an artifact is found"),
        mapping("REQUEST", artifact.components),
        title("signature: what the call hands to the graph, what the module does, and what comes back"),
        *(comment(f"{name}: {meaning}") for name, meaning in class_words.items()),
        table("INPUTS", _INPUT_COLUMNS, _inputs(artifact, known, of_module=False)),
        table("PARAMETERS", _INPUT_COLUMNS, _inputs(artifact, known, of_module=True)),
        table("OUTPUTS", _OUTPUT_COLUMNS, _outputs(artifact, known)),
        title("guards: it is used only if all of this holds"),
        assigned("GUARDS", merged(conditions(artifact.guards))),
        title("capture: what the runtime must know"),
        mapping("CAPTURE", _capture(artifact, engine)),
        title("files beside it"),
        table(
            "FILES",
            ("name", "size_bytes", "sha256"),
            [(file.name, file.size_bytes, file.sha256) for file in artifact.files],
        ),
        title("graph: above its operations the line that they come from; argN_1 is the input of position N"),
        *_graph(artifact, known),
        title("frame: unpacks the arguments, calls the graph, packs the outputs"),
        comments(disassembled(artifact.frame.code)),
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
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.with_name(f".{target.name}.{temporary_name()}")
        with create_private(staged) as stream:
            stream.write(rendered.encode())
        staged.replace(target)


def _refuse_other_files(file: Path) -> None:
    """Refuse a file that is none of a cache's, before anybody is told to change its mode or to delete it."""
    if not file.is_file() or file.name.startswith("compiled_module"):
        return  # looked at, and refused, as what it should be
    with os_errors_are_unusable("artifact", file), file.open("rb") as stream:
        first = stream.read(64)
    if not first.startswith((MAGIC, *PICKLES)):  # whole or not
        why = "not an artifact"
        msg = (
            f"{file} is {why}: expected a compiled_module of a cache directory, found a file that begins "
            f"with {first[:24]!r}"
        )
        raise ArtifactCorrupt(msg, where=str(file), why=why)


def _file(path: Path) -> Path:
    """The path, if it may be read; links and directories are refused with a word on what to name instead.

    Raises:
        UnusableCache: it is a link or a directory.
        NoSuchCache: there is nothing.
    """
    if path.is_symlink():
        remedy = "name the file itself; whoever can change the link decides what is read"
        actual = f"a symbolic link to {path.readlink()}"
    elif path.is_dir():
        inside = sorted(str(item.relative_to(path)) for item in path.rglob("compiled_module*"))
        remedy = f"name one of its files: {', '.join(inside[:5]) or 'there is no artifact in it'}"
        actual = "a directory"
    elif not path.exists():
        msg = f"there is no artifact {path}; its path stands in the log of the run that saved it"
        raise NoSuchCache(msg, path=str(path))
    else:
        return path
    raise UnusableCache(
        what="artifact", where=str(path), expected="a regular file", actual=actual, remedy=remedy
    )


def _meta(artifact: Artifact, data: bytes) -> dict[str, Any]:
    digest = digest_bytes(data)
    return {
        "name": artifact.name,
        "function digest": artifact.function,
        "engine": artifact.engine,
        "engine version": artifact.engine_version,
        "sha256": digest.sha256,
        "size_bytes": digest.size_bytes,
        "sections": {name: len(content) for name, content in sorted(artifact.sections.items())},
    }


def _inputs(artifact: Artifact, known: Origins, *, of_module: bool) -> Iterator[tuple[Any, ...]]:
    """Inputs of the graph: those that are the module's, or the others."""
    facts = artifact.facts
    for index, kind in enumerate(facts.input_classes):
        if (index in facts.module_inputs) is of_module:
            name = facts.input_names[index] if index < len(facts.input_names) else ""
            yield index, kind, _NUMBERED.sub(r"[\1]", name), *_words(known.inputs, index)


def _outputs(artifact: Artifact, known: Origins) -> Iterator[tuple[Any, ...]]:
    for index in range(artifact.facts.num_outputs):
        shared = "an input's memory" if index in artifact.facts.aliased_outputs else "its own memory"
        yield index, shared, *_words(known.outputs, index)


def _words(described: Sequence[Sequence[Any]], index: int) -> tuple[Any, ...]:
    """Dtype (or the value of a number), sizes, strides and device kind."""
    return tuple(described[index][1:]) if index < len(described) else ("unknown", [], [], "")


def _capture(artifact: Artifact, engine: Engine) -> dict[str, Any]:
    """The facts, apart from those that stand with the inputs and outputs."""
    facts = asdict(artifact.facts)
    for name in ("input_classes", "input_names", "module_inputs", "num_outputs", "aliased_outputs"):
        facts.pop(name, None)
    operator = facts.pop("data_dependent", "")
    can_be = f"no: {operator}'s result depends on data" if operator else "yes"
    if engine.captures_itself:
        can_be = f"yes, by engine {artifact.engine} itself"
    elif not engine.captured:
        can_be = f"no: engine {artifact.engine} calls its kernels as they are"
    roles = list(artifact.roles)
    return {"can be captured": can_be, "process groups, by role": roles, **facts}


def disassembled(code: bytes) -> list[str]:
    """Marshalled code as lines that hold neither addresses nor files."""
    output = io.StringIO()
    dis.dis(marshal.loads(code), file=output)  # noqa: S302 - the artifact's digest was checked, nothing runs
    return _PLACE.sub("", output.getvalue()).rstrip().splitlines()


def _graph(artifact: Artifact, known: Origins) -> Iterator[str]:
    """The graph's source, with the user's line above the operations that come from it."""
    if "torchair.py" in artifact.sections:
        yield comments(artifact.sections["torchair.txt"].decode().splitlines())
        yield artifact.sections["torchair.py"].decode()
        return
    if "graph.py" not in artifact.sections:
        yield comment(f"engine {artifact.engine} keeps compiled kernels, and no Python source of the graph")
        return
    if artifact.engine != "graph":
        yield comment(f"engine {artifact.engine} runs compiled kernels that were made of this graph")
    said = ""
    for line in artifact.sections["graph.py"].decode().split("\n"):
        origin = origin_of(line, known)
        if origin and origin != said:
            yield ""
            yield comment(origin, line[: len(line) - len(line.lstrip())])
            said = origin
        yield line


def origin_of(line: str, known: Origins) -> str:
    """The user's line that a line of a graph's source comes from; empty if that is not known."""
    match = _OPERATION.match(line)
    return known.line(match["node"] or match["name"]) if match else ""
