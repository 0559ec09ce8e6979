"""TorchAir's ``torchair.scope`` without an NPU: contexts that only advise; and ``patch_for_hcom``."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Any


def npu_stream_switch(
    stream_tag: str, stream_priority: int = 0, enable_inner_parallel: bool = True
) -> nullcontext[None]:
    """Run on another stream."""
    del stream_tag, stream_priority, enable_inner_parallel
    return nullcontext()


def super_kernel(scope: str, options: str = "") -> nullcontext[None]:
    """Join kernels into one."""
    del scope, options
    return nullcontext()


def limit_core_num(op_aicore_num: int, op_vectorcore_num: int) -> nullcontext[None]:
    """Leave cores to others."""
    del op_aicore_num, op_vectorcore_num
    return nullcontext()


def op_never_timeout(enable: bool = True) -> nullcontext[None]:
    """Wait for a kernel without a limit."""
    del enable
    return nullcontext()


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
