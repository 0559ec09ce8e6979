"""What an engine's tools made, on its way into a node cache and back into another private directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.support.node_artifacts import PACKAGE, package_bytes, write
from warmrank.cache_store.digests import Digest, digest_bytes
from warmrank.cache_store.node.private_files import digest_owned
from warmrank.worker import engine_files
from warmrank.worker.engine_files import GRAPHS, PACKAGES, bring_in, drop_unused, hand_over, set_name

OLD = f"static_kernel_compile_outputs/ts20250101000000_pid1_outputs/{PACKAGE}"
NEW = f"static_kernel_compile_outputs/ts20260101000000_pid1_outputs/{PACKAGE}"
PREFIX = "0123456789abcdef/fedcba"
GRAPH, INDEX = "graph_1_2026.om", "graph_1.idx"


@pytest.fixture
def node_cache(tmp_path: Path) -> Path:
    return tmp_path / "node_caches/ge"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Where GE left a graph and its index."""
    for name in (GRAPH, INDEX):
        write(tmp_path / "made" / name, name.encode())
    return tmp_path / "made"


def sets(node_cache: Path) -> list[Path]:
    return sorted((node_cache / PREFIX).iterdir())


def test_package_comes_back_where_torchair_looks_and_can_be_run(tmp_path: Path, node_cache: Path):
    write(tmp_path / "made" / NEW, package_bytes())
    assert hand_over(tmp_path / "made", node_cache, PREFIX, PACKAGES) == (NEW,)
    assert bring_in(node_cache, PREFIX, tmp_path / "private", PACKAGES) == (NEW,)
    package = tmp_path / "private" / NEW
    assert package.read_bytes() == package_bytes()
    assert stat.S_IMODE(package.stat().st_mode) == 0o700
    assert stat.S_IMODE(package.parent.stat().st_mode) == 0o700


def test_only_the_newest_packages_are_handed_over(tmp_path: Path, node_cache: Path):
    for path in (OLD, NEW):
        write(tmp_path / "made" / path, path.encode())
    assert hand_over(tmp_path / "made", node_cache, PREFIX, PACKAGES) == (NEW,)


def test_another_artifact_is_offered_nothing(tmp_path: Path, node_cache: Path, made: Path):
    hand_over(made, node_cache, PREFIX, GRAPHS)
    assert bring_in(node_cache, f"{PREFIX}0", tmp_path / "private", GRAPHS) == ()
    assert not (tmp_path / "private").exists()


def test_set_is_named_after_its_paths_and_bytes(node_cache: Path, made: Path):
    hand_over(made, node_cache, PREFIX, GRAPHS)
    digests = {name: digest_bytes(name.encode()) for name in (GRAPH, INDEX)}
    (found,) = sets(node_cache)
    assert found.name == set_name(digests)
    assert found.name != set_name({GRAPH: digests[INDEX], INDEX: digests[GRAPH]})


def test_graphs_are_replaced_together_with_their_index(tmp_path: Path, node_cache: Path, made: Path):
    hand_over(made, node_cache, PREFIX, GRAPHS)
    (made / GRAPH).unlink()
    write(made / "graph_1_2027.om", b"later")
    write(made / INDEX, b"of the later one")
    hand_over(made, node_cache, PREFIX, GRAPHS)
    assert len(sets(node_cache)) == 1
    bring_in(node_cache, PREFIX, tmp_path / "private", GRAPHS)
    assert sorted(path.name for path in (tmp_path / "private").iterdir()) == [INDEX, "graph_1_2027.om"]
    assert (tmp_path / "private" / INDEX).read_bytes() == b"of the later one"


def test_same_again_copies_nothing(node_cache: Path, made: Path):
    for _ in range(2):
        hand_over(made, node_cache, PREFIX, GRAPHS)
        (found,) = sets(node_cache)
        inode = (found / GRAPH).stat().st_ino
        made.joinpath(GRAPH).touch()
    assert (found / GRAPH).stat().st_ino == inode


