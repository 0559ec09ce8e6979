"""A made-up CANN for tests of static kernels: versions, and an ``op_compiler`` that writes a package."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.npu_emulator.cann import write_tree
from tests.support.node_artifacts import package_bytes

_COMPILER = """\
#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo "$2" >> "HERE/compiled"
package="$2/static_kernel_$(date +%Y%m%d%H%M%S%N)_$$.run"
stem=$(basename "$package" .run)
sed "s/STEM/$stem/" "HERE/package" > "$package"
chmod u+x "$package"
"""


class Tools:
    """The tools of one machine, below a directory."""

    def __init__(self, directory: Path) -> None:
        self.home = write_tree(directory / "cann")
        self.directory = directory / "bin"
        self.directory.mkdir()
        (self.directory / "package").write_bytes(package_bytes("STEM.run"))
        compiler = self.directory / "op_compiler"
        compiler.write_text(_COMPILER.replace("HERE", str(self.directory)))
        compiler.chmod(0o700)

    def environ(self, path: str) -> dict[str, str]:
        """Variables of processes that use them; ``path`` is theirs without them."""
        return {"ASCEND_HOME_PATH": str(self.home), "PATH": f"{self.directory}:{path}"}

    @property
    def compiled(self) -> list[str]:
        """Where op_compiler was told to write its packages."""
        log = self.directory / "compiled"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def installed(self) -> list[str]:
        """The packages whose kernels lie in CANN."""
        found = (self.home / "opp/static_kernel/ai_core").glob("*/kernel.o")
        return sorted(path.parent.name for path in found)

    def install_anew(self) -> None:
        """CANN as a new node has it."""
        shutil.rmtree(self.home / "opp" / "static_kernel", ignore_errors=True)
