"""What an engine's tools made, on its way into a node cache and back into another private directory."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.node_artifacts import PACKAGE, cann_tree, package_bytes, write
from worker.engine_files import GRAPHS, PACKAGES, bring_in, hand_over
from worker.node_caches import Source, collect

OLD = f"static_kernel_compile_outputs/ts20250101000000_pid1_outputs/{PACKAGE}"
NEW = f"static_kernel_compile_outputs/ts20260101000000_pid1_outputs/{PACKAGE}"
PREFIX = "Llama_0f/decode/0123456789abcdef"


@pytest.fixture
def node_cache(tmp_path: Path) -> Path:
    return tmp_path / "node_caches/static_kernels"


def test_package_comes_back_where_torchair_looks_and_can_be_run(tmp_path: Path, node_cache: Path):
    write(tmp_path / "made" / NEW, package_bytes())
    assert hand_over(tmp_path / "made", node_cache, PREFIX, PACKAGES) == (NEW,)
    assert bring_in(node_cache, PREFIX, tmp_path / "private", PACKAGES) == (NEW,)
    package = tmp_path / "private" / NEW
    assert stat.S_IMODE(package.stat().st_mode) == 0o700
    assert stat.S_IMODE(package.parent.stat().st_mode) == 0o700
    tree = cann_tree(tmp_path)
    # As TorchAir does: the package is the program.
    subprocess.run(
        [str(package)], check=True, env={"ASCEND_HOME_PATH": str(tree.home), "PATH": "/bin:/usr/bin"}
    )
    assert (tree.home / "opp/static_kernel/ai_core" / PACKAGE.removesuffix(".run") / "kernel.o").exists()


def test_what_was_handed_over_is_collected_for_the_node(tmp_path: Path, node_cache: Path):
    write(tmp_path / "made" / NEW, package_bytes())
    hand_over(tmp_path / "made", node_cache, PREFIX, PACKAGES)
    found = collect([Source(name="static_kernels", directory=node_cache)], tmp_path / "cache")
    assert [file.path for file in found.files] == [f"node/static_kernels/{PREFIX}/{NEW}"]


def test_only_the_newest_packages_come_back(tmp_path: Path, node_cache: Path):
    for path in (OLD, NEW):
        write(node_cache / PREFIX / path, path.encode())
    assert bring_in(node_cache, PREFIX, tmp_path / "private", PACKAGES) == (NEW,)


def test_another_artifact_is_offered_nothing(tmp_path: Path, node_cache: Path):
    write(node_cache / PREFIX / NEW, b"x")
    assert bring_in(node_cache, f"{PREFIX}0", tmp_path / "private", PACKAGES) == ()
    assert not (tmp_path / "private").exists()


def test_first_file_of_a_name_stays(tmp_path: Path, node_cache: Path):
    write(node_cache / PREFIX / "graph.om", b"first")
    write(tmp_path / "made/graph.om", b"second")
    hand_over(tmp_path / "made", node_cache, PREFIX, GRAPHS)
    assert (node_cache / PREFIX / "graph.om").read_bytes() == b"first"


def test_graphs_of_ge_go_along_with_their_index(tmp_path: Path, node_cache: Path):
    for name in ("graph_1.idx", "graph_1_20260101.om", "compiled_module", "graph_1.lock"):
        write(tmp_path / "made" / name, b"x")
    assert hand_over(tmp_path / "made", node_cache, PREFIX, GRAPHS) == ("graph_1.idx", "graph_1_20260101.om")
    assert stat.S_IMODE((node_cache / PREFIX / "graph_1.idx").stat().st_mode) == 0o600


def test_file_that_others_can_write_is_not_taken_along(tmp_path: Path, node_cache: Path, caplog):
    write(tmp_path / "made/graph.om", b"x").chmod(0o666)
    assert hand_over(tmp_path / "made", node_cache, PREFIX, GRAPHS) == ()
    assert "compiled again" in caplog.text
    assert not (node_cache / PREFIX / "graph.om").exists()


def test_nothing_was_made(tmp_path: Path, node_cache: Path):
    assert hand_over(tmp_path / "nowhere", node_cache, PREFIX, PACKAGES) == ()


@pytest.mark.parametrize("prefix", ["../x", "/x", "", "a//b"])
def test_prefix_that_leaves_the_node_cache_is_refused(prefix: str, tmp_path: Path, node_cache: Path):
    with pytest.raises(ValueError, match="prefix"):
        hand_over(tmp_path, node_cache, prefix, GRAPHS)
