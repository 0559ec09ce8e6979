"""The C++ compiler: missing, too old, or good; and what CUDA devices need besides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.small_models import Plain
from warmrank import CompilerConfig
from warmrank.inference import cache_compile
from warmrank.worker.engines import toolchain
from warmrank.worker.engines.toolchain import check_cpp_compiler
from warmrank.worker.errors import ToolchainError

OLD = """#!/bin/sh
case "$*" in *--version*) echo "g++ (Made up) 9.3.0"; exit 0;; esac
echo "g++: error: unrecognized command line option '-std=c++20'" >&2; exit 1
"""


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes a script the compiler that CXX names."""

    def make(text: str) -> Path:
        path = tmp_path / "made-up-g++"
        path.write_text(text)
        path.chmod(0o700)
        monkeypatch.setenv("CXX", str(path))
        return path

    toolchain._fault.cache_clear()
    return make


def test_missing_compiler_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolchainError, match=r"no-such-compiler is not on PATH.*CXX") as caught:
        check_cpp_compiler()
    assert (caught.value.where, caught.value.expected) == (
        "no-such-compiler",
        "GCC 10 or later, or Clang 10 or later",
    )


def test_old_compiler_is_named_with_its_version(compiler: Callable[[str], Path]) -> None:
    path = compiler(OLD)
    with pytest.raises(ToolchainError, match=r"9\.3\.0, and says: .*-std=c\+\+20") as caught:
        check_cpp_compiler()
    assert caught.value.where == str(path)


def test_compiler_is_checked_before_anything_is_traced(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr("warmrank.worker.compile.compiler.trace", None)
    config = CompilerConfig()
    config.mode = "max-autotune"
    function = cache_compile(Plain().forward, config=config, cache_dir=tmp_path)
    with torch.no_grad(), pytest.raises(ToolchainError):
        function(torch.ones(2, 4))
