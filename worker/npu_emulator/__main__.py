"""``python -m warmrank.worker.npu_emulator SCRIPT ARGS``: run a script as it is, on an emulated NPU."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from warmrank.worker.npu_emulator import install


def main() -> None:
    """Install, then be the script."""
    if len(sys.argv) < len(("module", "script")):
        sys.exit("usage: python -m warmrank.worker.npu_emulator SCRIPT [ARGS...]")
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    install()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
