"""Time-outs of HCCL, the collectives of Ascend, so that a launch's own time-out is what a user sees.

HCCL reads its variables when a communicator is made; what a user has set stays. Of CANN's reference:

* ``HCCL_CONNECT_TIMEOUT``, how long ranks wait for each other to connect: 120 to 7200 s, by default 120;
  HCCL adds 20 s.
  https://www.hiascend.com/document/detail/zh/canncommercial/900/maintenref/envvar/envref_07_0077.html
* ``HCCL_EXEC_TIMEOUT``, how long a collective waits for the other ranks: by default 1836 s; 0 is for ever; at
  most 1091 s with ``HCCL_OP_EXPANSION_MODE=AIV``.
  https://www.hiascend.com/document/detail/zh/canncommercial/900/maintenref/envvar/envref_07_0078.html

torch's watchdog must come later than HCCL, or HCCL's own report of the missing rank is lost: torch_npu warns
of that (``ProcessGroupHCCL.cpp``). Ports are HCCL's own: 60000 to 60015 of each node, unless
``HCCL_IF_BASE_PORT`` says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

CONNECT, EXECUTE = "HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT"
_CONNECT_S = (120, 7200)
_GRACE_S = 60.0


def time_outs(timeout_s: float, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables to set for a launch whose collectives may take this long; none that is set already."""
    least, most = _CONNECT_S
    wanted = {
        CONNECT: min(max(math.ceil(timeout_s), least), most),
        EXECUTE: max(math.ceil(timeout_s), 1),  # 0 would be for ever
    }
    return {name: str(value) for name, value in wanted.items() if not environ.get(name)}


def watchdog_s(timeout_s: float, environ: Mapping[str, str]) -> float:
    """Time-out for torch's watchdog: after HCCL's, which a user may have set.

    Args:
        timeout_s: the launch's.
        environ: with HCCL's variables as the process has them by now.
    """
    text = environ.get(EXECUTE, "")
    execute_s = int(text) if text.isdecimal() else 0  # 0: HCCL waits for ever, and the watchdog alone ends it
    return max(timeout_s, execute_s) + _GRACE_S
