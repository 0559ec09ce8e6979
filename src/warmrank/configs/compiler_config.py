"""TorchAir's ``torchair.configs.compiler_config``, where its scripts import it from."""

from warmrank.worker.configs.compiler_config import CompilerConfig

__all__ = ["CompilerConfig"]
