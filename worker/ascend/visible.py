"""``ASCEND_RT_VISIBLE_DEVICES``: which of a machine's NPUs a process may use.

Numbers and commas, in rising order: CANN reads up to the first other sign or the first number that is not
there, in silence, and torch_npu finds no device at all where the order falls. Here all of that is an error.
A process counts its visible devices from 0, whatever their numbers: ``npu:0`` is the first one.

``ASCEND_VISIBLE_DEVICES`` is another variable, of the container runtime: it says which device files a
container gets, and knows ranges. Source: CANN's reference of environment variables,
https://www.hiascend.com/document/detail/zh/canncommercial/900/maintenref/envvar/envref_07_0028.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from warmrank.worker.errors import DeviceUnavailable

VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"
_NONE = ("", "NoDevFiles")  # the latter is what Ray reads as none


def visible_devices(environ: Mapping[str, str], num_devices: int) -> tuple[int, ...]:
    """Numbers of the NPUs that a process with these variables may use; all, where the variable is not set.

    Args:
        environ: the variables.
        num_devices: NPUs of the machine, or of the container: numbers are below it.

    Raises:
        DeviceUnavailable: the variable is not a list as CANN reads it, or names an NPU that is not there.
    """
    text = environ.get(VARIABLE)
    if text is None:
        return tuple(range(num_devices))
    if text in _NONE:
        return ()
    if not re.fullmatch(r"[0-9]+(,[0-9]+)*", text):
        expected = "numbers and commas, without spaces and ranges"
        raise _refused(
            text, f"CANN would stop reading at the first other sign; expected {expected}, such as 0,1,2"
        )
    numbers = tuple(int(part) for part in text.split(","))
    if any(after <= before for before, after in pairwise(numbers)):
        raise _refused(text, "CANN takes numbers in rising order only, each once")
    missing = [number for number in numbers if number >= num_devices]
    if missing:
        there = (
            f"this machine has {num_devices} NPUs, numbered from 0" if num_devices else "there is no NPU here"
        )
        raise _refused(text, f"it names {', '.join(map(str, missing))}, but {there}")
    return numbers


def _refused(text: str, why: str) -> DeviceUnavailable:
    msg = f"{VARIABLE}={text}: {why}. Set it anew, or unset it to use every NPU."
    return DeviceUnavailable(msg, kind="npu", variable=VARIABLE, actual=text)
