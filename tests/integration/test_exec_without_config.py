"""`warmrank exec -- COMMAND` needs nothing but a store: a torch.compile script is warm on a new node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, os, torch
from torch._dynamo.utils import counters
compiled = torch.compile(lambda x: x.sin() + 1)
compiled(torch.ones(8))
found = {name: counters["inductor"][name] for name in ("fxgraph_cache_hit", "fxgraph_cache_miss")}
found["autograd_hit"] = counters["aot_autograd"]["autograd_cache_hit"]
print(json.dumps({**found, "at": os.environ["TORCHINDUCTOR_CACHE_DIR"]}))
"""


def warmrank(*words: str, home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {
        name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ
    }
    environ = {**kept, "HOME": str(home), "OMP_NUM_THREADS": "1", **variables}
    home.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "warmrank", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=400)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ on a CPU: no g++ here")
def test_plain_script_hits_the_fx_graph_cache_on_a_new_node(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    seen = []
    for node in ("first", "second"):
        (temporary := tmp_path / f"tmp of {node}").mkdir()
        done = warmrank(
            "exec",
            "--",
            sys.executable,
            str(script),
            home=tmp_path / node,
            WARMRANK_STORE=str(tmp_path / "store"),
            TMPDIR=str(temporary),
        )
        assert done.returncode == 0, done.stderr
        assert not [*temporary.rglob("*.gch")]  # a compile of seconds, which no cache would bring
        seen.append(json.loads(done.stdout.splitlines()[-1]))
    cold, warm = seen
    assert (cold["fxgraph_cache_hit"], cold["fxgraph_cache_miss"]) == (0, 1)
    assert warm["fxgraph_cache_miss"] == 0
    assert warm["fxgraph_cache_hit"] + warm["autograd_hit"] >= 1
    assert cold["at"] != warm["at"]


def test_caches_of_the_same_key_come_and_of_another_do_not(tmp_path):
    fill = "for name in TORCHINDUCTOR_CACHE_DIR MINE; do mkdir -p ${!name}/f; echo a > ${!name}/f/a; done"
    look = "for name in TORCHINDUCTOR_CACHE_DIR MINE; do find ${!name} -name a | wc -l; done"
    words = ("exec", "--store", str(tmp_path / "store"), "--cache", "mine:MINE", "--key")
    made = warmrank(*words, "model=a", "--", "bash", "-c", fill, home=tmp_path / "a")
    assert made.returncode == 0, made.stderr
    same = warmrank(*words, "model=a", "--", "bash", "-c", look, home=tmp_path / "b")
    other = warmrank(*words, "model=b", "--", "bash", "-c", look, home=tmp_path / "c")
    assert (same.stdout.split(), other.stdout.split()) == (["1", "1"], ["0", "0"])
    assert "model" in other.stderr


def test_neither_config_nor_store_is_an_error_that_names_both(tmp_path):
    done = warmrank("exec", "--", "true", home=tmp_path / "home")
    assert done.returncode == 2
    assert "CONFIG" in done.stderr
    assert "WARMRANK_STORE" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["own.yaml", "--store", "elsewhere"], "go without a config; own.yaml names its own"),
        (["own.yaml", "--key", "model=x"], "go without a config"),
        (["--store", "here", "--set", "ranks=2"], "--set changes a config"),
    ],
)
def test_options_that_would_have_no_effect_are_errors(words, said, tmp_path):
    done = warmrank("exec", *words, "--", "true", home=tmp_path / "home", COLUMNS="200")
    assert done.returncode == 2
    assert said in done.stderr
