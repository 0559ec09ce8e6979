"""The reference of all keys as Markdown, between two marks in a document that people write around it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

from warmrank.orchestrator.config.keys import Key, Section, sections

BEGIN = "<!-- made by `warmrank config reference --into`: edit the models, not this -->"
END = "<!-- end of what is made -->"


def reference(model: type[BaseModel]) -> str:
    """The tables of a model's keys, a section for each mapping."""
    return "\n\n".join("\n".join(_table(section)) for section in sections(model))


def in_document(text: str, made: str) -> str:
    """A document with what stands between its marks made anew.

    Raises:
        ValueError: it has no marks.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        msg = f"expected the lines {BEGIN} and {END}"
        raise ValueError(msg)
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def update(path: Path, made: str) -> None:
    """Make the reference in a document anew."""
    path.write_text(in_document(path.read_text(encoding="utf-8"), made), encoding="utf-8")


def _table(section: Section) -> Iterable[str]:
    place = ".".join(section.path).replace(".0", "[]")
    first = (section.model.__doc__ or "").strip().partition("\n")[0]
    yield f"### {f'`{place}`' if place else 'At the top'}"
    yield ""
    yield first.replace("``", "`")
    yield ""
    yield "| key | type | default | |"
    yield "|---|---|---|---|"
    yield from (_row(key) for key in section.keys)


def _row(key: Key) -> str:
    default = {"": "**required**", "none": "none", "see below": "see below"}.get(
        key.default, f"`{key.default}`"
    )
    cells = (f"`{key.path[-1]}`", key.kind, default, key.description)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
