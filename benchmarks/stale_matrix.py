"""Which changes between two processes make TorchAir load the wrong graph, and which warmrank?

Each case: a first process compiles a model and fills a cache directory; then one thing is changed, and a
second process runs the same function on that directory. TorchAir's own ``cache_compile`` and warmrank's with
engine ``torchair`` do it side by side, in modes reduce-overhead and npugraph_ex, with the real torch_npu
package on the emulated NPU. Results of two calls, caches and buffers are compared with eager's in a process
of its own (with a fresh compile's, where eager knows nothing of the change).

Run: ``.venv-npu/bin/python benchmarks/stale_matrix.py [--markdown] [--only PATTERN] [--json FILE]``, after
``make test-npu`` has made that environment. It takes two to four minutes; processes are forked from one that
has imported TorchAir, unless ``--fresh`` is given. The exit status is 1 if warmrank is wrong anywhere.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.running import arguments, machine, write  # noqa: E402 - also where nothing is installed
from benchmarks.stale_matrix_parts.cases import CASES  # noqa: E402 - likewise
from benchmarks.stale_matrix_parts.launches import lines  # noqa: E402 - likewise
from benchmarks.stale_matrix_parts.report import as_json, counts, summary, table  # noqa: E402 - likewise


def main() -> None:
    """Run the cases and print the table."""
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="regular expression over `group: name` of the cases")
    parser.add_argument("--markdown", action="store_true", help="nothing but the table, for the documents")
    parser.add_argument("--fresh", action="store_true", help="start every process anew; half an hour")
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1), help="processes at once")
    options = parser.parse_args()
    if importlib.util.find_spec("torch_npu") is None:
        print("torch_npu is not installed here; `make test-npu` makes an environment that has it, .venv-npu")
        return
    place = machine("torch", "torch_npu", device="emulated NPU")
    cases = [case for case in CASES if re.search(options.only, f"{case.group}: {case.name}")]
    with tempfile.TemporaryDirectory() as directory:
        found = lines(Path(directory), cases, workers=options.workers, fresh=options.fresh)
    if not options.markdown:
        print(place)
    print("\n".join(table(found)))
    print(f"\n{summary(found)}")
    write(options, {"place": place, "counts": counts(found), "cases": as_json(found)})
    if counts(found)["faults of warmrank"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
