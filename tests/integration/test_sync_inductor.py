"""Inductor's cache, pushed from one path and pulled at another, hits there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.records.documents import Documents
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.sync.pull import plan_pull, pull
from warmrank.cache_store.sync.push import push

CHILD = """
import json, torch
from torch._dynamo.utils import counters
compiled = torch.compile(lambda x: x.sin() + 1)
compiled(torch.ones(8))
print(json.dumps({name: counters["inductor"][name] for name in ("fxgraph_cache_hit", "fxgraph_cache_miss")}))
"""


def run(cache: Path) -> dict[str, int]:
    environ = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"  # they take longer than one small kernel
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=environ, capture_output=True, text=True, check=True, timeout=400
    )
    counts: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return counts


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ on a CPU: no g++ here")
def test_inductor_hits_in_a_directory_pulled_at_another_path(tmp_path):
    documents = Documents(backend=DirectoryBackend(tmp_path / "store"), trust=Trust(policy="off"))
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir(mode=0o700)
    assert run(old) == {"fxgraph_cache_hit": 0, "fxgraph_cache_miss": 1}
    push(documents, "inductor", old, {})
    shutil.rmtree(old)
    pull(documents, plan_pull(documents, "inductor", new, {}))
    assert run(new) == {"fxgraph_cache_hit": 1, "fxgraph_cache_miss": 0}
