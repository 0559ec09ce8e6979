"""Scripts as the seeds teach them, changed only in import and device, run twice in fresh processes."""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEEDS = ROOT / "tests" / "support" / "seeds"
CACHE_LINE = re.compile(
    r"\[INFO\] TORCHAIR.* Cache "
    r"ModelCacheMeta\(name=(?P<quote>['\"])(?P<name>.+)(?P=quote), date='[^']+', version='[^']+', fx=None\) "
    r"(?P<verb>saved to|loaded from) (?P<path>\S+)"
)


CacheEvent = tuple[str, str, str]


def run(script: Path, work_dir: Path) -> list[CacheEvent]:
    """Run a script in a fresh process; what it logged about its cache as (verb, name, path)."""
    result = subprocess.run(
        [sys.executable, str(script)],
        cwd=work_dir,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    lines = (result.stdout + result.stderr).splitlines()
    return [(m["verb"], m["name"], m["path"]) for m in map(CACHE_LINE.search, lines) if m]


class Runs:
    """Runs each script twice in a directory of its own, once for all tests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.done: dict[Path, tuple[list[CacheEvent], list[CacheEvent]]] = {}

    def work_dir(self, script: Path) -> Path:
        return self.root / script.stem

    def of(self, script: Path) -> tuple[list[CacheEvent], list[CacheEvent]]:
        if script not in self.done:
            self.work_dir(script).mkdir()
            self.done[script] = (run(script, self.work_dir(script)), run(script, self.work_dir(script)))
        return self.done[script]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("seeds"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("script", "functions"),
    [
        (ROOT / "examples" / "plain_script.py", ["prompt", "decode"]),
        (SEEDS / "input_meta.py", ["prompt", "decode"]),
        (SEEDS / "add.py", ["_forward"]),
        (SEEDS / "add_decomposition.py", ["inner_forward"]),
        (SEEDS / "decomposition.py", ["inner_forward"]),
        (SEEDS / "memory_reuse.py", ["inner_forward"]),
        (SEEDS / "prefill_decode.py", ["prefill", "decode"]),
        (SEEDS / "backend.py", ["add", "subtract"]),
        (SEEDS / "statics.py", ["decode"]),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else "",
)
def test_second_run_loads_what_the_first_one_saved(script: Path, functions: list[str], runs: Runs) -> None:
    first, second = runs.of(script)
    assert [verb for verb, _, _ in first] == ["saved to"] * len(functions)
    assert [verb for verb, _, _ in second] == ["loaded from"] * len(functions)
    assert [entry[1:] for entry in first] == [entry[1:] for entry in second]
    for (_, name, path), function in zip(first, functions, strict=True):
        assert f".{function}(" in name
        assert Path(path).name == "compiled_module"
        assert Path(path).parent.name == function
        assert Path(path).is_relative_to(runs.work_dir(script) / ".torchair_cache")
        assert "_dynamic_aclgraphcache_" in path


def test_readable_cache_writes_a_file_that_python_parses(runs: Runs) -> None:
    runs.of(SEEDS / "add.py")
    text = (runs.work_dir(SEEDS / "add.py") / "readable.py").read_text()
    ast.parse(text)
    assert "aten_add" in text


def test_custom_decomposition_takes_effect(runs: Runs) -> None:
    runs.of(SEEDS / "decomposition.py")
    text = (runs.work_dir(SEEDS / "decomposition.py") / "readable.py").read_text()
    assert "aten_bmm" in text
    code = ast.unparse(ast.parse(text))  # without the comments, which quote the user's lines
    assert "addbmm" not in code.partition("graph(")[2]


def test_aclgraph_script_runs_end_to_end(tmp_path: Path) -> None:
    """A backend of ``torch.compile`` keeps nothing; the script compares its output itself."""
    assert run(SEEDS / "aclgraph.py", tmp_path) == []
    assert list(tmp_path.glob(".torchair_cache")) == []


def test_script_on_every_rank_has_its_own_place_in_the_cache(tmp_path: Path) -> None:
    script = ROOT / "examples" / "plain_script.py"
    common = {**os.environ, "PYTHONPATH": str(ROOT), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=200)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    found = sorted(path.parts[-3:-1] for path in tmp_path.rglob("compiled_module"))
    assert found == [
        ("world2global_rank0", "decode"),
        ("world2global_rank0", "prompt"),
        ("world2global_rank1", "decode"),
        ("world2global_rank1", "prompt"),
    ]
