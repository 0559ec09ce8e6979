"""An artifact as text, for people."""

from __future__ import annotations

import dis
import io
import marshal
import os
from pathlib import Path

from worker.artifact import Artifact, read
from worker.guards.constants import decode
from worker.guards.paths import text
from worker.guards.words import readable_shape

_WIDTH = 100


def render(path: str | os.PathLike[str]) -> str:
    """The whole content of an artifact as text.

    Raises:
        ArtifactCorrupt: the file is no artifact.
        FileNotFoundError: there is no such file.
    """
    artifact, sha256, size_bytes = read(Path(path))
    parts = [
        "=" * _WIDTH,
        f"{artifact.name}   engine {artifact.engine} {artifact.engine_version}",
        f"sha256 {sha256}, {size_bytes} bytes",
        _title("request"),
        *(f"{name}: {value}" for name, value in artifact.components.items()),
        _title("used only if"),
        *conditions(artifact),
        _title("inputs"),
        *(f"{index}: {kind}" for index, kind in enumerate(artifact.facts.input_classes)),
        _title("frame"),
        _disassembled(artifact.frame.code),
        _title("graph"),
        artifact.sections["graph.py"].decode(),
    ]
    return "\n".join(parts)


def write(rendered: str, file: str | os.PathLike[str]) -> None:
    """Write rendered text as a Python file, mode 0600: comments, then the graph as code."""
    head, title, graph = rendered.partition(_title("graph") + "\n")
    comments = "\n".join(f"# {line}".rstrip() for line in (head + title).splitlines())
    target = Path(file)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"{comments}\n\n{graph}", encoding="utf-8")
    target.chmod(0o600)


def conditions(artifact: Artifact) -> list[str]:
    """The guards, one readable line each."""
    guards = artifact.guards
    lines = [f"source {item.module}:{item.name or 'whole file'} is {item.digest}" for item in guards.sources]
    lines += [f"{name} is {value}" for name, value in guards.ambient.items()]
    lines += [f"{name} is {value}" for name, value in guards.ranks.items()]
    for node, kind, expected in guards.checks:
        where = text(guards.nodes, node)
        if kind == "same":
            lines.append(f"{where} is {text(guards.nodes, expected)}")
        elif kind == "tensor":
            sizes = ["*" if size is None else size for size in expected["sizes"]]
            lines.append(
                f"{where} is a {decode(expected['dtype'])} tensor of sizes {sizes} on {expected['device']}"
            )
        else:
            lines.append(
                f"{where} {kind.replace('_', ' ')} {expected if expected is not None else ''}".rstrip()
            )
    lines += [readable_shape(guards, expression, used) for expression, used in guards.shapes]
    return lines


def _disassembled(code: bytes) -> str:
    output = io.StringIO()
    dis.dis(marshal.loads(code), file=output)  # noqa: S302 - the artifact's digest was checked, nothing runs
    return output.getvalue().rstrip()


def _title(name: str) -> str:
    return f" {name} ".center(_WIDTH, "-")
