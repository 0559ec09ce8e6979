"""Tools that Inductor needs, looked for before a trace: a C++ compiler, for CUDA Triton and the toolkit.

The compiler itself is asked whether it takes Inductor's flag. Without torch: where it does not import, the
doctor says why.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
from pathlib import Path

from warmrank.worker.errors import ToolchainError
from warmrank.worker.settings import settings

# torch 2.13, torch/_inductor/cpp_builder.py: _get_cpp_std_cflag; GCC knows it since 10, Clang since 10.
STANDARD = "-std=c++20"
_NEEDED = "GCC 10 or later, or Clang 10 or later"
_TIMEOUT_S = 60.0


def check_cpp_compiler() -> None:
    """Raise `ToolchainError` without a C++ compiler that Inductor can use."""
    compiler = settings().compiler
    fault = _fault(compiler, shutil.which(compiler))
    if fault:
        msg = (
            f"mode max-autotune needs a C++ compiler that takes {STANDARD} ({_NEEDED}): {fault}. Install one "
            "(package g++) or name it in CXX; or use mode reduce-overhead, which needs none."
        )
        raise ToolchainError(msg, what="C++ compiler", where=compiler, expected=_NEEDED, actual=fault)


def check_cuda() -> None:
    """Raise `ToolchainError` without Triton or the CUDA toolkit's headers."""
    if importlib.util.find_spec("triton") is None:
        msg = "mode max-autotune on cuda needs Triton, which is not installed: pip install triton"
        raise ToolchainError(msg, what="triton", where="cuda", expected="installed", actual="not installed")
    nvcc = Path(settings().cuda_home or "/usr/local/cuda") / "bin" / "nvcc"
    if shutil.which("nvcc") is None and not nvcc.is_file():
        msg = (
            "mode max-autotune on cuda needs the CUDA toolkit (its headers, to compile the library that "
            "starts the kernels), and there is no nvcc on PATH nor under CUDA_HOME; install it, or set "
            "CUDA_HOME"
        )
        raise ToolchainError(msg, what="CUDA toolkit", where="cuda", expected="nvcc", actual="none")


@functools.cache
def _fault(name: str, path: str | None) -> str:
    """The reason why the compiler at ``path`` cannot be used; empty if it can."""
    if path is None:
        return f"{name} is not on PATH"
    command = [path, STANDARD, "-fsyntax-only", "-x", "c++", "/dev/null"]
    try:
        done = subprocess.run(  # noqa: S603 - the compiler that the user named
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} does not run: {error}"
    said = (done.stderr or done.stdout).strip().partition("\n")[0]
    return f"{path} says: {said or f'status {done.returncode}'}" if done.returncode else ""
