"""Stand-ins for the one-line functions of Dynamo that a frame may call: a warm load must not import it.

Source of what each does: ``torch/_dynamo/utils.py``, torch 2.11 to 2.13.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
from types import CellType
from typing import Any


class StandIns:
    """Stands for a module that must not be imported by a load; imports it if another name is really used."""

    object_new = staticmethod(object.__new__)
    dict_getitem = staticmethod(dict.__getitem__)
    list_getitem = staticmethod(list.__getitem__)
    iter_next = staticmethod(next)
    dataclass_fields = staticmethod(dataclasses.fields)
    make_cell = staticmethod(CellType)

    def __init__(self, name: str) -> None:
        self._name = name

    @staticmethod
    def record_pregraph_bytecode_enter() -> None:
        """Dynamo's profiler range: not wanted here."""

    @staticmethod
    def record_pregraph_bytecode_exit(_range: Any) -> None:
        """As above."""

    @staticmethod
    def call_size(tensor: Any, dim: int) -> Any:
        """One size of a tensor."""
        return tensor.size(dim)

    @staticmethod
    def call_stride(tensor: Any, dim: int) -> Any:
        """One stride of a tensor."""
        return tensor.stride(dim)

    @staticmethod
    def call_storage_offset(tensor: Any) -> Any:
        """Where a tensor begins in its storage."""
        return tensor.storage_offset()

    @staticmethod
    def dict_keys_getitem(mapping: dict[Any, Any], position: int) -> Any:
        """The key at a position."""
        return next(itertools.islice(dict.keys(mapping), position, None))

    @staticmethod
    def set_getitem(members: set[Any], position: int) -> Any:
        """The member at a position."""
        return list(members)[position]

    @staticmethod
    def tuple_iterator_getitem(iterator: Any, position: int) -> Any:
        """A member that an iterator has still to come to."""
        _, (members,), start = iterator.__reduce__()
        return members[start + position]

    @staticmethod
    def object_setattr_ignore_descriptor(instance: Any, name: str, value: Any) -> None:
        """Set an attribute of the instance itself."""
        object.__getattribute__(instance, "__dict__")[name] = value

    @staticmethod
    def object_delattr_ignore_descriptor(instance: Any, name: str) -> None:
        """Delete an attribute of the instance itself."""
        del object.__getattribute__(instance, "__dict__")[name]

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)
