"""The page of a launch: what it says, that it needs nothing else, that texts of others stay texts."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.made_reports import made_report
from warmrank.orchestrator.launch.report import from_json, to_json
from warmrank.orchestrator.ui.page import render_html


class Page(HTMLParser):
    """Counts what a page is made of, and checks that every element is closed where it should be."""

    void = frozenset({"meta", "input", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: dict[str, int] = {}
        self.attributes: list[tuple[str, str, str | None]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[name] = self.tags.get(name, 0) + 1
        self.attributes += [(name, key, value) for key, value in attrs]
        if name not in self.void:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_page_of_a_warm_launch_says_what_was_done_and_what_is_next() -> None:
    html = render_html(made_report(1024))
    text = Page(html).text
    assert "All 1,024 ranks are warm after 34.7 s: 8 compiled, 2,040 adopted." in text
    assert "The next launch loads what was compiled now (8 functions)" in text
    assert "torch 2.13.0 -> 2.13.1; source of model.py:Block.forward changed" in text
    assert "held by ranks 256 times" in text
    assert "Rank 341 was slow in build on node-42" in text
    assert "build 5.20 s, from 3.90 s on; first of 8 after" in html


def test_page_of_a_failed_launch_says_why_and_how_to_mend_it() -> None:
    text = Page(render_html(made_report(1024, failed=True))).text
    assert "Failed after 40.5 s in stage compile: node lost on ranks 0-7 (node-0)." in text
    assert "Remedy: look whether node-0 is up and reachable, and launch again" in text
    assert "rank 1023 had not answered when the launch was stopped." in text
    assert "node node-0 was lost" in text


@pytest.mark.parametrize("failed", [False, True])
def test_page_needs_no_network_and_its_links_lead_to_its_sections(failed: bool) -> None:
    page = Page(render_html(made_report(8, failed=failed)))
    assert not {"link", "img", "iframe", "object", "base", "form"} & page.tags.keys()
    links = {str(value) for _, key, value in page.attributes if key in {"src", "href", "action"}}
    ids = [f"#{value}" for _, key, value in page.attributes if key == "id"]
    assert links
    assert links <= set(ids)
    assert len(ids) == len(set(ids))
    (policy,) = (str(value) for _, key, value in page.attributes if "default-src" in str(value))
    assert re.fullmatch(
        r"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-[A-Za-z0-9+/]{43}='", policy
    )


CHOSEN = {"outcome", "action", "mode", "state"}
"""Keys of a report whose texts are ours."""


def spoilt(value: Any, text: str) -> Any:
    """A report's JSON with this text in place of every text that comes from elsewhere."""
    if isinstance(value, dict):
        return {key: each if key in CHOSEN else spoilt(each, text) for key, each in value.items()}
    if isinstance(value, list):
        return [spoilt(each, text) for each in value]
    return text if isinstance(value, str) else value


@settings(deadline=None, max_examples=10)
@example("</script><img src=x onerror=alert(1)>", True)
@example('"\' onload="x\0\u202e', False)
@given(st.text() | st.text(alphabet="<>\"'&/= abonscript\n\0\u202e"), st.booleans())
def test_no_text_of_a_report_becomes_markup(text: str, failed: bool) -> None:
    data = spoilt(json.loads(to_json(made_report(2, failed=failed))), text)
    hostile = from_json(json.dumps({**data, "identity": {text: text}, "parallel": {text: 2}}))
    page = Page(render_html(hostile))
    assert page.tags["script"] == 1
    assert not {"img", "iframe", "svg"} & page.tags.keys()
    assert not [key for _, key, _ in page.attributes if key.startswith("on")]
    assert all(char.isprintable() or char.isspace() for char in page.text)
