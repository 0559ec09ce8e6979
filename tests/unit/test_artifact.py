"""The artifact's file: what it holds comes back, and damage is noticed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stored import GUARDS, make_artifact
from warmrank.worker.errors import ArtifactCorrupt
from warmrank.worker.runtime.artifact import FORMAT, TracedSource, parse

NAMES = st.text(min_size=1, max_size=12).filter(lambda name: name != "frame.code")
SECTIONS = st.dictionaries(NAMES, st.binary(max_size=64), max_size=4)
COMPONENTS = st.dictionaries(st.text(max_size=12), st.text(max_size=12), max_size=4)
DATA = make_artifact().to_bytes()


def sealed(header: Any, raw: bytes = b"") -> bytes:
    """A file whose digest is right, whatever its header says."""
    body = (header if isinstance(header, bytes) else json.dumps(header).encode()) + b"\n" + raw
    return f"warmrank-artifact {FORMAT} {hashlib.sha256(body).hexdigest()}\n".encode() + body


def header_of(data: bytes) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(data.split(b"\n", 2)[1])
    return header


@given(sections=SECTIONS, components=COMPONENTS, name=st.text(max_size=20))
def test_artifact_round_trips(sections: dict[str, bytes], components: dict[str, str], name: str) -> None:
    artifact = make_artifact(sections=sections, components=components, name=name)
    assert parse(artifact.to_bytes(), "here") == artifact


def test_artifact_is_equal_bytes_whatever_the_order_of_its_parts() -> None:
    sections = {"b": b"2", "a": b"1"}
    turned = dict(reversed(sections.items()))
    one = make_artifact(sections=sections, components={"x": "1", "y": "2"})
    other = make_artifact(sections=turned, components={"y": "2", "x": "1"})
    assert one.to_bytes() == other.to_bytes()


@pytest.mark.parametrize("length", [0, 1, 20, 80, len(DATA) // 2, len(DATA) - 1])
def test_artifact_that_is_truncated_is_refused_by_place(length: int) -> None:
    with pytest.raises(ArtifactCorrupt, match="cache/decode is no usable artifact") as raised:
        parse(DATA[:length], "cache/decode")
    assert raised.value.where == "cache/decode"


@given(position=st.integers(0, len(DATA) - 1), bit=st.integers(0, 7))
def test_artifact_with_one_flipped_bit_is_refused(position: int, bit: int) -> None:
    damaged = bytearray(DATA)
    damaged[position] ^= 1 << bit
    with pytest.raises(ArtifactCorrupt):
        parse(bytes(damaged), "here")


@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04", f"warmrank-artifact {FORMAT}\n".encode(), b"warmrank 1 00\n", b"\n"]
)
def test_file_of_another_kind_is_refused(data: bytes) -> None:
    with pytest.raises(ArtifactCorrupt, match="does not begin with a warmrank artifact's first line"):
        parse(data, "here")


def test_artifact_of_a_newer_format_says_both_formats_and_the_place() -> None:
    newer = DATA.replace(f" {FORMAT} ".encode(), f" {FORMAT + 1} ".encode(), 1)
    expected = rf"cache/decode .* it has format {FORMAT + 1}, this version reads {FORMAT}"
    with pytest.raises(ArtifactCorrupt, match=expected):
        parse(newer, "cache/decode")


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.pop("guards"),
        lambda header: header.update(sections=[]),
        lambda header: header.update(sections=[["frame.code", 1]]),
        lambda header: header.update(guards=[]),
        lambda header: header["guards"].update(nodes=[[0]]),
        lambda header: header["guards"].update(sources=[["code"]]),
    ],
    ids=["no guards", "no sections", "short sections", "guards a list", "short node", "short source"],
)
def test_artifact_whose_header_makes_no_sense_is_refused(change: Any) -> None:
    header = header_of(DATA)
    change(header)
    raw = DATA.split(b"\n", 2)[2]
    with pytest.raises(ArtifactCorrupt, match="its header cannot be read"):
        parse(sealed(header, raw), "here")


@pytest.mark.parametrize(
    "changed",
    [
        {"components": {"engine": "graph 2"}},
        {"name": "M.g(x)"},
        {"function": "1" * 32},
        {"guards": replace(GUARDS, asked=())},
        {
            "guards": replace(
                GUARDS, sources=(TracedSource(kind="code", module="m", name="M.f", digest="1" * 32),)
            )
        },
    ],
    ids=["request", "name", "function", "guards", "source"],
)
def test_provenance_changes_with_what_determines_the_bytes(changed: dict[str, Any]) -> None:
    assert make_artifact(**changed).provenance() != make_artifact().provenance()
