from __future__ import annotations

import os
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.store_processes import race
from warmrank.cache_store.cache_dir.local import (
    FRESH_S,
    MAX_VARIANTS,
    add_variant,
    add_variant_from,
    add_variant_stream,
    find_variant,
    place_directory,
    temporary_file,
    variants,
)
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, UnusableCache


@pytest.fixture
def function_dir(tmp_path: Path) -> Path:
    return tmp_path / "Llama_0f" / "decode"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"data")
    path.chmod(0o600)
    return path


def names(function_dir: Path) -> list[str]:
    return [path.name for path in variants(function_dir)]


def test_variant_is_private(function_dir):
    path = add_variant(function_dir, b"data")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(function_dir.stat().st_mode) == 0o700


def make_stale(path: Path) -> None:
    moment = time.time() - 2 * FRESH_S
    os.utime(path, (moment, moment))


def test_oldest_variant_goes_beyond_the_limit(function_dir):
    # Of different sizes, because a comparison of bytes would read the others.
    for number in range(MAX_VARIANTS + 2):
        make_stale(add_variant(function_dir, bytes(number)))
    kept = [path.stat().st_size for path in variants(function_dir)]
    assert kept == list(range(2, MAX_VARIANTS + 2))


def test_find_variant_compares_bytes_not_sizes(function_dir):
    add_variant(function_dir, b"a")
    assert find_variant(function_dir, digest_bytes(b"b")) is None


def test_existing_variant_that_is_not_private_is_passed_over(function_dir, caplog):
    add_variant(function_dir, b"data").chmod(0o644)
    assert add_variant(function_dir, b"data").name == "compiled_module.1"
    assert add_variant(function_dir, b"data").name == "compiled_module.1"
    assert "mode 0644" in caplog.text


@pytest.mark.parametrize("wrong", [b"dbta", b"dat", b"data2"], ids=["flipped bit", "longer", "truncated"])
def test_add_variant_from_refuses_other_bytes(function_dir, source, wrong):
    with pytest.raises(Corrupt, match=str(source)):
        add_variant_from(function_dir, source, digest_bytes(wrong))
    assert list(function_dir.iterdir()) == []


def test_add_variant_from_refuses_a_source_that_others_could_have_written(function_dir, source):
    source.chmod(0o622)
    with pytest.raises(UnusableCache, match="mode 0622"):
        add_variant_from(function_dir, source)


def test_failing_stream_leaves_no_file(function_dir):
    class Failing:
        def read(self, size: int, /) -> bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add_variant_stream(function_dir, Failing(), expected=None, source="test")
    assert list(function_dir.iterdir()) == []


def test_threads_that_add_equal_bytes_get_one_variant(function_dir):
    barrier = threading.Barrier(8)

    def add(_: int) -> Path:
        barrier.wait()
        return add_variant(function_dir, b"data")

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(add, range(8))) == {function_dir / "compiled_module"}
    assert names(function_dir) == ["compiled_module"]


def test_processes_that_add_at_once_get_a_variant_for_each_text(function_dir):
    texts = ["one", "two", "one", "two"]
    results = race(*[("add_variant", str(function_dir), text) for text in texts])
    assert [Path(result["path"]).read_text() for result in results] == texts
    assert len(names(function_dir)) == 2


def stage_directory(path: Path, *texts: bytes) -> Path:
    path.mkdir(parents=True)
    for number, text in enumerate(texts):
        (path / (f"compiled_module.{number}" if number else "compiled_module")).write_bytes(text)
    return path


def test_new_function_gets_all_variants_at_once(function_dir, tmp_path):
    staged = stage_directory(tmp_path / "staged", b"a", b"b")
    assert place_directory(function_dir, staged)
    assert [path.read_bytes() for path in variants(function_dir)] == [b"a", b"b"]
    assert not staged.exists()


def test_what_a_killed_process_left_is_swept_by_the_next_one(function_dir):
    function_dir.mkdir(parents=True)
    mine = temporary_file(function_dir)
    killed = mine.with_name(mine.name.replace(f"-{os.getpid()}-", f"-{2**22 + 1}-"))  # no pid is so high
    for path in (mine, killed):
        path.touch()
        os.utime(path, (0, 0))
    add_variant(function_dir, b"data")
    assert (mine.exists(), killed.exists()) == (True, False)
