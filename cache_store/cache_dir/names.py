"""Names of the variants in a function's cache directory (`cache_store.cache_dir.local` writes them)."""

from __future__ import annotations

import os
from pathlib import Path

from warmrank.cache_store.cache_dir.private_files import os_errors_are_unusable

VARIANT_NAME = "compiled_module"
_MAX_DIGITS = 9


def is_variant_name(name: str) -> bool:
    """Whether ``name`` is ``compiled_module`` or ``compiled_module.N`` with N from 1."""
    return _number(name) is not None


def variant_name(number: int) -> str:
    """Name of the variant that is added after ``number`` others."""
    return f"{VARIANT_NAME}.{number}" if number else VARIANT_NAME


def variant_numbers(function_dir: Path) -> list[int]:
    """Numbers of the variants of one function, in order."""
    return sorted(number for name in file_names(function_dir) if (number := _number(name)) is not None)


def variants(function_dir: Path) -> tuple[Path, ...]:
    """Variants of one function, oldest first; none where there is no directory."""
    return tuple(function_dir / variant_name(number) for number in variant_numbers(function_dir))


def file_names(function_dir: Path, absent: tuple[type[OSError], ...] = (FileNotFoundError,)) -> list[str]:
    """Names of all files; none where there is no directory."""
    with os_errors_are_unusable("directory", function_dir):
        try:
            return os.listdir(function_dir)  # noqa: PTH208 - only names are needed, and loads are timed
        except absent:
            return []


def _number(name: str) -> int | None:
    if name == VARIANT_NAME:
        return 0
    head, dot, digits = name.partition(".")
    if head != VARIANT_NAME or not dot or len(digits) > _MAX_DIGITS or digits.startswith("0"):
        return None
    return int(digits) if digits.isascii() and digits.isdigit() else None
