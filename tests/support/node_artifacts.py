"""Node artifacts, and the tools that write them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.npu_emulator.cann import write_tree
from tests.support.stored import CREATED, publish_launch
from warmrank.cache_store.cache_dir.node_files import NodeCache, NodeFile, keep
from warmrank.cache_store.records.manifest import LaunchRecord, PartitionManifest
from warmrank.cache_store.store import Store
from warmrank.worker.rank.manifests import with_node_files

PACKAGE = "static_kernel_250924103634186357_988879.run"

_PACKAGE_TEXT = """\
#!/bin/sh
set -e
home=$ASCEND_HOME_PATH
directory="$home/opp/static_kernel/ai_core/STEM"
mkdir -p "$directory"
echo "$0 $*" >> "$home/runs"
echo KERNELS > "$directory/kernel.o"
echo '#!/bin/sh' > "$directory/uninstall.sh"
echo 'rm -r "$(dirname "$0")"' >> "$directory/uninstall.sh"
chmod u+x "$directory/uninstall.sh"
"""


def package_bytes(name: str = PACKAGE, kernels: str = "kernels") -> bytes:
    """A package as `op_compiler` makes them, as far as TorchAir sees it: a program that installs kernels."""
    text = _PACKAGE_TEXT.replace("STEM", name.removesuffix(".run")).replace("KERNELS", kernels)
    return text.encode()


def write(path: Path, data: bytes) -> Path:
    """A file of another tool: of this user, and not writable by others."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o640)
    return path


def kept(cache_root: Path, work: Path, path: str, data: bytes) -> NodeFile:
    """A node artifact ``<name>/<path below the node cache>`` that a cache directory keeps."""
    name, _, relative = path.partition("/")
    digest = keep(cache_root, write(work / path, data))
    return NodeFile(cache=name, relative=relative, digest=digest)


def publish_nodes(
    store: Store,
    cache_root: Path,
    nodes: Mapping[int, Mapping[str, bytes]],
    *,
    world_size: int,
    functions: Mapping[int, Mapping[str, bytes]] | None = None,
    created: str = CREATED,
) -> LaunchRecord:
    """Publish a launch; ``nodes`` has the node artifacts of each node by the rank that keeps them."""

    def with_files(manifest: PartitionManifest) -> PartitionManifest:
        work = cache_root.parent / f"tools{created[:10]}{manifest.rank}"
        files = nodes.get(manifest.rank, {}).items()
        return with_node_files(manifest, [kept(cache_root, work, path, data) for path, data in files])

    return publish_launch(
        store, cache_root, world_size=world_size, functions=functions, created=created, change=with_files
    )


def destinations(node: Path) -> dict[str, NodeCache]:
    """The node caches of a node whose tools write below ``node``."""
    caches = (
        NodeCache(name="operators", directory=str(node / "atc_data"), patterns=("kernel_cache*/*",)),
        NodeCache(name="mine", directory=str(node / "mine")),
    )
    return {cache.name: cache for cache in caches}


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
