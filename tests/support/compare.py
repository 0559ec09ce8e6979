"""Nested values of tensors: copied, compared bit for bit, and asked which memory they share."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch


def cloned(value: Any) -> Any:
    """A copy: outputs of a captured graph are overwritten by its next replay."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, torch.Size):
        return value
    if isinstance(value, list | tuple):
        items = [cloned(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: cloned(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{field.name: cloned(getattr(value, field.name)) for field in _fields(value)})
    return value


def difference(wanted: Any, got: Any, where: str, tolerance: float = 0.0) -> str:
    """Where two nested values differ, in words; empty if they are equal, to the bit or within a tolerance."""
    if type(wanted) is not type(got):
        return f"{where}: {type(wanted).__name__}, got {type(got).__name__}"
    if isinstance(wanted, np.ndarray) and isinstance(got, np.ndarray):
        wanted, got = torch.from_numpy(wanted), torch.from_numpy(got)
    if isinstance(wanted, torch.Tensor):
        return _tensor_difference(wanted, got, where, tolerance)
    if isinstance(wanted, list | tuple):
        pairs: Any = [(str(index), *pair) for index, pair in enumerate(zip(wanted, got, strict=False))]
        shorter = len(wanted) != len(got)
    elif isinstance(wanted, dict):
        pairs = [(repr(key), item, got.get(key)) for key, item in wanted.items()]
        shorter = list(wanted) != list(got)
    elif dataclasses.is_dataclass(wanted) and not isinstance(wanted, type):
        pairs = [
            (field.name, getattr(wanted, field.name), getattr(got, field.name)) for field in _fields(wanted)
        ]
        shorter = False
    else:
        return "" if wanted == got else f"{where}: {wanted!r}, got {got!r}"
    if shorter:
        return f"{where}: other members"
    for name, one, other in pairs:
        found = difference(one, other, f"{where}[{name}]", tolerance)
        if found:
            return found
    return ""


def _tensor_difference(wanted: torch.Tensor, got: torch.Tensor, where: str, tolerance: float) -> str:
    one, other = (f"{item.dtype} {tuple(item.shape)}" for item in (wanted, got))
    if one != other:
        return f"{where}: {one}, got {other}"
    if torch.allclose(wanted, got, rtol=0.0, atol=tolerance, equal_nan=True):
        return ""
    return f"{where}: {wanted.flatten()[:4].tolist()}, got {got.flatten()[:4].tolist()}"


def storages(value: Any) -> list[int]:
    """Address of the storage of each tensor in a nested value, in order."""
    if isinstance(value, torch.Tensor):
        return [value.untyped_storage().data_ptr()]
    if isinstance(value, list | tuple):
        return [address for item in value for address in storages(item)]
    if isinstance(value, dict):
        return storages(list(value.values()))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return storages([getattr(value, field.name) for field in _fields(value)])
    return []


def _fields(value: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(value)
