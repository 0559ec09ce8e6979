"""Configuration of a compile, with TorchAir's names; nothing here imports torch."""

from __future__ import annotations

from warmrank.worker.configs.compiler_config import CompilerConfig

__all__ = ["CompilerConfig"]
