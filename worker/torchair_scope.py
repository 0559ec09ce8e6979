"""TorchAir's ``torchair.scope`` without an NPU: contexts that only advise; and ``patch_for_hcom``."""

from __future__ import annotations

import logging
from typing import Any


class _Scope:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def npu_stream_switch(
    stream_tag: str, stream_priority: int = 0, enable_inner_parallel: bool = True
) -> _Scope:
    """Run on another stream."""
    del stream_tag, stream_priority, enable_inner_parallel
    return _Scope()


def super_kernel(scope: str, options: str = "") -> _Scope:
    """Join kernels into one."""
    del scope, options
    return _Scope()


def limit_core_num(op_aicore_num: int, op_vectorcore_num: int) -> _Scope:
    """Leave cores to others."""
    del op_aicore_num, op_vectorcore_num
    return _Scope()


def op_never_timeout(enable: bool = True) -> _Scope:
    """Wait for a kernel without a limit."""
    del enable
    return _Scope()


def npu_wait_tensor(self: Any, dependency: Any) -> Any:
    """Return a tensor once another one is there, which it is."""
    del dependency
    return self


def patch_for_hcom() -> None:
    """Do nothing, and say so: since torch 2.3.1 Dynamo traces collectives itself."""
    logging.getLogger("torchair").warning(
        "patch_for_hcom is not needed with this release of torch: collectives are traced without it"
    )


patch_for_hcom_allreduce = patch_for_deepspeed_allreduce = patch_for_hcom
