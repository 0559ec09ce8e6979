"""Runs scripts, each in a fork of this process, which has imported torch and traced something else.

Reads (script, working directory) pairs from standard input as JSON; prints what each one wrote, and its exit
status. A script that starts Python itself spends most of its time on importing the tracer.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

from tests.support.stale_child import trace_something


def forked(script: Path, work_dir: Path) -> tuple[int, str]:
    """The exit status of a script, and its standard output and error."""
    output = work_dir / "output.txt"
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            status = _as_main(script, work_dir, output)
        os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), output.read_text()


def _as_main(script: Path, work_dir: Path, output: Path) -> int:
    """Run the script in this process, as ``python SCRIPT`` would."""
    os.chdir(work_dir)
    with output.open("w") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
        sys.argv, sys.path[0] = [str(script)], str(script.parent)
        try:
            runpy.run_path(str(script), run_name="__main__")
        except BaseException:  # noqa: BLE001 - the test shows it
            traceback.print_exc()
            return 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    return 0


def main() -> None:
    pairs = json.load(sys.stdin)
    trace_something()
    gc.disable()  # else each fork's collector goes through all of torch; frozen, it would be counted instead
    sys.stdout.write(json.dumps([forked(Path(script), Path(work_dir)) for script, work_dir in pairs]))


if __name__ == "__main__":
    main()
