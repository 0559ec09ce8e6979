"""Fusion patterns that a user registered with TorchAir's ``register_replacement``: state of the process.

What is relied on (torch_npu 2.13, torch 2.11 to 2.13):

* ``<package>.patterns.pattern_pass_manager._global_pattern_pass_manager`` is None, or its ``pass_dict`` is a
  ``PatternMatcherPass``, whose ``patterns`` are lists of entries by the operator that they begin with;
* an entry's ``extra_check`` is the function ``check_fn`` of Inductor's ``register_replacement``, a closure
  over ``search_fn``, ``replace_fn`` and ``extra_check``, which TorchAir has put around the user's own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

from worker.errors import NotPortable

_OF_THE_VENDOR = ("torch_npu", "torchair", "npugraph_ex")  # the version of torch_npu stands for theirs
_PARTS = ("search_fn", "replace_fn", "extra_check")


def registered_patterns(package: str) -> Iterator[tuple[Callable[..., Any], ...]]:
    """What is searched, what replaces it, and the further condition, of each pattern of a package's users.

    Args:
        package: ``torchair`` or ``npugraph_ex``.

    Raises:
        NotPortable: a pattern of another make, whose functions cannot be found.
    """
    manager = getattr(
        sys.modules.get(f"{package}.patterns.pattern_pass_manager"), "_global_pattern_pass_manager", None
    )
    for entries in () if manager is None else manager.pass_dict.patterns.values():
        for entry in entries:
            cells = inspect.getclosurevars(entry.extra_check).nonlocals
            if any(part not in cells for part in _PARTS):
                msg = (
                    f"a fusion pattern is registered with {package} in a way that is not known, so a change "
                    "of it could not be noticed; register it with register_replacement, or use engine graph"
                )
                raise NotPortable(msg, what=str(entry))
            if str(getattr(cells["replace_fn"], "__module__", "")).partition(".")[0] in _OF_THE_VENDOR:
                continue
            around = inspect.getclosurevars(cells["extra_check"]).nonlocals
            yield cells["search_fn"], cells["replace_fn"], around.get("extra_check", cells["extra_check"])
