"""What compiled kernels may use of the processor: a part of the key, and given to the compiler.

Invariants: two machines with the same text run each other's kernels. ``-march=native`` would use whatever
the compiling machine has beyond what the text names, so a level of the x86-64 psABI is named instead
(https://gitlab.com/x86-psABIs/x86-64-ABI); elsewhere the text has a digest of all the processor's features.
"""

from __future__ import annotations

import functools
import hashlib
import platform
from pathlib import Path
from typing import NamedTuple

_CPU_INFO = Path("/proc/cpuinfo")
_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_LEVELS = (("x86-64-v4", _V4), ("x86-64-v3", _V3), ("x86-64-v2", _V2))
# What Inductor switches on beside the level where it finds it: torch 2.13, torch/_inductor/cpu_vec_isa.py.
_EXTRAS = ("avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16")


class InstructionSet(NamedTuple):
    """What kernels may use. No dataclass, which takes longer to make than all that a warm process does here.

    Attributes:
        march: for the compiler's ``-march``; None where Inductor chooses.
        text: for the key.
    """

    march: str | None
    text: str


@functools.cache
def instruction_set() -> InstructionSet:
    """Of this machine."""
    return of_features(platform.machine(), frozenset(features()))


def features() -> list[str]:
    """Of the first processor; the system writes the text as it is read, which takes long for hundreds."""
    try:
        with _CPU_INFO.open(errors="replace") as lines:
            for line in lines:
                name, _, found = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return found.split()
    except OSError:
        pass
    return []


def of_features(machine: str, features: frozenset[str]) -> InstructionSet:
    """Of a machine with these features, as ``/proc/cpuinfo`` names them."""
    if machine not in ("x86_64", "AMD64"):
        digest = hashlib.sha256(" ".join(sorted(features)).encode()).hexdigest()[:16]
        return InstructionSet(march=None, text=f"{machine} {len(features)} features {digest}")
    level = next((name for name, needed in _LEVELS if needed <= features), "x86-64")
    extras = [name for name in _EXTRAS if name in features]
    return InstructionSet(march=level, text=" ".join([level, *extras]))