@pytest.mark.parametrize("damage", ["torn", "missing", "added"])
def test_damaged_set_is_not_brought_in_and_is_made_anew(
    damage: str, tmp_path: Path, node_cache: Path, made: Path, caplog: pytest.LogCaptureFixture
):
    hand_over(made, node_cache, PREFIX, GRAPHS)
    (found,) = sets(node_cache)
    if damage == "torn":
        (found / GRAPH).write_bytes(bytes(len(GRAPH)))
    elif damage == "missing":
        (found / GRAPH).unlink()
    else:
        write(found / "other.om", b"of nobody")
    assert bring_in(node_cache, PREFIX, tmp_path / "private", GRAPHS) == ()
    assert list((tmp_path / "private").iterdir()) == []
    assert "not those that it was made of" in caplog.text
    hand_over(made, node_cache, PREFIX, GRAPHS)
    assert bring_in(node_cache, PREFIX, tmp_path / "private", GRAPHS) == (INDEX, GRAPH)


def test_older_set_that_is_whole_stands_in_for_a_damaged_one(tmp_path: Path, node_cache: Path, made: Path):
    hand_over(made, node_cache, PREFIX, GRAPHS)
    (good,) = sets(node_cache)
    os.utime(good, (1, 1))
    write(node_cache / PREFIX / ("0" * 32) / GRAPH, b"placed, and torn")
    assert bring_in(node_cache, PREFIX, tmp_path / "private", GRAPHS) == (INDEX, GRAPH)
    assert (tmp_path / "private" / GRAPH).read_bytes() == GRAPH.encode()


def test_locks_and_other_files_stay_behind(tmp_path: Path, node_cache: Path, made: Path):
    for name in ("compiled_module", "graph_1.lock", ".hidden.om"):
        write(made / name, b"x")
    assert hand_over(made, node_cache, PREFIX, GRAPHS) == (INDEX, GRAPH)
    (found,) = sets(node_cache)
    assert stat.S_IMODE((found / INDEX).stat().st_mode) == 0o600


def test_nothing_is_handed_over_where_others_can_write_a_part_of_it(
    node_cache: Path, made: Path, caplog: pytest.LogCaptureFixture
):
    (made / GRAPH).chmod(0o666)
    assert hand_over(made, node_cache, PREFIX, GRAPHS) == ()
    assert "compiled again" in caplog.text
    assert not (node_cache / PREFIX).exists()


def test_file_that_is_written_meanwhile_is_not_handed_over(
    node_cache: Path, made: Path, monkeypatch: pytest.MonkeyPatch
):
    def write_after(path: Path) -> Digest:
        found = digest_owned(path)
        path.write_bytes(b"rewritten")
        return found

    monkeypatch.setattr(engine_files, "digest_owned", write_after)
    assert hand_over(made, node_cache, PREFIX, GRAPHS) == ()
    assert sets(node_cache) == []


def test_debris_of_a_killed_process_goes(node_cache: Path, made: Path):
    debris = node_cache / PREFIX / f".warmrank-{os.uname().nodename}-999999999-{'0' * 32}"
    write(debris / GRAPH, b"half")
    os.utime(debris, (1, 1))
    hand_over(made, node_cache, PREFIX, GRAPHS)
    assert not debris.exists()
    assert len(sets(node_cache)) == 1


def test_prefix_that_nobody_used_for_long_goes(tmp_path: Path, node_cache: Path, made: Path):
    for artifact in ("used", "unused"):
        hand_over(made, node_cache, f"{artifact}/0", GRAPHS)
        for path in (*(node_cache / artifact / "0").iterdir(), node_cache / artifact / "0"):
            os.utime(path, (1, 1))
    bring_in(node_cache, "used/0", tmp_path / "private", GRAPHS)
    drop_unused(node_cache, age_s=1e8)
    assert [path.name for path in node_cache.iterdir()] == ["used"]


def test_nothing_was_made(tmp_path: Path, node_cache: Path):
    assert hand_over(tmp_path / "nowhere", node_cache, PREFIX, PACKAGES) == ()


@pytest.mark.parametrize("prefix", ["../x", "/x", "", "a//b"])
def test_prefix_that_leaves_the_node_cache_is_refused(prefix: str, made: Path, node_cache: Path):
    with pytest.raises(ValueError, match="prefix"):
        hand_over(made, node_cache, prefix, GRAPHS)
