"""Installing packages of static kernels into a made-up CANN."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cache_store.digests import Digest, digest_bytes
from cache_store.node.node_files import keep, kept_path
from tests.support.node_artifacts import CANN, PACKAGE, SOC, cann_tree, package_bytes, runs, write
from worker.static_kernels import (
    CannTree,
    Installation,
    Package,
    arguments,
    install,
    installed_directory,
)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def tree(tmp_path: Path) -> CannTree:
    return cann_tree(tmp_path)


def package(cache: Path, data: bytes = b"", *, name: str = PACKAGE, **changes: Any) -> Package:
    """A package that the cache directory keeps."""
    data = data or package_bytes(name)
    digest = keep(cache, write(cache.parent / "made" / name, data))
    values: dict[str, Any] = {"cann": CANN, "soc": SOC, "digest": digest, "name": name}
    return Package(path=kept_path(cache, digest.sha256), **(values | changes))


def statuses(results: tuple[Installation, ...]) -> list[str]:
    return [result.status for result in results]


def reason(results: tuple[Installation, ...]) -> str:
    (result,) = results
    return result.reason


def test_package_is_installed_once(cache: Path, tree: CannTree):
    made = package(cache)
    assert statuses(install([made], tree, cache)) == ["installed"]
    assert statuses(install([made], tree, cache)) == ["there"]
    assert len(runs(tree)) == 1
    where = installed_directory(PACKAGE, tree)
    assert where is not None
    assert (where / "kernel.o").read_text() == "kernels\n"


def test_package_is_run_under_its_own_name_without_arguments(cache: Path, tree: CannTree):
    install([package(cache)], tree, cache)
    program, *given = runs(tree)[0].split()
    assert (Path(program).name, given) == (PACKAGE, [])
    assert not Path(program).exists()


def test_two_packages_are_installed_in_their_order(cache: Path, tree: CannTree):
    names = ["static_kernel_1_1.run", "static_kernel_2_2.run"]
    results = install([package(cache, name=name) for name in names], tree, cache)
    assert statuses(results) == ["installed", "installed"]
    assert [Path(line.split()[0]).name for line in runs(tree)] == names


def test_package_is_installed_again_into_a_cann_that_was_installed_again(cache: Path, tree: CannTree):
    made = package(cache)
    install([made], tree, cache)
    shutil.rmtree(tree.home)
    tree.home.mkdir()
    assert statuses(install([made], tree, cache)) == ["installed"]


def test_package_is_installed_again_after_its_own_uninstall(cache: Path, tree: CannTree):
    made = package(cache)
    install([made], tree, cache)
    where = installed_directory(PACKAGE, tree)
    assert where is not None
    subprocess.run(["bash", str(where / "uninstall.sh")], check=True)  # noqa: S607 - as packages are run
    assert installed_directory(PACKAGE, tree) is None
    assert statuses(install([made], tree, cache)) == ["installed"]
    assert len(runs(tree)) == 2


def test_other_bytes_under_the_name_are_another_package(cache: Path, tree: CannTree):
    install([package(cache)], tree, cache)
    other = package(cache, package_bytes(kernels="others"))
    assert statuses(install([other], tree, cache)) == ["installed"]
    where = installed_directory(PACKAGE, tree)
    assert where is not None
    assert (where / "kernel.o").read_text() == "others\n"


def test_new_version_of_cann_in_the_same_place_forgets_the_old_one(
    cache: Path, tree: CannTree, tmp_path: Path
):
    install([package(cache)], tree, cache)
    newer = cann_tree(tmp_path, release="9.0.1")
    assert statuses(install([package(cache, cann="9.0.1")], newer, cache)) == ["installed"]


def test_unreadable_record_costs_an_installation_only(cache: Path, tree: CannTree):
    made = package(cache)
    install([made], tree, cache)
    (record,) = (cache / ".static_kernels").glob("*.json")
    record.write_text("{")
    assert statuses(install([made], tree, cache)) == ["installed"]
    assert statuses(install([made], tree, cache)) == ["there"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cann": "8.5.0"}, "made for CANN 8.5.0, this node has 9.0.0"),
        ({"soc": "Ascend310P3"}, f"made for NPU Ascend310P3, this node has {SOC}"),
        ({"cann": ""}, "unknown version"),
        ({"cann": "8.5.0", "soc": "x"}, "; made for NPU"),
    ],
)
def test_package_for_something_else_is_refused(
    changes: dict[str, Any], expected: str, cache: Path, tree: CannTree
):
    results = install([package(cache, **changes)], tree, cache)
    assert (statuses(results), runs(tree)) == (["refused"], [])
    assert expected in reason(results)


@pytest.mark.parametrize("unknown", ["", "none"])
def test_node_that_does_not_know_its_npu_installs_nothing(unknown: str, cache: Path, tree: CannTree):
    from dataclasses import replace

    results = install([package(cache, soc=unknown)], replace(tree, soc=unknown), cache)
    assert (statuses(results), runs(tree)) == (["refused"], [])


def test_damaged_package_is_not_run(cache: Path, tree: CannTree):
    made = package(cache)
    made.path.write_bytes(made.path.read_bytes() + b"echo more\n")
    results = install([made], tree, cache)
    assert (statuses(results), runs(tree)) == (["refused"], [])
    assert "expected sha256" in reason(results)


def test_package_that_others_can_write_is_not_run(cache: Path, tree: CannTree):
    made = package(cache)
    made.path.chmod(0o666)
    assert statuses(install([made], tree, cache)) == ["failed"]
    assert runs(tree) == []


@pytest.mark.parametrize("name", ["../escape.run", "a b.run", "x.sh", "-q.run;rm"])
def test_package_of_a_strange_name_is_refused(name: str, cache: Path, tree: CannTree):
    made = package(cache)
    from dataclasses import replace

    assert statuses(install([replace(made, name=name)], tree, cache)) == ["refused"]


def test_package_that_fails_is_a_warning_and_is_tried_again(cache: Path, tree: CannTree, caplog):
    made = package(cache, b"#!/bin/sh\necho no room >&2\nexit 3\n")
    for _ in range(2):
        results = install([made], tree, cache)
        assert (statuses(results), reason(results)) == (["failed"], "exit status 3: no room")
    assert "are not installed: exit status 3: no room" in caplog.text
    assert [path.name for path in (cache / ".static_kernels").iterdir() if path.is_dir()] == [".locks"]


def test_package_that_leaves_no_kernels_failed(cache: Path, tree: CannTree):
    results = install([package(cache, b"#!/bin/sh\n")], tree, cache)
    assert (statuses(results), "left no kernels" in reason(results)) == (["failed"], True)


def test_package_without_end_failed(cache: Path, tree: CannTree):
    def hang(*_: Any, timeout: float, **__: Any) -> Any:
        raise subprocess.TimeoutExpired("package", timeout)

    results = install([package(cache)], tree, cache, timeout_s=7.0, run=hang)
    assert (statuses(results), reason(results)) == (["failed"], "no end within 7 s")


def test_shell_that_is_missing_is_a_failure_too(cache: Path, tree: CannTree):
    def missing(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError(2, "No such file or directory")

    results = install([package(cache)], tree, cache, run=missing)
    assert (statuses(results), "cannot be run" in reason(results)) == (["failed"], True)


def test_one_failure_keeps_no_other_package_back(cache: Path, tree: CannTree):
    bad = package(cache, b"#!/bin/sh\nexit 1\n", name="static_kernel_1_1.run")
    assert statuses(install([bad, package(cache)], tree, cache)) == ["failed", "installed"]


def test_cache_directory_that_cannot_be_used_is_a_failure_of_all(cache: Path, tree: CannTree, tmp_path: Path):
    made = package(cache)
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    assert statuses(install([made], tree, blocked)) == ["failed"]


@pytest.mark.parametrize(
    ("release", "expected"),
    [("9.0.0", ()), ("9.1.0", ("-q",)), ("8.5.0", ()), ("9.1.RC1", ("-q",)), ("10.0.0", ("-q",)), ("", ())],
)
def test_arguments_are_those_that_torchair_gives(release: str, expected: tuple[str, ...], tmp_path: Path):
    assert arguments(cann_tree(tmp_path, release=release)) == expected


def test_processes_of_their_own_install_beside_cann(cache: Path, tmp_path: Path):
    own = cann_tree(tmp_path, release="9.1.0", install_path=tmp_path / "own")
    assert statuses(install([package(cache, cann="9.1.0")], own, cache)) == ["installed"]
    assert runs(own)[0].split()[1:] == [f"--install-path={tmp_path / 'own'}", "-q"]
    assert list(own.home.iterdir()) == []


def test_kernels_beside_the_named_directory_count(tmp_path: Path, tree: CannTree):
    # As TorchAir looks: `latest` is a directory of links into that of a version.
    where = tmp_path / "9.0.0/opp/static_kernel/ai_core" / PACKAGE.removesuffix(".run")
    where.mkdir(parents=True)
    (where / "uninstall.sh").touch()
    assert installed_directory(PACKAGE, tree) == where


def test_nothing_to_install_is_nothing(cache: Path, tree: CannTree):
    assert install([], tree, cache) == ()


def test_digest_of_a_package_is_that_of_its_bytes(cache: Path):
    assert package(cache).digest == digest_bytes(package_bytes())
    assert isinstance(package(cache).digest, Digest)
