"""The parts of vLLM's plugin that need no vLLM; `make test-vllm` runs the rest."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.vllm_plugin.entries import (
    Entry,
    Outcome,
    ranks_of,
    read_components,
    set_aside,
    write_components,
)
from warmrank.orchestrator.vllm_plugin.factors import HASH, differences
from warmrank.orchestrator.vllm_plugin.store import Publisher, access, bounded

COMPONENTS = {"device": "cuda:0", "machine cpu": "x86_64 avx2", HASH: "a" * 64}


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    made = Entry(root=tmp_path / "torch_compile_cache" / "torch_aot_compile" / ("a" * 64), rank="rank_0_0")
    made.artifact.parent.mkdir(parents=True)
    made.artifact.write_bytes(b"artifact")
    return made


def test_plugin_imports_nothing_unless_a_store_is_named():
    code = """
import sys
from warmrank.orchestrator.vllm_plugin import register
register()
loaded = {"torch", "pydantic", "vllm", "cryptography", "warmrank.cache_store"} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": "src", "PATH": ""}, check=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("WARMRANK_TRUST", "everybody"), ("WARMRANK_TIMEOUT_S", "soon"), ("WARMRANK_STORE", "x://y")],
)
def test_variable_that_cannot_be_used_is_named(name, value, tmp_path):
    with pytest.raises(BadArgument, match="--store" if name == "WARMRANK_STORE" else name):
        access({"WARMRANK_STORE": str(tmp_path), name: value})


def test_store_that_others_can_write_takes_only_what_is_signed():
    opened = access({"WARMRANK_STORE": "s3://bucket/warmrank"})
    assert opened.config.trust.policy == "require"
    assert not opened.publishes


def test_call_that_is_silent_is_left_alone():
    with pytest.raises(TimeoutError, match=r"0\.05 s"):
        bounded(lambda: time.sleep(5), 0.05)
    with pytest.raises(ValueError, match="invalid literal"):
        bounded(lambda: int("x"), 5)
    assert bounded(lambda: 7, 5) == 7


def test_artifact_for_another_device_or_machine_is_told_apart(entry):
    write_components(entry, COMPONENTS)
    here = {**COMPONENTS, "device": "cuda:1", HASH: "b" * 64}
    assert differences(read_components(entry), here) == "device cuda:0 -> cuda:1"
    assert differences(read_components(entry), COMPONENTS) == ""
    assert ranks_of(entry) == {"rank_0_0": COMPONENTS}


@pytest.mark.parametrize(
    "text", ["", "{", '{"format": 2, "components": {}}', '{"format": 1, "components": []}', "[]"]
)
def test_note_that_cannot_be_read_is_of_another_artifact(entry, text):
    assert read_components(entry) == {}
    (entry.root / entry.rank / "warmrank.json").write_text(text)
    assert "warmrank.json" in differences(read_components(entry), COMPONENTS)
    assert ranks_of(entry) == {"rank_0_0": {}}


def test_refused_entry_is_out_of_vllm_s_sight(entry):
    aside = set_aside(entry)
    assert not entry.artifact.exists()
    assert (entry.root / "inductor_cache").is_dir()
    assert (aside / "rank_0_0" / "model").read_bytes() == b"artifact"


class SlowAccess:
    """Settings whose reader waits, as for a slow store."""

    def __init__(self) -> None:
        self.is_asked, self.answers = threading.Event(), threading.Event()

    @property
    def publishes(self) -> bool:
        self.is_asked.set()
        return not self.answers.wait(10)


def test_program_that_ends_waits_for_what_is_being_published(entry):
    write_components(entry, COMPONENTS)
    opened = SlowAccess()
    publisher = Publisher(opened, SimpleNamespace(num_aot_compiles=0))  # type: ignore[arg-type]
    publisher.loaded(
        entry,
        Outcome(
            entry="a", rank=entry.rank, model="", outcome="loaded", source="disk", why="", fetch_s=0,
            fetched_bytes=0, compile_s=0, at_s=0,
        ),
    )  # fmt: skip
    looks = [threading.Thread(target=publisher.step, kwargs={"is_last": True}) for _ in range(2)]
    looks[0].start()
    assert opened.is_asked.wait(10)
    looks[1].start()
    looks[1].join(0.2)
    assert looks[1].is_alive()
    opened.answers.set()
    for look in looks:
        look.join(10)
        assert not look.is_alive()
